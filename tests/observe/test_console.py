from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.console.closing import closing_lines
from rollmill.console.console import ConsoleObserver, RunMoment
from rollmill.console.display import Display
from rollmill.events import Checkpointed, Checkpointing, ComponentFailed, Progress, Said, WorkerReplaced
from rollmill.observe.phrases import shares

STYLE = re.compile(r"\x1b\[[0-9;]*m")
SUMMARY = {
    "env_steps": 1000,
    "frames": 4000,
    "updates": 10,
    "episodes": 20,
    "parameters_sha256": "0123456789abcdef" * 4,
    "returns": {
        "ema": 101.0,
        "mean_100": 56.0,
        "std_100": 30.0,
        "best_mean_100": 60.0,
        "greedy": 70.0,
        "greedy_episodes": 20,
    },
    "random_baseline": {"return": 5.0, "std": 2.0, "episodes": 20, "seconds": 0.1},
    "throughput": {"steps_per_second": 100.0, "seconds": 10.0, "time": {"env": 0.3, "learn": 0.7}},
}


@pytest.fixture(autouse=True)
def terminal_of_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def show_lines(events, run: Path) -> list[str]:
    stream = io.StringIO()
    observer = ConsoleObserver(run, Display(stream, "lines"))
    for event in events:
        observer.receive(event)
    observer.close()
    return stream.getvalue().splitlines()


def bar_frames(events, run: Path) -> list[str]:
    """What is drawn after each event, as plain text of 80 columns."""
    stream = io.StringIO()
    observer = ConsoleObserver(run, Display(stream, "bar", interval=0.0, keeps_last=True))
    drawn = []
    for event in events:
        observer.receive(event)
        drawn.append(STYLE.sub("", stream.getvalue()))
        stream.seek(0)
        stream.truncate()
    observer.close()
    return [*drawn, STYLE.sub("", stream.getvalue())]


def test_plain_lines_tell_percent_eta_return_and_where_the_time_goes(tmp_path: Path, run_events) -> None:
    lines = show_lines(run_events(), tmp_path)
    assert lines[:3] == ["ppo on Counting-v0", "  1 learner [cpu]", "  2 workers"]
    # At 6 s: 600 of 1,000 steps at 100 steps/s, so 4 s remain; the smoothed return is 10 × 6 + 1.
    assert lines[4] == (
        " 60%  600/1,000 steps  ETA 0:04  return 61.0 (random 5.00)  entropy 0.500  kl 0.0100  100 steps/s  "
        "env 30%  inference 20%  learn 40%  wait 10%"
    )
    assert [line[:4] for line in lines[3:6]] == [" 10%", " 60%", "100%"]
    assert lines[5].startswith("100%  1,000/1,000 steps  took 0:10  return")


def test_whose_time_it_is_is_told_where_workers_do_not_wait_for_the_learner() -> None:
    # 61 + 12 + 82 + 18 = 173 %: the workers' 73 % lie within the learner's 100 %
    time = {"env": 0.61, "inference": 0.12, "learn": 0.82, "wait": 0.18}
    told = "  time       of the learner: learn 82%  wait 18%; of the workers: env 61%  inference 12%"
    assert told in closing_lines({"throughput": {"time": time}})
    assert shares(time) == "learn 82%  wait 18%; workers: env 61%  inference 12%"


def test_a_resumed_run_says_where_it_goes_on(tmp_path: Path, run_events) -> None:
    begin, *events = run_events()
    progress = Progress(env_steps=210_944, target_steps=400_000, updates=103)
    lines = show_lines([replace(begin, progress=progress), *events], tmp_path)
    assert lines[:3] == ["ppo on Counting-v0", "  continues after update 103, 210,944 steps", "  1 learner [cpu]"]


def test_frames_are_told_apart_where_a_step_is_several(tmp_path: Path, run_events) -> None:
    assert "100 steps/s  400 frames/s" in show_lines(run_events(frame_skip=4), tmp_path)[4]
    assert "frames" not in show_lines(run_events(), tmp_path)[4]


