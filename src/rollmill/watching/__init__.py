"""Watching the newest policy play, while it is being trained or afterwards, without a window."""
