"""Frames on a web page of this machine; nothing is loaded from elsewhere, and no other machine can connect."""

from __future__ import annotations

import errno
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from rollmill.errors import Refused
from rollmill.persist.writing import to_json
from rollmill.play.pictures import png_bytes
from rollmill.play.watch_screen import WatchFrame

ADDRESS = "127.0.0.1"
POLL_SECONDS = 2.0  # that a request for the next picture may wait
AWAY_SECONDS = 5.0  # without a request, and the viewer is taken to have left
POLICY = "default-src 'none'; img-src blob: data:; connect-src 'self'; script-src 'self'; style-src 'self'"
PAGES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class PageScreen:
    """Serves a page with the newest frame; a viewer asks for the next one when it has drawn the last."""

    most_per_second = 30.0

    def __init__(self, port: int) -> None:
        try:
            self._server = _Server(port, self)
        except OSError as error:
            why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise Refused(f"--http {port}: {why}; 0 takes any free one") from None
        self._changed = threading.Condition()
        self._number = 0  # of frames so far
        self._frame: WatchFrame | None = None
        self._message = "starting"
        self._asked = 0.0  # time of a viewer's last request
        self._waiting = 0  # viewers
        self._encoded: tuple[int, bytes] = (0, b"")
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="page", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self._server.server_address[1]}/"

    @property
    def is_watched(self) -> bool:
        """Whether a page is open somewhere."""
        return self._waiting > 0 or time.monotonic() - self._asked < AWAY_SECONDS

    def show(self, frame: WatchFrame) -> None:
        """Let every viewer have it."""
        with self._changed:
            self._frame = frame
            self._number += 1
            self._changed.notify_all()

    def say(self, text: str) -> None:
        """Shown on the page and printed."""
        print(text, flush=True)
        with self._changed:
            self._message = text
            self._changed.notify_all()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_frame(self, after: int) -> tuple[int, WatchFrame | None, str]:
        """The newest frame once its number is another than `after`, with its number; the same after a while."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._number != after, timeout=POLL_SECONDS)
            finally:
                self._waiting -= 1
                self._asked = time.monotonic()
            return self._number, self._frame, self._message

    def encoded(self, number: int, frame: WatchFrame) -> bytes:
        """The picture as PNG; several viewers share the work, and without one there is none."""
        if self._encoded[0] != number:
            self._encoded = number, png_bytes(frame.picture)
        return self._encoded[1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a viewer that waits for the next picture is not waited for
    allow_reuse_address = True

    def __init__(self, port: int, screen: PageScreen) -> None:
        self.screen = screen
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A viewer that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """The page, its parts, or the next frame."""
        # another site's name that was made to lead here must not read along
        if (self.headers.get("Host") or "").partition(":")[0] not in (ADDRESS, "localhost"):
            self._answer(403, "text/plain", b"only for this machine\n")
            return
        url = urlsplit(self.path)
        if url.path in PAGES:
            name, kind = PAGES[url.path]
            self._answer(200, kind, files("rollmill.play").joinpath(name).read_bytes())
        elif url.path == "/scene":
            self._frame(parse_qs(url.query).get("after", ["0"])[0])
        else:
            self._answer(404, "text/plain", b"no such page\n")

    def _frame(self, after: str) -> None:
        screen = self.server.screen
        number, frame, message = screen.next_frame(int(after) if after.isdecimal() else 0)
        if frame is None:
            facts = {"number": number, "message": message}
            self._answer(200, "application/json", json.dumps(facts).encode())
            return
        facts = {"number": number, **frame.facts()}
        line = json.dumps(json.loads(to_json(facts)))  # ASCII, as a header must be
        self._answer(200, "image/png", screen.encoded(number, frame), {"X-Facts": line})

    def _answer(self, code: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        for name, value in (fixed | {"Content-Security-Policy": POLICY} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No log line per picture."""
