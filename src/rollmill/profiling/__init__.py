"""Where the time of a training goes: a table by component and a flame graph."""
