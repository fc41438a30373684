"""Watching a run while it trains, turned on and off by a key or by a file in the run folder."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

from rollmill.console.keys import Keys
from rollmill.events import Event, RunStarted
from rollmill.launch.children import Child, rollmill_command
from rollmill.launch.helper import start_helper
from rollmill.observe.observer import Overflow
from rollmill.persist.writing import last_line

LOOK_SECONDS = 0.25  # between two looks at the file and the keys
KEY = "w"
HINT = f"keys: {KEY} shows the policy playing"
_PAGE = re.compile(r"^watch: http://\S+$", re.MULTILINE)


class WatchObserver:
    """Shows the policy on a web page as long as <run>/watch exists; the file may name the port.

    The key makes and removes the file, so there is one truth. What is shown is `rollmill watch` in a process of its
    own, which ends with the run.
    """

    name = "watch"
    overflow: Overflow = "drop"

    def __init__(self, run: Path, say: Callable[[str], None], keys: Keys | None, niceness: int) -> None:
        self._run, self._say, self._keys, self._niceness = run, say, keys, niceness
        self._file = run / "watch"
        self._output, self._log = run / "logs" / "watch.out", run / "logs" / "watch.log"
        self._is_our_file = False
        self._process: Child | None = None
        self._is_announced = False
        self._is_over = False  # it has ended by itself, and is not tried again until the file is made again
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_around, name="watch", daemon=True)

    def receive(self, event: Event) -> None:
        """Begin with the run."""
        if isinstance(event, RunStarted) and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End what is shown, and give the terminal back."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._keys is not None:
            self._keys.close()
        if self._process is not None:
            self._process.end()
        if self._is_our_file:
            self._file.unlink(missing_ok=True)

    def _look_around(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                if self._keys is not None and self._keys.read().count(KEY) % 2:
                    self._toggle()
                self._follow()
            except OSError as error:  # a full disk, a folder that was removed
                if not self._is_over:
                    self._say(f"warning: watch: {error}")
                self._is_over = True

    def _toggle(self) -> None:
        if self._file.exists():
            self._file.unlink(missing_ok=True)
        else:
            self._file.touch()
            self._is_our_file = True

    def _follow(self) -> None:
        """Start or end the process as the file says, and report where the page is, or why there is none."""
        if not self._file.exists():
            self._is_over = self._is_our_file = False
            if self._process is not None:
                self._process.end()
                self._process = None
                self._say("watch: off")
        elif self._process is None and not self._is_over:
            self._say("watch: starting")
            command = rollmill_command("watch", str(self._run), "--http", self._port())
            self._output.parent.mkdir(exist_ok=True)
            self._process = start_helper(command, self._niceness, self._output, self._log)
            self._is_announced = False
        if self._process is None:
            return
        if self._process.exit_code is not None:
            code = self._process.end()
            self._process, self._is_over = None, True
            self._say(f"warning: watch: {last_line(self._log) or f'ended with code {code}'}")
        elif not self._is_announced and (page := _PAGE.search(self._output.read_text(errors="replace"))):
            self._is_announced = True
            self._say(page[0])
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{page[0]}\n")

    def _port(self) -> str:
        """What the file names; 0, any free one, unless it does."""
        text = self._file.read_text(encoding="utf-8", errors="replace").strip()
        if text and not text.isdecimal():
            self._say(f"warning: watch: {self._file} should hold a port or nothing; a free one is taken")
        return text if text.isdecimal() else "0"