def test_the_bar_takes_three_lines_of_eighty_columns_and_keeps_its_layout(tmp_path: Path, run_events) -> None:
    drawn = bar_frames(run_events(frame_skip=4), tmp_path)
    for update in range(1, 11):
        screen = [line for line in drawn[2 * update].replace("\x1b[2K", "").replace("\x1b[1A", "").split("\n") if line]
        bar, learning, where = (line.replace("\r", "").rstrip() for line in screen)
        assert max(map(len, (bar, learning, where))) <= 80
        assert bar.startswith("ppo on Counting-v0  ")
        assert f"{10 * update:3}%  " in bar
        assert f"{100 * update:,}/1,000" in bar
        assert bar.endswith(f"ETA  0:{10 - update:02}" if update < 10 else "took  0:10")
        assert [learning.index(word) for word in ("return", "random", "entropy", "kl", "steps/s")] == [
            0,
            17,
            34,
            51,
            63,
        ]
        assert f"return {10.0 * update + 1:7.1f}   random 5.00 " in learning
        assert "entropy 0.500 " in learning
        assert "kl 0.0100 " in learning
        assert where == "time env 30%  inference 20%  learn 40%  wait 10%   frames/s 400"


def test_the_bar_needs_no_thread_of_its_own() -> None:
    before = set(threading.enumerate())
    display = Display(io.StringIO(), "bar")
    display.show(RunMoment().view())
    assert set(threading.enumerate()) == before
    display.finish()


def test_the_bar_is_redrawn_in_place_and_the_cursor_stays_visible(tmp_path: Path, run_events) -> None:
    drawn = bar_frames(run_events(), tmp_path)
    assert drawn[4].count("\x1b[1A") == 2  # back to the first of three lines
    assert drawn[0].rfind("\x1b[?25h") > drawn[0].rfind("\x1b[?25l")
    assert all("\x1b[?25l" not in text for text in drawn[1:])


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_warnings_and_failures_are_shown_as_they_are(tmp_path: Path, run_events, mode: str) -> None:
    events = run_events(updates=2)
    events[3:3] = [
        Said(Progress(), "worker-0", "chatter"),
        Said(Progress(), "worker-0", "slow [red]step[/red]", "warning"),
        ComponentFailed(Progress(), "worker-1", "died [0]", "Traceback:\n  boom"),
    ]
    if mode == "bar":
        output = "".join(bar_frames(events, tmp_path))
    else:
        output = "\n".join(show_lines(events, tmp_path))
    assert "warning: worker-0: slow [red]step[/red]" in output
    assert "error: worker-1: died [0]" in output
    assert "boom" not in output, "the traceback is shown by whoever catches the error"
    assert "chatter" not in output


def test_the_summary_names_everything_a_person_needs_next(tmp_path: Path, run_events) -> None:
    (tmp_path / "curve.png").touch()
    (tmp_path / "tensorboard").mkdir()
    lines = show_lines(run_events(summary=SUMMARY), tmp_path)
    assert lines[lines.index("") + 1 :] == [
        "ppo on Counting-v0",
        "  status     done: 1,000 steps reached",
        "  trained    1,000 env steps, 4,000 frames, 10 updates, 20 episodes",
        "  return     56.0 (last 20), 101.0 (smoothed), 60.0 (best), 70.0 (greedy, 20 episodes)",
        "  verdict    learned: return 56.0, random policy 5.00 (20 episodes)",
        "  speed      100 steps/s, 400 frames/s, 0:10 in all",
        "  time       of the wall time: env 30%  learn 70%",
        "  parameters sha256 0123456789abcdef",
        f"  run        {tmp_path}",
        f"  curve      {tmp_path / 'curve.png'}",
        f"  look       rollmill show {tmp_path}",
        f"             tensorboard --logdir {tmp_path}",
    ]


