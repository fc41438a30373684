"""`rollmill tune`, and `--with`, which takes what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from rollmill.cli import main
from rollmill.config.yaml_text import written
from rollmill.console.display import Display
from rollmill.errors import Refused
from rollmill.settings import load_config
from rollmill.trials.candidates import Candidate
from rollmill.trials.search import Search, Trial, seconds_for
from rollmill.trials.setups import Setup, anchors, every_setup
from rollmill.trials.tune import _notes, fragment_path, write_fragment
from rollmill.trials.tuning_table import remarks, table, verdict

SMALL = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
    "algorithm": {"name": "ppo", "unroll": 8, "minibatch": 64, "epochs": 1},
    "train": {"steps": 1000},
    "observe": {"console": "none"},
}


def write(path: Path, values: object) -> Path:
    path.write_text(values if isinstance(values, str) else written(values))
    return path


# --with


def test_a_fragment_is_laid_over_the_config_and_overrides_go_over_both(tmp_path):
    config = write(tmp_path / "a.yaml", SMALL)
    one = write(tmp_path / "one.yaml", {"env": {"groups": 4}, "seed": 5, "runtime": {"threads": {"learner": 2}}})
    two = write(tmp_path / "two.yaml", "seed: 6\nenv:\n  group_size: 2\n")
    loaded = load_config(config, ["seed=7", f"@{one}", f"@{two}"])
    assert (loaded.config.env.groups, loaded.config.env.group_size, loaded.config.env.id) == (4, 2, "CartPole-v1")
    assert (loaded.config.seed, loaded.config.runtime.threads.learner) == (7, 2)
    assert loaded.origins["env.group_size"] == f"{two}:3"
    assert loaded.origins["seed"] == "override"
    assert load_config(config, [f"@{one}", f"@{two}"]).config.seed == 6


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("env:\n  grops: 2\n", "fast.yaml:2: unknown key 'env.grops': did you mean 'groups'?"),
        ("env:\n  groups: two\n", "fast.yaml:2: env.groups: 'two' is not a whole number"),
        ("- 1\n", "fast.yaml:1: the top level is [1]"),
        ("env: 3\n", "fast.yaml:1: env: 3 is not a section"),
    ],
)
def test_what_is_wrong_in_a_fragment_is_named_with_its_file_and_line(tmp_path, text, complaint):
    config, fragment = write(tmp_path / "a.yaml", SMALL), write(tmp_path / "fast.yaml", text)
    with pytest.raises(Refused) as refusal:
        load_config(config, [f"@{fragment}"])
    assert complaint in str(refusal.value)


def test_an_empty_fragment_changes_nothing(tmp_path):
    config, fragment = write(tmp_path / "a.yaml", SMALL), write(tmp_path / "none.yaml", "# nothing\n{}\n")
    assert load_config(config, [f"@{fragment}"]).config == load_config(config).config


def test_check_and_train_take_fragments(tmp_path, capsys):
    config, fragment = write(tmp_path / "a.yaml", SMALL), write(tmp_path / "fast.yaml", {"env": {"group_size": 3}})
    assert main(["check", str(config), "--with", str(fragment)]) == 2  # 48 samples, and minibatches of 64
    assert "algorithm.minibatch=64" in capsys.readouterr().out
    assert main(["train", str(tmp_path / "run"), "--resume", "--with", str(fragment)]) == 2
    assert "--with" in capsys.readouterr().err


# What is tried

BASE = Setup("processes", 2, "fused", 4, 8, 2)


def test_the_number_of_environments_stays_unless_it_may_change():
    setups = every_setup(BASE, 4, False)
    assert len(setups) == len(set(setups)) > 30
    assert BASE not in setups
    assert {setup.environments for setup in setups} == {32}
    assert all(setup.workers <= min(setup.groups, 4) for setup in setups)
    assert {setup.kind for setup in setups} == {"serial", "processes"}
    assert {setup.environments for setup in every_setup(BASE, 4, True)} == {16, 32, 64, 128}


def test_an_asynchronous_update_keeps_its_samples():
    base = Setup("processes", 1, "fused", 2, 12, 1, unrolls=2)  # 24 columns per update
    setups = every_setup(base, 2, True)
    assert {setup.unrolls * setup.group_size for setup in setups} == {24}
    assert {setup.group_size for setup in setups} >= {3, 4, 6, 24}


def test_a_setup_says_what_of_the_result_it_changes():
    assert Setup("serial", 1, "fused", 4, 8, 2).effect(BASE) == "same"
    assert Setup("processes", 2, "fused", 4, 8, 1).effect(BASE) == "last bits"
    assert Setup("processes", 2, "fused", 8, 4, 2).effect(BASE) == "other episodes"
    assert Setup("processes", 2, "fused", 8, 8, 2).effect(BASE) == "other batch"
    assert Setup("serial", 1, "fused", 4, 8, 2).changes(BASE) == {"runtime.kind": "serial", "runtime.workers": 1}


def test_the_first_candidates_are_far_apart():
    first = anchors(every_setup(BASE, 2, False), 2)
    assert {(setup.kind, setup.roles) for setup in first} == {
        ("processes", "fused"),
        ("serial", "fused"),
        ("processes", "central"),
    }


# The search, over the connections of candidates that answer what they are told to


class Crowd:
    """Starts candidates that report the rate of their setup, at a machine whose speed changes with each answer."""

    def __init__(self, rates: dict[Setup, float | str], speeds: list[float], pause: float) -> None:
        self.rates, self.speeds, self.asked, self.output = rates, speeds, 0, Path(os.devnull)
        self.pause = pause  # seconds before each answer

    def start(self, setup: Setup) -> Candidate:
        ours, theirs = Pipe()
        threading.Thread(target=self._answer, args=(theirs, self.rates.get(setup, 1.0)), daemon=True).start()
        return Candidate(ours, self.output)

    def _answer(self, channel: Connection, rate: float | str) -> None:
        with channel, suppress(EOFError, OSError):
            while channel.recv():
                if rate == "dies":
                    return
                speed = self.speeds[self.asked % len(self.speeds)]
                self.asked += 1
                time.sleep(self.pause)
                answer = {"failed": rate} if isinstance(rate, str) else {"steps": rate * speed, "seconds": 1.0}
                channel.send({**answer, "shares": {}})


def search(rates, speeds=(1.0,), seconds=0.5, setups=None, base=BASE, pause=0.0):
    crowd = Crowd(rates, list(speeds), pause)
    setups = every_setup(BASE, 2, False) if setups is None else setups
    found = Search(crowd.start, base, setups, 2, seconds, Display(None, "none"))
    found.run()
    return found


def test_the_fastest_wins_and_the_table_shows_it_first():
    fast = Setup("serial", 1, "fused", 4, 8, 2)
    found = search({BASE: 100.0, fast: 150.0}, seconds=30.0)
    assert found.untried == 0  # each answers at once, so there is time for all
    assert found.winner().setup == fast
    assert found.winner().ratio(found.trials[BASE]) == pytest.approx(1.5)
    first, second = table(found)[1:3]
    assert first.split()[:2] == [">", "serial"]
    assert "1.50" in first
    assert second.split()[0] == "="


def test_a_gain_within_the_noise_keeps_the_config():
    fast = Setup("serial", 1, "fused", 4, 8, 2)
    found = search({BASE: 100.0, fast: 102.0}, setups=[fast])
    assert found.winner().setup == BASE
    assert verdict(found)[0].startswith("the config's own setting is the fastest of the 2 tried")
    found = search({BASE: 100.0, fast: 150.0}, setups=[fast])
    assert verdict(found) == [f"fastest of the 2 tried: {fast}"]


def test_what_was_not_tried_adds_up_with_the_table_and_has_its_price():
    # 0.5 s: 0.3 s of them for trials that take 0.2 s each, so that there is time for two, the config's own among them
    setups = every_setup(BASE, 2, False)
    found = search({}, setups=setups, pause=0.2)
    tried = len(table(found)) - 2  # without the head and the config as it is
    assert 1 <= tried == len(setups) - found.untried
    (line,) = (line for line in remarks(found) if "not tried" in line)
    assert f"{tried} of {len(setups)} candidates were tried" in line
    assert f"{found.untried} were not tried for want of time" in line
    assert f"--seconds {found.seconds_for_all}" in line


def test_the_time_for_all_is_that_of_their_starts_and_trials():
    # 12 setups; a start of 1 s, then a thirtieth of the time: 0.6 S >= 12 (1 + S / 30) from S = 60 on
    assert seconds_for(12, 1.0) == 60
    # 36 setups: trials are 5 s long at most, from S = 150 on: 0.6 S >= 36 (1 + 5) from S = 360 on
    assert seconds_for(36, 1.0) == 360


def test_a_ratio_of_short_trials_is_marked():
    """Candidates that did not come to the finals are compared with the config's own trial: with another base."""
    winner, loser = Setup("serial", 1, "fused", 4, 8, 2), Setup("serial", 1, "fused", 8, 4, 2)
    found = search({}, setups=[])
    base = found.trials[BASE] = Trial(BASE, rates=[100.0], finals=[120.0, 120.0])
    found.trials[winner] = Trial(winner, rates=[120.0], finals=[132.0, 132.0])
    found.trials[loser] = Trial(loser, rates=[115.0])
    rows = {line.split()[0]: line for line in table(found)[1:]}
    assert " 1.10 " in rows[">"]
    assert " ~1.15 " in rows["serial"]
    assert any(line.startswith("~: ") for line in remarks(found))
    del found.trials[loser]
    assert not any(line.startswith("~: ") for line in remarks(found))
    assert base.ratio(base) == 1.0


