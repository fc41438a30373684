"""`rollmill watch` on a run: what it shows, when it takes over newer weights, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import termios
from pathlib import Path
from urllib.request import urlopen

import pytest
from tiny_run import OnTerminal, command, eventually, processes_with, run_verb, train_tiny

from rollmill.play.watch_screen import WatchFrame
from rollmill.play.watch_show import watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("watched") / "run")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy that may be changed; its processes can be told by the path."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


class Collected:
    """A screen that remembers."""

    most_per_second = 1e9
    is_watched = True

    def __init__(self) -> None:
        self.frames: list[WatchFrame] = []
        self.said: list[str] = []

    def show(self, frame: WatchFrame) -> None:
        self.frames.append(frame)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        """Nothing is open."""


def test_every_step_of_whole_episodes_is_shown(run):
    screen = Collected()
    watch(run, screen, episodes=2, per_second=0)
    first = [frame for frame in screen.frames if frame.episode == 1]
    second = [frame for frame in screen.frames if frame.episode == 2]
    assert len(first) + len(second) == len(screen.frames)
    for episode in (first, second):
        # CartPole pays 1 per step, and an episode that the pole ends is terminated
        assert [frame.step for frame in episode] == list(range(len(episode)))
        assert [frame.episode_return for frame in episode] == list(range(len(episode)))
        assert [frame.end for frame in episode][:-1] == [""] * (len(episode) - 1)
        assert episode[-1].end == "terminated"
    assert second[0].returns == (first[-1].episode_return,)
    assert screen.frames[0].picture.shape == (400, 600, 3)
    assert {frame.trained_steps for frame in screen.frames} == {256}
    assert (first[0].picture != first[-1].picture).any()
    again = Collected()
    watch(run, again, episodes=1, per_second=0)
    assert len(again.frames) == len(first)  # equal seeds, equal episodes
    other = Collected()
    watch(run, other, episodes=1, per_second=0, seed=1)
    assert (other.frames[0].picture != first[0].picture).any()


def test_newer_weights_are_taken_over_between_two_episodes(run, tmp_path):
    newest = tmp_path / "newest"
    os.rename(run / "checkpoints" / "000000004", newest)
    (run / "weights.safetensors").unlink()

    class Trainer(Collected):
        def show(self, frame: WatchFrame) -> None:
            super().show(frame)
            if frame.episode == 2 and frame.step == 0:
                os.rename(newest, run / "checkpoints" / "000000004")

    screen = Trainer()
    watch(run, screen, episodes=3, per_second=0)
    steps = {frame.episode: frame.trained_steps for frame in screen.frames}
    assert steps == {1: 128, 2: 128, 3: 256}  # an update is 4 environments × 16 steps


def test_a_run_that_has_just_begun_is_waited_for(run, tmp_path):
    shutil.move(run / "checkpoints", tmp_path / "kept")
    (run / "weights.safetensors").unlink()

    class Trainer(Collected):
        def say(self, text: str) -> None:
            super().say(text)
            shutil.copytree(tmp_path / "kept", run / "checkpoints")

    screen = Trainer()
    watch(run, screen, episodes=1, per_second=0)  # run.json names this process, which is alive
    assert screen.said == [f"waiting for the first checkpoint of {run}"]
    assert screen.frames


def test_the_files_of_a_whole_episode(run, tmp_path):
    frames = tmp_path / "frames"
    ended = run_verb("watch", run, "--frames", frames, "--every-frame", "--episodes", "1", "--fps", "0")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    facts = json.loads((frames / "latest.json").read_text())
    assert (facts["title"], facts["end"]) == ("ppo on CartPole-v1", "terminated")
    assert len(list((frames / "episode-00001").iterdir())) == facts["step"] + 1
    assert not [path for path in frames.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{run}x"], "{run}x: no such run or checkpoint; did you mean 'run'?"),
        (["{tmp}"], "{tmp} is neither a run"),
        (["{run}", "--terminal"], "--terminal: standard output is not a terminal that can draw"),
        (["{run}", "--http", "70000"], "--http 70000 is not a port"),
        (["{run}", "--http", "0", "--frames", "f"], "--terminal, --http and --frames exclude one another"),
        (["{run}", "--every-frame"], "--every-frame needs --frames DIR"),
        (["{run}", "--fps", "-1"], "--fps -1 is out of range"),
        (["{run}", "--episodes", "0"], "--episodes 0 is out of range"),
        (["{run}", "--frames", "{run}/run.json"], "--frames {run}/run.json can't be made: File exists"),
    ],
)
def test_what_can_not_be_shown_is_refused_in_one_line(run, tmp_path, words, reason, capsys):
    from rollmill.cli import main

    places = {"run": run, "tmp": tmp_path}
    assert main(["watch", *(word.format(**places) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rollmill: {reason.format(**places)}")
    assert error.count("\n") == 1


def test_a_dead_run_without_weights_is_refused(run, capsys):
    from rollmill.cli import main

    shutil.rmtree(run / "checkpoints")
    (run / "weights.safetensors").unlink()
    mark = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**mark, "pid": 2**22 + 1}))
    assert main(["watch", str(run), "--http", "0"]) == 2
    assert "has no weights yet" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_ends_with_a_signal_and_leaves_nothing(run, number):
    process = subprocess.Popen(command("watch", run, "--http", "0"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("watch: http://127.0.0.1:")
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert processes_with(str(run)) == []
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_shows_the_page(run, tmp_path):
    process = subprocess.Popen(command("watch", run, "--http", "0", "--fps", "5"), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        page = process.stdout.readline().removeprefix("watch: ").strip()
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
        browser = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *quiet,
            f"--user-data-dir={tmp_path / 'b'}",
        ]

        def has_picture():
            with urlopen(f"{page}scene?after=0", timeout=60) as answer:
                return answer.headers["X-Facts"]

        eventually(has_picture, 90)  # the browser's own clock may run out before a busy machine has played a step
        seen = subprocess.run(
            [*browser, "--virtual-time-budget=10000", "--dump-dom", page], capture_output=True, text=True, timeout=90
        ).stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert '<h1 id="title">ppo on CartPole-v1</h1>' in seen
    assert '<dd id="trained_steps">256 steps</dd>' in seen
    assert re.search(r'<img id="picture" [^>]*src="blob:http://127', seen)
    assert "hidden" not in re.search(r"<img[^>]*>", seen)[0]


@pytest.mark.slow
def test_a_terminal_is_drawn_on_and_given_back(run):
    program = OnTerminal("watch", run, "--fps", "30")
    before = termios.tcgetattr(program.terminal)
    eventually(lambda: re.search(r"episode 1  step \d\d", program.read()), 60)
    program.press("\x03")  # Ctrl-C
    assert program.end() == 128 + signal.SIGINT
    text = program.output.decode(errors="replace")
    assert "\x1b[?1049h" in text
    assert "▀" in text
    assert text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(program.terminal) == before
    os.close(program.terminal)