def test_a_warning_is_shown_once_and_then_counted(tmp_path: Path, run_events) -> None:
    events = run_events(updates=2)
    events[3:3] = [
        Said(Progress(), f"actor-{n % 2}", "an environment was rebuilt\nTraceback:\n  boom", "warning")
        for n in range(5)
    ]
    lines = show_lines(events, tmp_path)
    assert [line for line in lines if line.startswith("warning")] == [
        "warning: actor-0: an environment was rebuilt",
        "warning: said 5 times: an environment was rebuilt",
    ]
    assert not any("boom" in line for line in lines), "the traceback is in the log"


def test_a_hundred_different_warnings_are_enough(tmp_path: Path, run_events) -> None:
    events = run_events(updates=2)
    events[3:3] = [Said(Progress(), "actor-0", f"step {n} was slow", "warning") for n in range(1000)]
    shown = [line for line in show_lines(events, tmp_path) if line.startswith("warning")]
    assert len(shown) == 101
    assert shown[-1] == "warning: 900 others, see the logs"


def test_a_replaced_worker_is_one_line_and_a_checkpoint_none(tmp_path: Path, run_events) -> None:
    events = run_events()
    undisturbed = show_lines(events, tmp_path)
    now = events[4].progress
    events[5:5] = [
        Checkpointing(now),
        Checkpointed(now, "runs/a/checkpoints/000000002", 0.1),
        WorkerReplaced(now, "worker-1", "killed by SIGKILL", "Traceback:\n  boom", 1.26, 0.4, 1),
    ]
    lines = show_lines(events, tmp_path)
    warning = "warning: worker-1: replaced after 1.3 s, 0.4 s of it replaying episodes: killed by SIGKILL"
    assert [line for line in lines if line not in undisturbed] == [warning]
    assert len(lines) == len(undisturbed) + 1


def replaced(place: str, seconds: float) -> dict[str, object]:
    return {"place": place, "reason": "exit code 7", "update": 3, "seconds": seconds, "replay_seconds": seconds / 2}


def test_the_summary_tells_what_broke_what_is_saved_and_how_to_go_on() -> None:
    lines = closing_lines(
        {
            "status": "interrupted",
            "run": "runs/a",
            "resume_grade": "exact",
            "resumed": [{"update": 12, "env_steps": 12288}, {"update": 20, "env_steps": 20480}],
            "checkpoints": {
                "written": 1200,
                "failed": 2,
                "last": "runs/a/checkpoints/000000031",
                "best": None,
                "seconds": 0.4,
                "share": 0.0042,
                "error": "No space left on device",
            },
            "failures": {
                "workers": [replaced("worker-1", 1.0), replaced("worker-0", 2.0), replaced("worker-1", 1.5)],
                "environments": 4,
                "quarantined": 1,
            },
            "losses": {"csv": "[Errno 28] No space left on device (7 events lost)"},
        }
    )
    assert lines[2:7] == [
        "  saved      1,200 checkpoints, 0.4% of the time, 2 failed (No space left on device), "
        "the last is runs/a/checkpoints/000000031",
        "  resume     rollmill train runs/a --resume (exact)",
        "  resumed    2 times, last after update 20 (20,480 env steps)",
        "  failures   3 workers replaced (worker-1 2×, worker-0 1×; the slowest took 2.0 s, 1.0 s of it replay), "
        "4 of environments, 1 environment quarantined",
        "  lost       csv: [Errno 28] No space left on device (7 events lost)",
    ]


@pytest.mark.parametrize(("wall", "told"), [(59.0, "2 checkpoints, 0.3 s"), (60.0, "2 checkpoints, 0.5% of the time")])
def test_of_a_short_run_seconds_are_told_and_no_share(wall: float, told: str) -> None:
    checkpoints = {"written": 2, "seconds": 0.3, "share": 0.3 / wall}
    assert f"  saved      {told}" in closing_lines({"checkpoints": checkpoints, "throughput": {"seconds": wall}})