def test_asynchronous_results_are_not_compared():
    """No two runs are equal, so that a column would say nothing."""
    base = Setup("processes", 1, "fused", 2, 12, 1, unrolls=2)
    other = Setup("processes", 1, "fused", 4, 6, 2, unrolls=4)
    assert other.effect(base) == ""
    found = search({}, setups=[other], base=base)
    assert "results" not in table(found)[0]
    assert not any("results" in line for line in remarks(found))
    assert "results" in table(search({}, setups=[]))[0]
    notes = _notes(Path("a.yaml"), [], {"processor": "p", "cores": 2, "commit": ""}, 1.0, found)
    assert not any("results" in line for line in notes)


def test_candidates_that_fail_are_rows_and_not_the_end():
    refused, dead, fine = (Setup("serial", 1, "fused", groups, 32 // groups, 1) for groups in (1, 2, 4))
    found = search({BASE: 100.0, refused: "env.id: no\nsuch", dead: "dies", fine: 200.0}, setups=[refused, dead, fine])
    assert found.winner().setup == fine
    lines = "\n".join(table(found))
    assert "failed: env.id: no such" in lines
    assert "failed: its process died" in lines
    assert not any("not tried" in line for line in remarks(found))


def test_none_wins_if_all_fail():
    assert search({BASE: "broken"}, setups=[]).winner() is None


def test_a_machine_that_changes_its_speed_does_so_for_all_finalists():
    # Passes go there and back (A B, B A), and the speed halves and doubles: pass by pass the ratio stays 1.1.
    fast = Setup("serial", 1, "fused", 4, 8, 2)
    found = search({BASE: 100.0, fast: 110.0}, speeds=[1.0, 1.0, 0.5, 0.5, 2.0, 2.0], setups=[fast])
    assert found.trials[fast].ratio(found.trials[BASE]) == pytest.approx(1.1)


def test_finalists_are_compared_pass_by_pass():
    # 100/50, 10/20 and 100/100 have the median 1; the medians 100 and 50 alone would say 2
    ours, theirs = (Trial(BASE, rates=[1.0], finals=finals) for finals in ([100.0, 10.0, 100.0], [50.0, 20.0, 100.0]))
    assert ours.ratio(theirs) == 1.0


# The file


def test_only_a_file_of_its_own_is_replaced(tmp_path):
    mine = write(tmp_path / "mine.yaml", "seed: 1\n")
    with pytest.raises(Refused, match="wasn't written by rollmill tune"):
        fragment_path(Path("a.yaml"), mine)
    with pytest.raises(Refused, match="no folder"):
        fragment_path(Path("a.yaml"), tmp_path / "nowhere" / "a.yaml")
    fresh = tmp_path / "fresh.yaml"
    write_fragment(fresh, {"runtime.threads.learner": 2, "runtime.workers": 3}, ["a note"])
    assert YAML(typ="safe").load(fresh) == {"runtime": {"threads": {"learner": 2}, "workers": 3}}
    assert fragment_path(Path("a.yaml"), fresh) == fresh


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "-1"]])
def test_no_time_is_refused(tmp_path, words, capsys):
    assert main(["tune", str(write(tmp_path / "a.yaml", SMALL)), *words]) == 2
    assert "--seconds" in capsys.readouterr().err


