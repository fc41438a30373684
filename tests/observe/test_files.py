from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from rollmill.events import Checkpointed, ComponentFailed, Progress, Said, Updated, WorkerReplaced
from rollmill.observe.files import CsvTable, csv_observer, episodes_observer, jsonl_observer
from rollmill.observe.logs import LogObserver
from rollmill.observe.summary import SummaryObserver
from rollmill.persist.writing import AppendedFile, write_atomically


def feed(observer, events) -> None:
    for event in events:
        observer.receive(event)
    observer.close()


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_jsonl_holds_one_object_per_row(tmp_path: Path, run_events) -> None:
    feed(jsonl_observer(tmp_path, 0), run_events(updates=3))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in rows] == [100, 200, 300]
    assert rows[2]["return_ema"] == 31
    assert rows[2]["return_mean_100"] == (10 + 12 + 20 + 22 + 30 + 32) / 6
    assert rows[2]["loss/policy"] == 3


def test_jsonl_is_strict_json_even_with_a_nan(tmp_path: Path) -> None:
    feed(jsonl_observer(tmp_path, 0), [Updated(Progress(), 1, {"loss/policy": math.nan, "kl": 0.5})])
    (row,) = [
        json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert (row["loss/policy"], row["kl"]) == (None, 0.5)


def test_csv_and_jsonl_hold_the_same_rows(tmp_path: Path, run_events) -> None:
    feed(jsonl_observer(tmp_path, 2), run_events())
    feed(csv_observer(tmp_path, 2), run_events())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    table = read_csv(tmp_path / "metrics.csv")
    assert [{key: float(value) for key, value in row.items()} for row in table] == lines
    assert list(table[0])[:9] == [
        "env_steps", "frames", "updates", "seconds", "episodes",
        "return_ema", "return_mean_100", "length_mean_100", "steps_per_second",
    ]  # fmt: skip


def test_a_row_is_on_disk_as_soon_as_it_is_complete(tmp_path: Path, run_events) -> None:
    observer = csv_observer(tmp_path, 0)
    for event in run_events()[:3]:
        observer.receive(event)
    assert len(read_csv(tmp_path / "metrics.csv")) == 1
    observer.close()


def test_a_later_key_becomes_a_column_and_keeps_the_old_rows(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "table.csv")
    table.write_rows([{"a": 1}])
    table.write_rows([{"a": 2, "b": 3}])
    table.write_rows([{"b": 4}])
    table.close()
    assert (tmp_path / "table.csv").read_text() == "a,b\n1,\n2,3\n,4\n"
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_table_that_exists_is_continued_under_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    table = CsvTable(tmp_path / "table.csv")
    table.write_rows([{"b": 3}])
    table.write_rows([{"c": 4}])
    table.close()
    assert (tmp_path / "table.csv").read_text() == "a,b,c\n1,2,\n,3,\n,,4\n"


def test_a_table_that_was_removed_begins_anew_with_its_header(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "table.csv")
    table.write_rows([{"a": 1}])
    (tmp_path / "table.csv").unlink()
    with pytest.raises(FileNotFoundError):
        table.write_rows([{"a": 2}])
    table.write_rows([{"a": 3}])
    table.close()
    assert (tmp_path / "table.csv").read_text() == "a\n3\n"


def test_every_episode_has_its_line(tmp_path: Path, run_events) -> None:
    feed(episodes_observer(tmp_path), run_events(updates=2))
    assert (tmp_path / "episodes.csv").read_text().splitlines() == [
        "env_steps,seconds,return,length,truncated",
        "100,1.0,10.0,50,0", "100,1.0,12.0,50,1", "200,2.0,20.0,50,0", "200,2.0,22.0,50,1",
    ]  # fmt: skip


def test_each_component_has_a_log_that_stays_in_the_folder(tmp_path: Path, run_events) -> None:
    events = run_events(updates=2)
    events[1:1] = [
        Said(Progress(), "worker-0", "stepping"),
        Said(Progress(), "../../outside", "no way out"),
        ComponentFailed(Progress(), "worker-1", "died", "Traceback:\n  boom"),
        WorkerReplaced(Progress(), "worker-2", "exit code 7", "Traceback:\n  bang", 1.26, 0.4, 2),
        Checkpointed(Progress(), "run/checkpoints/000000001", 0.0125),
    ]
    (tmp_path / "run").mkdir()
    feed(LogObserver(tmp_path / "run", 0), events)
    logs = {path.name: path.read_text() for path in (tmp_path / "run" / "logs").iterdir()}
    assert set(logs) == {
        *("run.log", "learner.log", "outside.log"),
        *("worker-0.log", "worker-1.log", "worker-2.log"),
    }
    assert logs["worker-0.log"].endswith(" info    stepping\n")
    assert logs["worker-1.log"].endswith(" error   died\n    Traceback:\n      boom\n")
    replaced = "replaced after 1.3 s, 0.4 s of it replaying episodes (attempt 2): exit code 7"
    assert logs["worker-2.log"].endswith(f" warning {replaced}\n    Traceback:\n      bang\n")
    assert " info    checkpoint run/checkpoints/000000001 in 0.013 s\n" in logs["run.log"]
    assert len(logs["learner.log"].splitlines()) == 2
    assert "loss/policy=2" in logs["learner.log"].splitlines()[1]
    assert "done: 1,000 steps reached" in logs["run.log"]


def test_the_summary_follows_the_run_from_running_to_its_end(tmp_path: Path, run_events) -> None:
    observer = SummaryObserver(tmp_path, interval=5)
    states = []
    for event in run_events(updates=7, summary={"parameters_sha256": "ab" * 32, "returns": {"ema": 9.0}}):
        observer.receive(event)
        summary = json.loads((tmp_path / "summary.json").read_text())
        states.append((summary["status"], summary["env_steps"]))
    # Written at the start, 5 s later, and at the end.
    assert list(dict.fromkeys(states)) == [("running", 0), ("running", 500), ("done", 700)]
    assert summary["random_baseline"] == {"return": 5.0, "std": 2.0, "episodes": 20}
    assert summary["parameters_sha256"] == "ab" * 32
    assert summary["returns"] == {"ema": 9.0}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_running_summary_tells_of_checkpoints_and_replaced_workers(tmp_path: Path, run_events) -> None:
    observer = SummaryObserver(tmp_path, interval=5)
    events = run_events(updates=2)
    now = events[2].progress
    for event in (
        *events[:3],
        WorkerReplaced(now, "worker-1", "killed by SIGKILL", "", 1.5, 0.5, 1),
        Checkpointed(now, "checkpoints/000000001", 0.25),
        Checkpointed(now, "checkpoints/000000002", 0.5),
    ):
        observer.receive(event)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "running"
    assert summary["checkpoints"] == {"written": 2, "last": "checkpoints/000000002", "seconds": 0.75}
    assert summary["failures"]["workers"] == [
        {"place": "worker-1", "reason": "killed by SIGKILL", "seconds": 1.5, "replay_seconds": 0.5, "update": 1}
    ]


def test_how_the_run_ended_is_tried_again_on_closing(tmp_path: Path, run_events) -> None:
    observer = SummaryObserver(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        observer.receive(run_events(updates=2)[-1])
    (tmp_path / "run").mkdir()
    observer.close()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


def test_a_failed_replacement_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    target.mkdir()  # can't be replaced by a file
    with pytest.raises(OSError):
        write_atomically(target, "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_writing_to_a_removed_file_is_an_error(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "rows")
    file.write("a\n")
    file.path.unlink()
    with pytest.raises(FileNotFoundError, match="removed during the run"):
        file.write("b\n")
    file.close()
