"""`rollmill evaluate`: what it leaves behind, whom it lets play, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from small_run import CARTPOLE, train

from rollmill.models.weights import parameters_sha256
from rollmill.persist.newest_weights import find_weights
from rollmill.play.evaluate import evaluate as evaluate_in_python
from rollmill.play.trained_policy import PolicySource, open_subject


def rows(folder: Path) -> list[dict]:
    with (folder / "episodes.csv").open() as file:
        return list(csv.DictReader(file))


def record(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


def test_a_run_is_played_beside_chance_and_constants(run, evaluate, tmp_path):
    code, out, err = evaluate(run, "--episodes", 6, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    told = record(tmp_path / "out")
    assert told["status"] == "done"
    assert set(told["baselines"]) == {"random", "constant:0", "constant:1"}
    mine = [float(row["return"]) for row in rows(tmp_path / "out") if row["player"] == "policy:greedy"]
    assert len(mine) == told["episodes"] == 6
    assert told["mean"] == pytest.approx(np.mean(mine))
    assert told["low"] <= told["mean"] <= told["high"]
    assert told["baselines"]["constant:0"]["max"] < 12  # pushing one way only lets the pole fall within 11 steps
    assert told["provenance"]["weights_sha256"] == parameters_sha256(find_weights(run).arrays)
    assert told["env_steps"] == 512
    for name in ("policy:greedy", "random", "constant:1", "95 % interval"):
        assert name in out


def test_all_players_meet_the_same_episodes(run, evaluate, tmp_path):
    evaluate(run, "--episodes", 5, "--out", tmp_path / "out")
    seeds = {}
    for row in rows(tmp_path / "out"):
        seeds.setdefault(row["player"], []).append(row["seed"])
    assert len(seeds) == 4
    assert len(set(map(tuple, seeds.values()))) == 1
    assert len(set(seeds["random"])) == 5


def test_without_a_run_anybody_can_play(evaluate, tmp_path):
    words = "--policy", "constant:1", "--env", "CartPole-v1", "env.time_limit=5", "--episodes", 3, "--no-baselines"
    code, out, _ = evaluate(*words, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["player"], told["episodes"], told["mean"]) == ("constant:1", 3, 5.0)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [(row["terminated"], row["truncated"]) for row in rows(folder)] == [("0", "1")] * 3


def test_the_environment_may_come_from_a_config(evaluate, tmp_path):
    (tmp_path / "tiny.yaml").write_text(json.dumps(CARTPOLE))
    code, _, _ = evaluate("--policy", "random", "--env", "tiny.yaml", "--episodes", 2, "--no-baselines", "--out", "out")
    assert code == 0
    assert record(tmp_path / "out")["env"] == "CartPole-v1"


def test_a_script_of_the_environment_plays(evaluate, tmp_path):
    words = "--env", "oscillator/bvp", "env.args.neurons=20", "env.time_limit=30", "--episodes", 2, "--no-baselines"
    code, _, err = evaluate("--policy", "scripted:zero", *words, "--out", "out")
    assert code == 0, err
    told = record(tmp_path / "out")
    assert told["player"] == "scripted:zero"
    assert told["examination"], "the environment has a protocol of its own"


def test_a_checkpoint_is_played_with_its_own_weights(run, evaluate, tmp_path):
    first = sorted(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())[0]
    assert evaluate(first, "--episodes", 2, "--no-baselines", "--out", tmp_path / "out")[0] == 0
    told = record(tmp_path / "out")
    assert told["provenance"]["weights_sha256"] == parameters_sha256(find_weights(first).arrays)
    assert told["provenance"]["weights_sha256"] != parameters_sha256(find_weights(run).arrays)
    assert told["run"] == str(run)


def test_the_results_of_a_run_lie_in_it_and_never_on_top_of_each_other(tmp_path, evaluate):
    own = train(tmp_path / "own")
    for _ in range(2):
        assert evaluate(own, "--episodes", 1, "--no-baselines")[0] == 0
    assert len(list((own / "evaluations").iterdir())) == 2


def test_overrides_change_the_environment(run, evaluate, tmp_path):
    code, _, _ = evaluate(run, "env.time_limit=4", "--episodes", 3, "--no-baselines", "--out", tmp_path / "out")
    assert code == 0
    assert {row["length"] for row in rows(tmp_path / "out")} == {"4"}
    assert record(tmp_path / "out")["overrides"] == ["env.time_limit=4"]


def test_steps_are_made_of_the_first_episodes_whatever_ends_first(run, evaluate, tmp_path):
    """As many whole episodes, in the order of their numbers, as it takes; their files and no others."""
    words = run, "--sample", "--no-baselines", "env.group_size=15"
    evaluate(*words, "--episodes", 60, "--out", tmp_path / "many")
    many = [int(row["length"]) for row in rows(tmp_path / "many")]
    longest = int(np.argmax(many[:14]))  # whoever plays beside it and has a higher number is done before
    wanted = sum(many[: longest + 1])
    code, _, err = evaluate(*words, "--steps", wanted, "--dump", "--out", tmp_path / "steps")
    assert code == 0, err
    played = rows(tmp_path / "steps")
    assert [row["episode"] for row in played] == [str(number) for number in range(longest + 1)]
    assert [int(row["length"]) for row in played] == many[: longest + 1]
    assert record(tmp_path / "steps")["steps"] == wanted
    assert len(list((tmp_path / "steps" / "trajectories").iterdir())) == longest + 1


def test_an_episode_is_the_same_in_a_group_of_any_size(evaluate, tmp_path):
    def played(size):
        words = "--policy", "random", "--env", "CartPole-v1", f"env.group_size={size}", "--no-baselines"
        assert evaluate(*words, "--episodes", 12, "--out", tmp_path / str(size))[0] == 0
        return [(row["seed"], row["return"]) for row in rows(tmp_path / str(size))]

    assert played(1) == played(3)


def test_sampling_differs_from_greed_and_repeats_with_the_seed(run, evaluate, tmp_path):
    def returns(name, *words):
        evaluate(run, "--episodes", 8, "--no-baselines", "--out", tmp_path / name, *words)
        return [row["return"] for row in rows(tmp_path / name)]

    sampled = returns("a", "--sample")
    assert sampled == returns("b", "--sample")
    assert sampled != returns("c", "--greedy")
    assert sampled != returns("d", "--sample", "--seed", 1)


def test_in_python(run, tmp_path):
    outcome = evaluate_in_python(run, {"env.time_limit": 3}, episodes=2, baselines=False, out=tmp_path / "out")
    assert (outcome.status, outcome.mean, outcome.path) == ("done", 3.0, tmp_path / "out")


def test_a_recurrent_policy_is_played_with_its_memory(tmp_path, evaluate):
    env = {"id": "probe/memory-cue", "groups": 1, "group_size": 4}
    algorithm = {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 1}
    own = train(tmp_path / "own", env=env, model={"hidden": [16], "memory": "gru"}, algorithm=algorithm)
    for words in ("--greedy", "--sample"):
        code, _, err = evaluate(own, "--episodes", 5, "--out", tmp_path / words.strip("-"), words)
        assert code == 0, err
        assert record(tmp_path / words.strip("-"))["length"] == 6.0


def test_a_failing_environment_is_told_and_the_rest_counts(evaluate, tmp_path):
    (tmp_path / "moody.py").write_text(
        "from rollmill_envs.probe.tracer import Tracer\n"
        "class Moody(Tracer):\n"
        "    def step(self, action):\n"
        "        if self._trace.seed % 3 == 1 and self._trace.step == 0:\n"
        "            raise RuntimeError('not on a third of the days')\n"
        "        return super().step(action)\n"
    )
    code, out, _ = evaluate("--policy", "constant:7", "--env", "moody.py:Moody", "--episodes", 12, "--out", "out")
    assert code == 0
    told = record(tmp_path / "out")
    assert told["episodes"] + told["failed"]["episodes"] >= 12
    assert 0 < told["episodes"] < 12
    assert "not on a third of the days" in told["failed"]["messages"][0]
    assert "not on a third of the days" in out


REFUSED = [
    (["RUN", "--steps", "0"], "--steps 0"),
    (["RUN", "--episodes", "0"], "--episodes 0"),
    (["RUN", "--episodes", "2", "--steps", "2"], "both say when to end"),
    (["RUN", "--workers", "0"], "--workers 0"),
    (["RUN", "--video", "-1"], "--video -1"),
    (["RUN", "--seed", "-1"], "--seed -1"),
    (["RUN", "--grid"], "give --video N too"),
    (["RUN", "--info"], "give --dump too"),
    (["RUN", "train.steps=5"], "train.steps can't be changed"),
    (["RUN", "env.time_limt=5"], "did you mean 'time_limit'"),
    (["RUN", "env.atari.preset=machado"], "env.atari.preset changes nothing in a run; change its values instead"),
    (["RUN", "env.id=CartPole-v7"], "no such environment"),
    (["RUN", "env.id=Pendulum-v1"], "don't fit env.id=Pendulum-v1"),
    (["RUN", "env.id=probe/identity", "--video", "1"], "can't be drawn"),
    (["RUN", "--policy", "randm"], "did you mean 'random'?"),
    (["RUN", "--policy", "constant:9"], "there is no action 9; choose from 0 to 1"),
    (["RUN", "--policy", "constant:left"], "names no action"),
    (["RUN", "--policy", "scripted:hover"], "this environment has none"),
    (["RUN", "--policy", "random", "--sample"], "--sample is for trained policies"),
    (["RUN", "--env", "CartPole-v1"], "the run has its environment"),
    (["--policy", "scripted:zro", "--env", "oscillator/bvp"], "did you mean 'zero'?"),
    (["--policy", "constant:2", "--env", "Pendulum-v1"], None),
    (["--policy", "constant:3", "--env", "Pendulum-v1"], "outside of the actions, -2.0 to 2.0"),
    (["--policy", "random"], "nothing to play"),
    (["--env", "CartPole-v1"], "there is no player"),
    (["--policy", "random", "--env", "CartPole-v7"], "no such environment"),
    (["missing"], "no such run or checkpoint"),
    (["EMPTY"], "has no weights yet"),
    ([".."], "is neither a run"),
    (["RUN", "--out", "full"], "exists and is not empty"),
]


@pytest.mark.parametrize(
    ("words", "wanted"), REFUSED, ids=lambda part: " ".join(part) if isinstance(part, list) else ""
)
def test_bad_input_is_refused_in_a_line_and_nothing_is_written(words, wanted, run, evaluate, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text("{}")
    (empty / "config.yaml").write_text((run / "config.yaml").read_text())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = {*everything(tmp_path), *everything(run)}
    if wanted is None:  # the neighbour of a refusal: just inside
        assert evaluate(*words, "--episodes", 1, "--no-baselines", "env.time_limit=3")[0] == 0
        return
    code, out, err = evaluate(*({"RUN": run, "EMPTY": empty}.get(word, word) for word in words))
    assert code == 2, err
    assert wanted in err
    assert (out, err.count("\n")) == ("", 1)
    assert {*everything(tmp_path), *everything(run)} == before


def everything(folder: Path) -> list[str]:
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in [*names, "."]]


def test_a_checkpoint_in_another_runs_folder_is_refused(run, evaluate, tmp_path):
    other = train(tmp_path / "other", env={"id": "probe/identity", "group_size": 4})
    stray = other / "checkpoints" / "000000099"
    os.symlink(run / "checkpoints" / "latest", stray)  # resolves to the run it was made by, and is played there
    assert evaluate(stray, "--episodes", 1, "--no-baselines", "--out", "out")[0] == 0
    (other / "weights.safetensors").write_bytes((run / "weights.safetensors").read_bytes())
    for checkpoint in (other / "checkpoints").iterdir():
        os.rename(checkpoint, tmp_path / f"moved-{checkpoint.name}")
    code, _, err = evaluate(other, "--episodes", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "don't fit env.id=probe/identity" in err


def test_players_for_other_tools(run):
    from rollmill.envs.config import EnvConfig
    from rollmill.envs.make import make_group

    group = make_group(EnvConfig(id="CartPole-v1"), 3)
    everyone = np.ones(3, bool)
    group.reset(everyone, np.arange(3))
    subject = open_subject(run)
    source = PolicySource(subject.config, group.observation_space, group.action_space)
    source.refresh(subject.read_weights().arrays, run)
    for greedy in (True, False):
        action = source.player(3, greedy)(group, everyone)
        assert action.shape == (3,)
        assert set(action.tolist()) <= {0, 1}