# The real thing


def left_behind() -> list[str]:
    return [str(path) for path in Path(tempfile.gettempdir()).glob("rollmill-tune-*")]


@pytest.mark.slow
def test_tuning_writes_a_file_that_training_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    config, out = write(tmp_path / "a.yaml", SMALL), tmp_path / "fast.yaml"
    assert main(["tune", str(config), "--seconds", "0.5", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    measured = [entry for entry in record["candidates"] if not entry["failed"]]
    assert len(measured) >= 2
    assert all(entry["steps_per_second"] > 0 for entry in measured)
    assert record["fastest"] == record["candidates"][0]["changes"] or record["fastest"] == {}
    assert left_behind() == []
    assert not [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert main(["train", str(config), "--with", str(out), "--run", str(tmp_path / "run")]) == 0
    assert out.read_text().startswith("# Written by rollmill tune")


@pytest.mark.slow
def test_if_nothing_can_be_measured_the_reason_is_told(tmp_path, capsys):
    (tmp_path / "broken.py").write_text(
        "import gymnasium as gym\n"
        "class Env(gym.Env):\n"
        "    observation_space, action_space = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2)\n"
        "    count = 0\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return self.observation_space.low, {}\n"
        "    def step(self, action):\n"
        "        self.count += 1\n"
        "        if self.count > 100: raise RuntimeError('the motor burns')\n"
        "        return self.observation_space.low, 0.0, False, False, {}\n"
    )
    values = {**SMALL, "env": {"id": f"{tmp_path}/broken.py:Env", "groups": 1, "group_size": 1, "time_limit": 900}}
    values["algorithm"] = {"name": "ppo", "unroll": 512, "minibatch": 512}
    config = write(tmp_path / "a.yaml", values)
    assert main(["tune", str(config), "--seconds", "0.5", "--out", str(tmp_path / "fast.yaml")]) == 1
    ended = capsys.readouterr()
    assert "the motor burns" in ended.err
    assert "failed: " in ended.out
    assert not (tmp_path / "fast.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.prove)])
def test_an_interrupted_tuning_leaves_nothing(tmp_path, number):
    config, scratch = write(tmp_path / "a.yaml", SMALL), tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-m", "rollmill", "tune", str(config), "runtime.kind=processes", "--seconds", "60"]
    with (tmp_path / "output").open("wb") as output:
        tuner = subprocess.Popen(words, cwd=tmp_path, env=os.environ | {"TMPDIR": str(scratch)}, stdout=output)
    try:
        family = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any("forkserver" in " ".join(words) for _, words in family):
            time.sleep(0.1)
            family = members(tuner.pid)
        assert len(family) >= 3  # the server, a candidate, its forkserver
        tuner.send_signal(number)
        assert tuner.wait(20) == (130 if number == signal.SIGINT else -number)
        gone_by = time.monotonic() + 20
        while any(child.is_running() for child, _ in family) and time.monotonic() < gone_by:
            time.sleep(0.1)
        assert not [words for child, words in family if child.is_running() and child.status() != "zombie"]
        assert not list(scratch.iterdir())
        assert not (tmp_path / "a.tuned.yaml").exists()
    finally:
        tuner.kill()
        tuner.wait()


def members(pid: int) -> list[tuple[psutil.Process, list[str]]]:
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            found.append((child, child.cmdline()))
    return found
