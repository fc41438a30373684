"""Folders below the temporary one."""

from __future__ import annotations

import tempfile

from rollmill.launch.caches import own_folder


def test_a_folder_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    """What lies there is executed, so nobody else may have put it there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = own_folder("numba")
    assert folder is not None
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert own_folder("numba") is None
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert own_folder("numba") is None
    folder.unlink()
    folder.write_text("in the way")
    assert own_folder("numba") is None
