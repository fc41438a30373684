"""Pictures, and the places where they are shown."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from matplotlib import image as matplotlib_image

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill.play.pictures import BAR, Camera, as_image, bar_chart, png_bytes
from rollmill.play.watch_page import PageScreen
from rollmill.play.watch_screen import FolderScreen, WatchFrame
from rollmill.play.watch_terminal import TerminalScreen, fitted, half_blocks

RAMP = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def frame(step: int = 7, end: str = "") -> WatchFrame:
    return WatchFrame(RAMP, "ppo on CartPole-v1", "runs/a", 12_345, 2, step, 3.5, end, (1.0, 2.0))


def decoded(data: bytes) -> np.ndarray:
    return np.round(matplotlib_image.imread(io.BytesIO(data), "png") * 255).astype(np.uint8)


# --- pictures


def test_a_png_holds_the_very_pixels():
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(png_bytes(picture)), picture)


def test_observations_that_are_images_are_shown_as_they_are():
    grey = np.arange(20 * 30, dtype=np.uint8).reshape(20, 30)
    np.testing.assert_array_equal(as_image(grey)[:, :, 1], grey)
    stacked = np.stack([grey * 0, grey * 0, grey * 0, grey])  # the newest frame comes last
    np.testing.assert_array_equal(as_image(stacked)[:, :, 0], grey)
    colour = np.stack([grey, grey + 1, grey + 2], axis=-1)
    np.testing.assert_array_equal(as_image(colour), colour)
    assert as_image(np.zeros(4, np.uint8)) is None
    assert as_image(np.zeros((20, 30), np.float32)) is None


def test_bars_go_up_and_down_from_the_middle():
    picture = bar_chart(np.array([1.0, -0.5]))  # 200 high: 96 pixels up, 48 down; 160 wide each, a fifth is left free
    blue = (picture == BAR).all(axis=2)
    assert blue[4:100, :128].all()
    assert not blue[101:, :160].any()
    assert blue[101:148, 160:288].all()
    assert not blue[148:, 160:].any()


def test_an_environment_without_a_picture_shows_what_the_agent_sees():
    group = make_group(EnvConfig(id="probe/identity", group_size=1), 1, pictures=True)
    group.reset(np.ones(1, bool), np.zeros(1, np.int64))
    picture = Camera(group).take()
    assert picture.shape == (200, 320, 3)
    assert (picture == BAR).all(axis=2).any()


# --- the terminal


def test_a_picture_is_fitted_with_its_shape_kept():
    assert fitted(np.zeros((400, 600, 3), np.uint8), 80, 46).shape == (46, 69, 3)  # 46 / 400 × 600 = 69
    assert fitted(np.zeros((400, 600, 3), np.uint8), 30, 46).shape == (20, 30, 3)
    blocks = np.array([[0, 100], [50, 250]], np.uint8)[:, :, None].repeat(3, 2)
    large = fitted(blocks, 4, 4)
    assert large[:, :, 0].tolist() == [[0, 0, 100, 100]] * 2 + [[50, 50, 250, 250]] * 2
    # shrinking takes means: (0 + 100 + 50 + 250) / 4 = 100
    assert fitted(large, 2, 2)[:, :, 0].tolist() == [[0, 100], [50, 250]]
    assert fitted(np.concatenate([large] * 2, axis=1), 1, 2)[:, 0, 0].tolist() == [50, 150]


def test_a_character_carries_two_pixels_and_a_colour_is_named_once():
    picture = np.array([[[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [4, 5, 6]]], np.uint8)
    assert half_blocks(picture) == ["\x1b[38;2;1;2;3;48;2;4;5;6m▀▀"]


def test_the_terminal_is_entered_once_and_left_as_it_was():
    stream = io.StringIO()
    screen = TerminalScreen(stream)
    screen.close()
    assert stream.getvalue() == ""  # nothing was shown, so nothing is undone
    for step in (1, 2):
        screen.show(frame(step))
    screen.close()
    text = stream.getvalue()
    assert text.startswith("\x1b[?1049h\x1b[?25l")
    assert text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")
    assert text.count("\x1b[?1049h") == 1
    assert "ppo on CartPole-v1 after 12,345 steps  episode 2  step 2  return 3.5" in text
    frames = text.split("\x1b[H")[1:]
    assert all(frame.count("\r\n") == 23 for frame in frames)  # 24 lines, the last one is text


# --- files


def test_files_hold_the_newest_frame_and_all_of_them_if_asked(tmp_path):
    screen = FolderScreen(tmp_path / "frames", keeps_all=True)
    for step in (0, 1):
        screen.show(frame(step))
    names = sorted(str(path.relative_to(tmp_path / "frames")) for path in (tmp_path / "frames").rglob("*.*"))
    assert names == ["episode-00002/000000.png", "episode-00002/000001.png", "latest.json", "latest.png"]
    assert json.loads((tmp_path / "frames" / "latest.json").read_text())["step"] == 1
    np.testing.assert_array_equal(decoded((tmp_path / "frames" / "latest.png").read_bytes()), RAMP)


# --- the page


@pytest.fixture
def page():
    screen = PageScreen(0)
    yield screen
    screen.close()


def get(url: str, **headers: str):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10)


def test_the_page_and_its_parts_ask_nobody_else(page):
    html = get(page.address).read().decode()
    parts = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert sorted(parts) == ["data:,", "page.css", "page.js"]
    for name in ("", "page.css", "page.js"):
        answer = get(page.address + name)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert b"//" not in answer.read().replace(b"// One request", b"")  # neither an address nor a protocol


def test_a_viewer_gets_the_newest_frame_with_its_facts_and_waits_for_the_next(page, monkeypatch):
    monkeypatch.setattr("rollmill.play.watch_page.POLL_SECONDS", 0.2)
    first = json.loads(get(page.address + "scene?after=0").read())  # after a moment's waiting
    assert first == {"number": 0, "message": "starting"}
    page.show(frame(7))
    answer = get(page.address + "scene?after=0")
    facts = json.loads(answer.headers["X-Facts"])
    np.testing.assert_array_equal(decoded(answer.read()), RAMP)
    expected = {"number": 1, "step": 7, "episode_return": 3.5, "trained_steps": 12_345, "returns": [1.0, 2.0]}
    assert expected.items() <= facts.items()
    monkeypatch.setattr("rollmill.play.watch_page.POLL_SECONDS", 10.0)
    later = threading.Timer(0.3, page.show, [frame(8)])
    later.start()
    assert json.loads(get(page.address + "scene?after=1").headers["X-Facts"])["step"] == 8
    later.join()


def test_nothing_is_played_for_nobody(page, monkeypatch):
    assert not page.is_watched
    get(page.address + "scene?after=5")  # answered at once: a number from another life
    assert page.is_watched
    monkeypatch.setattr("rollmill.play.watch_page.AWAY_SECONDS", 0.0)
    assert not page.is_watched


def test_only_this_machine_gets_the_page(page):
    port = int(page.address.rstrip("/").rpartition(":")[2])
    for url, headers, code in (
        (page.address, {"Host": "evil.example"}, 403),
        (page.address + "../etc/passwd", {}, 404),
        (page.address + "page.py", {}, 404),
    ):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            get(url, **headers)
        assert refusal.value.code == code
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):
        pass  # another address of this very machine: it listens on one only


def test_a_port_that_is_taken_is_refused_in_one_line(page):
    port = int(page.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(Refused, match=rf"^--http {port}: the port is taken; 0 takes any free one$"):
        PageScreen(port)