@pytest.mark.parametrize(
    ("status", "last", "told"),
    [
        ("interrupted", "c", "rollmill train {run} --resume (exact)"),
        ("failed", "c", "rollmill train {run} --resume (exact)"),
        ("died", "c", "rollmill train {run} --resume (exact)"),
        ("died", None, "exact"),  # there is nothing to go on from
        ("done", "c", "exact"),
        ("running", "c", "exact"),
    ],
)
def test_going_on_is_offered_where_a_run_ended_early(tmp_path: Path, status: str, last: str | None, told: str) -> None:
    summary = {"status": status, "run": str(tmp_path), "resume_grade": "exact", "checkpoints": {"last": last}}
    assert f"  resume     {told.format(run=tmp_path)}" in closing_lines(summary)


def test_one_is_told_as_one() -> None:
    lines = closing_lines(
        {
            "env_steps": 64,
            "updates": 1,
            "episodes": 1,
            "returns": {"mean_100": 9.0, "greedy": 8.0, "greedy_episodes": 1},
            "checkpoints": {"written": 1},
            "failures": {"workers": [replaced("worker-1", 1.0)]},
        }
    )
    assert lines == [
        "  trained    64 env steps, 1 update, 1 episode",
        "  return     9.00 (last 1), 8.00 (greedy, 1 episode)",
        "  verdict    unknown: return 9.00, the random policy was not measured",
        "  saved      1 checkpoint",
        "  failures   1 worker replaced (worker-1 1×; the slowest took 1.0 s, 0.5 s of it replay)",
    ]


def test_a_summary_without_any_key_still_prints() -> None:
    assert closing_lines({}) == ["  verdict    unknown: no episode has ended"]


def test_auto_means_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Display(io.StringIO()).mode == "lines"
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("TERM", "xterm")
        display = Display(terminal, "auto", 1.0, 5.0)
        assert (display.mode, display.interval) == ("bar", 1.0)
        monkeypatch.setenv("TERM", "dumb")
        display = Display(terminal, "auto", 1.0, 5.0)
        assert (display.mode, display.interval) == ("lines", 5.0)
    os.close(leader)


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_an_ascii_terminal_gets_ascii(tmp_path: Path, run_events, mode: str) -> None:
    raw = io.BytesIO()
    display = Display(io.TextIOWrapper(raw, encoding="ascii", write_through=True), mode, 0.0, 0.0)
    observer = ConsoleObserver(tmp_path, display)
    events = run_events(updates=2)
    events[2:2] = [Said(Progress(), "worker-0", "2 × 4 – ≥ ☃", "warning")]
    for event in events:
        observer.receive(event)
    observer.close()
    assert b"2 x 4 - >= ?" in raw.getvalue()
    assert b"status     done" in raw.getvalue()


@pytest.mark.parametrize("mode", ["bar", "lines"])
@pytest.mark.parametrize("where", ["closed", "pipe", "full"])
def test_a_lost_standard_output_ends_neither_the_run_nor_its_exit_code(tmp_path: Path, mode: str, where: str) -> None:
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conftest import make_run
from rollmill.console.console import ConsoleObserver
from rollmill.console.display import Display
observer = ConsoleObserver(Path(sys.argv[2]), Display(sys.stdout, sys.argv[3], 0.0, 0.0))
for event in make_run():
    observer.receive(event)
observer.close()
Path(sys.argv[2], "finished").touch()
"""
    arguments = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path), mode]
    shell = {"closed": '"$@" >&-', "pipe": 'set -o pipefail; "$@" | true', "full": '"$@" >/dev/full'}[where]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # as users have it
    ended = subprocess.run(["bash", "-c", shell, "bash", *arguments], capture_output=True, text=True, env=buffered)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "finished").exists()
