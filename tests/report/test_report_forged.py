"""Numbers that can't be drawn, and runs that only look like more of them."""

from __future__ import annotations

import json

import pytest
from run_files import write_run

from rollmill.report.groups import gather
from rollmill.report.page import draw_page
from rollmill.report.run_record import read_run

HUGE = 10**400
FORGED = [
    {"mean": float("inf")},
    {"mean": HUGE},
    {"mean": 5.0, "low": float("-inf"), "high": HUGE, "env_steps": HUGE},
    {"mean": 5.0, "baselines": {"random": {"mean": float("inf")}, "scripted:x": {"mean": HUGE}}},
]


def shown_numbers(page):
    """What the charts are drawn from, as a browser reads it."""
    data = page.partition('id="data">')[2].partition("</script>")[0]
    return json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def write_evaluation(run, name, **record):
    folder = run / "evaluations" / name
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps({"status": "done", "player": "policy:greedy", **record}))


@pytest.mark.parametrize("record", FORGED, ids=lambda record: " ".join(record))
def test_an_evaluation_with_numbers_beyond_all_bounds_is_passed_over(tmp_path, record):
    run = write_run(tmp_path / "run")
    write_evaluation(run, "forged", **record)
    assert shown_numbers(draw_page(gather([run])))


@pytest.mark.parametrize(
    "changes",
    [{"env_steps": HUGE}, {"throughput": {"seconds": float("inf")}}, {"failures": {"workers": 5}}],
    ids=lambda changes: " ".join(changes),
)
def test_a_summary_with_numbers_beyond_all_bounds_is_shown_without_them(tmp_path, changes):
    run = write_run(tmp_path / "run", **changes)
    assert shown_numbers(draw_page(gather([run])))
    assert read_run(run).number(*(("throughput", "seconds") if "throughput" in changes else ("nothing",))) is None


def test_an_evaluation_of_another_player_does_not_hide_that_of_the_policy(tmp_path):
    run = write_run(tmp_path / "run")
    write_evaluation(run, "1", mean=7.0)
    write_evaluation(run, "2", mean=99.0, player="constant:1")
    assert [(player.label, player.mean) for player in read_run(run).players] == [("policy:greedy", 7.0)]


def test_a_run_that_repeats_another_is_not_counted_twice(tmp_path):
    """Three seeds and a copy of one are three values: as four they would make the interval too narrow."""
    runs = [write_run(tmp_path / f"seed-{seed}", seed, [10.0 * seed] * 3) for seed in (1, 2, 3)]
    copy = write_run(tmp_path / "again", 3, [30.0] * 3)
    other = write_run(tmp_path / "other", 3, [60.0] * 3, parameters_sha256="f" * 64)
    (group,) = gather([*runs, copy])
    assert group.numbers("returns", "mean_100") == [10.0, 20.0, 30.0]
    assert f"{copy} repeats it" in draw_page([group])
    (group,) = gather([*runs, other])
    assert len(group.runs) == 4
