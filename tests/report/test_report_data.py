"""What a report is made from: which runs belong together, and their curves."""

from __future__ import annotations

import json

import pytest
from run_files import write_run

from rollmill.errors import Refused
from rollmill.report.charts import group_curve, return_chart, return_line, speed_line
from rollmill.report.groups import differences, gather
from rollmill.report.media import MediaBudget, media_of


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path):
    runs = [write_run(tmp_path / "ppo" / f"seed-{seed}", seed) for seed in (10, 9)]
    runs.append(write_run(tmp_path / "ppo-seed3-20261116", 3, console="none"))  # how it was watched doesn't count
    other = write_run(tmp_path / "slow", 1, rate=0.2)
    first, second = gather([*runs, other])
    assert [run.seed for run in first.runs] == [3, 9, 10]
    assert second.label == "slow"
    assert differences([first, second]) == {"algorithm.learning_rate": [0.1, 0.2]}


def test_a_group_is_named_after_what_its_folders_have_in_common(tmp_path):
    seeds = [write_run(tmp_path / "ppo" / f"seed-{seed}", seed, rate=0.2) for seed in (1, 2)]
    named = [write_run(tmp_path / f"ppo-cartpole-seed{seed}-2026", seed) for seed in (1, 2)]
    twins = [write_run(tmp_path / part / "ppo", 1, rate=rate) for part, rate in (("a", 0.3), ("b", 0.4))]
    labels = [group.label for group in gather([*seeds, *named, *twins])]
    assert labels == ["ppo", "ppo-cartpole", "ppo (2)", "ppo (3)"]


def test_a_folder_of_seeds_counts_as_its_runs_once(tmp_path):
    folder = tmp_path / "many"
    for seed in (1, 2):
        write_run(folder / f"seed-{seed}", seed)
    (folder / "seeds.json").write_text(json.dumps({"seeds": [1, 2, 3]}))  # the third hasn't begun
    (group,) = gather([folder, folder / "seed-1"])
    assert [run.path.name for run in group.runs] == ["seed-1", "seed-2"]
    (folder / "seeds.json").write_text("{")
    assert len(gather([folder])[0].runs) == 2


def test_a_curve_is_the_running_mean_at_the_last_episode_of_each_update(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "episodes.csv").write_text(
        "env_steps,seconds,return,length,truncated\n100,6,10,7,0\n100,6,20,7,0\n200,12,60,7,0\n300,18,7"
    )
    (group,) = gather([run])
    line = return_line(group.runs[0])
    assert line.steps.tolist() == [100, 200]  # the last row was cut short
    assert line.values.tolist() == [15, 30]  # (10 + 20) / 2, (10 + 20 + 60) / 3
    assert line.minutes.tolist() == [0.1, 0.2]
    assert speed_line(group.runs[0]).values.tolist() == [11, 12, 13]


def test_the_mean_of_a_group_is_taken_where_its_runs_are(tmp_path):
    folders = [
        write_run(tmp_path / "seed-1", 1, [0.0, 0.0, 0.0]),
        write_run(tmp_path / "seed-2", 2, [3.0, 3.0], status="done"),
        write_run(tmp_path / "seed-3", 3, [6.0, 6.0], status="failed"),
    ]
    (group,) = gather(folders)
    curve = group_curve(group.runs, [return_line(run) for run in group.runs], "steps")
    assert (curve["x"][0], curve["x"][-1]) == (100, 300)
    assert (curve["mean"][0], curve["count"][0]) == (3.0, 3)
    # s = 3, 4.3027 · 3 / √3 = 7.4525
    assert curve["low"][0] == pytest.approx(3 - 7.4525, abs=1e-3)
    assert curve["high"][0] == pytest.approx(3 + 7.4525, abs=1e-3)
    # at 300 the one that is done keeps its 3, the one that failed is gone; two have no interval
    assert (curve["mean"][-1], curve["count"][-1], curve["low"][-1]) == (1.5, 2, None)


def test_baselines_and_evaluations_are_drawn_where_there_are_any(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "evaluations.csv").write_text("env_steps,episodes,mean,low,high,seconds\n200,10,40,35,45,1.5\n")
    folder = run / "evaluations" / "final"
    folder.mkdir(parents=True)
    players = {
        "scripted:push": {"mean": 99.0, "episodes": 10},
        "constant:0": {"mean": 9.0},
        "constant:1": {"mean": 11.0},
    }
    record = {
        "status": "done",
        "player": "policy:greedy",
        "mean": 200.0,
        "low": 190,
        "high": 210,
        "episodes": 20,
        "env_steps": 300,
        "baselines": players,
    }
    (folder / "evaluation.json").write_text(json.dumps(record))
    cut = run / "evaluations" / "interrupted"
    cut.mkdir()
    (cut / "evaluation.json").write_text(json.dumps({**record, "mean": -2, "status": "interrupted"}))
    changed = run / "evaluations" / "in-a-changed-environment"
    changed.mkdir()
    (changed / "evaluation.json").write_text(json.dumps({**record, "mean": -1, "overrides": ["env.time_limit=5"]}))
    (group,) = gather([run])
    greedy, *others = group.runs[0].players
    assert (greedy.label, greedy.mean, greedy.low, greedy.high) == ("policy:greedy", 200, 190, 210)
    assert [player.label for player in others] == list(players)
    chart = return_chart([group], [0], is_detailed=True)
    assert {level["label"]: level["y"] for level in chart["levels"]} == {
        "random policy": 5.0,
        "scripted:push": 99.0,
        "best constant:1": 11.0,
    }
    mark, last = chart["series"][0]["marks"]
    assert (last["steps"], last["y"]) == (300, 200)
    assert (mark["steps"], mark["y"], mark["low"], mark["high"]) == (200, 40, 35, 45)
    assert mark["minutes"] == pytest.approx(0.2)


@pytest.mark.parametrize("damage", ["summary.json", "config.yaml", "episodes.csv", "metrics.csv"])
def test_a_damaged_run_is_shown_with_what_is_left(tmp_path, damage):
    good, bad = write_run(tmp_path / "good", 1), write_run(tmp_path / "bad", 2)
    (bad / damage).write_bytes(b'\x00{"\xff')
    groups = gather([good, bad])
    (found,) = [run for group in groups for run in group.runs if run.path == bad]
    assert bool(found.complaints) == (damage in ("summary.json", "config.yaml"))
    assert found.status == ("damaged" if damage == "summary.json" else "done")
    assert not found.is_empty


def test_empty_runs_are_refused_unless_others_have_something_to_show(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text("{}")
    with pytest.raises(Refused, match=r"empty \(running\) has made no update, so there is nothing to show"):
        gather([empty])
    assert len(gather([empty, write_run(tmp_path / "run")])) == 2


def test_the_best_run_may_have_a_return_of_zero(tmp_path):
    """Returns of -5 and 0: zero is the higher one, though it counts as nothing elsewhere in Python."""
    worse = write_run(tmp_path / "seed-1", 1, (-5.0, -5.0))
    best = write_run(tmp_path / "seed-2", 2, (0.0, 0.0))
    for run in (worse, best):
        (run / "curve.png").write_bytes(b"png")
    (group,) = gather([worse, best])
    assert [medium.file for medium in media_of(group, MediaBudget())] == [best / "curve.png"]
