"""The checkpoint that was evaluated best: kept next to the others, whatever becomes of the one that it was made of.

A checkpoint is held (a copy of links, so it costs no room) while it is evaluated, since training continues and removes
old ones meanwhile. The best so far becomes `evaluated-<update>`, to which the link `evaluated` leads.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rollmill.persist.writing import link_atomically, remove, sync_folder

EVALUATED = "evaluated"  # the link
_HELD = ".held-"  # what all that is not finished begins with
_KEPT = re.compile(rf"{EVALUATED}-[0-9]{{9,18}}")


def best_in(folder: Path) -> Path | None:
    """Where the link `best` leads, spelled like the folder of checkpoints; None if nowhere."""
    link = folder / "best"
    return folder / link.resolve().name if link.exists() else None


class EvaluatedCheckpoints:
    """What periodic evaluation keeps in `<run>/checkpoints`; names that nothing else there uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, checkpoint: Path) -> Path:
        """A copy that is not removed; OSError if the checkpoint is gone or there is no room."""
        held = self.folder / f"{_HELD}{checkpoint.name}"
        self.let_go(held)
        held.mkdir()
        try:
            for file in checkpoint.iterdir():
                try:
                    os.link(file, held / file.name)
                except FileNotFoundError:
                    raise
                except OSError:  # a file system without hard links
                    shutil.copyfile(file, held / file.name)
        except BaseException:
            self.let_go(held)
            raise
        return held

    def let_go(self, held: Path) -> None:
        """Remove what was held."""
        shutil.rmtree(held, ignore_errors=True)

    def keep(self, held: Path, update: int) -> Path:
        """Make what was held the best so far; the link is never without a whole checkpoint as its target."""
        kept = self.folder / f"{EVALUATED}-{update:09d}"
        if kept.exists():  # the same update, evaluated again after a resume
            self.let_go(held)
        else:
            os.rename(held, kept)
        link_atomically(self.folder / EVALUATED, kept.name, self.folder / f"{_HELD}{EVALUATED}")
        sync_folder(self.folder)
        for name in os.listdir(self.folder):
            if _KEPT.fullmatch(name) and name != kept.name:
                self.let_go(self.folder / name)
        return kept

    def sweep(self, update: int) -> None:
        """Remove what an earlier process of this run has held, and a best one from after the update it is at now.

        Only one process at a time writes a run.
        """
        for path in self.folder.glob(f"{EVALUATED}-*"):
            if _KEPT.fullmatch(path.name) and int(path.name.rpartition("-")[2]) > update:
                self.let_go(path)
        link = self.folder / EVALUATED
        if link.is_symlink() and not link.exists():
            link.unlink()
        for path in self.folder.glob(f"{_HELD}*"):
            remove(path)
