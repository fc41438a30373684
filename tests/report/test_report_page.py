"""The page: safe whatever the names in it are, and complete in itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from run_files import write_run

import rollmill.report.media
from rollmill.cli import main
from rollmill.report.groups import gather
from rollmill.report.page import draw_page


class Reader(HTMLParser):
    """Checks that elements are closed in order, and keeps what refers to elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for key, value in attributes if key in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "curve.png").write_bytes(b"picture")
    page = draw_page(gather([run]))
    assert all(reference.startswith(("#", "data:")) for reference in Reader(page).references)
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")  # a name space, which nobody fetches


def test_only_the_script_and_the_style_of_the_page_may_run(tmp_path):
    page = draw_page(gather([write_run(tmp_path / "run")]))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#x27;", "'")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_names_and_messages_can_not_become_code(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    run = write_run(tmp_path / "<b>run", env=json.dumps(evil), reason=f'"{evil}', resume_grade=evil)
    (run / "evaluations" / "final").mkdir(parents=True)
    record = {"status": "done", "mean": 1.0, "player": evil, "baselines": {evil: {"mean": 1.0}}}
    (run / "evaluations" / "final" / "evaluation.json").write_text(json.dumps(record))
    reader = Reader(draw_page(gather([run]), title=evil))
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags


def test_shares_of_the_same_time_are_drawn_as_two_bars(tmp_path):
    time = {"env": 0.61, "inference": 0.12, "learn": 0.82, "wait": 0.18}
    run = write_run(tmp_path / "run", throughput={"seconds": 18.0, "time": time})
    page = draw_page(gather([run]))
    learner, workers = re.findall(r'<svg class="bar".*?</svg>', page, re.DOTALL)
    assert re.findall(r'x="([0-9.]+)%" width="([0-9.]+)%"', learner) == [("0.00", "82.00"), ("82.00", "18.00")]
    assert re.findall(r'x="([0-9.]+)%" width="([0-9.]+)%"', workers) == [("0.00", "61.00"), ("61.00", "12.00")]
    assert page.index("of the learner: ") < page.index("of the workers: ")


def test_a_long_resume_grade_is_in_the_tooltip(tmp_path):
    grade = "exact state, asynchronous: unrolls in flight are lost and made again"
    page = draw_page(gather([write_run(tmp_path / "run", resume_grade=grade)]))
    assert f'<td><span title="{grade}" class="grade">exact state, asynchronous</span></td>' in page
    assert "<td>exact</td>" in draw_page(gather([write_run(tmp_path / "short")]))


def test_the_tables_hold_the_numbers_of_the_summaries(tmp_path):
    runs = [write_run(tmp_path / f"seed-{seed}", seed, [10.0 * seed] * 3) for seed in (1, 2, 3)]
    text = re.sub(r"<[^>]+>", " ", draw_page(gather(runs)))
    # mean 20, s = 10, 4.3027 · 10 / √3 = 24.84
    assert re.search(r"20\.0\s+\[-4\.84, 44\.8\]", text)
    for seed in (1, 2, 3):
        row = rf"{seed}\s+done\s+{seed}0\.0\s+{seed}0\.0\s+50\.0\s+300\s+17\s+0\.30\s+000000000000\s+exact"
        assert re.search(row + r"\s+0123456789\+changes\s+2 of environments", text)
    assert re.search(r"env 25%\s+learn 75%", text)


def test_the_newest_evaluations_video_is_carried_in_the_page_unless_it_is_too_large(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    for name, stamp in (("old", 1), ("new", 2)):
        folder = run / "evaluations" / name / "video"
        folder.mkdir(parents=True)
        (folder / "episode-00000.mp4").write_bytes(name.encode())
        (folder.parent / "evaluation.json").write_text('{"status": "done"}')
        os.utime(folder.parent, (stamp, stamp))
    page = draw_page(gather([run]))
    assert f"data:video/mp4;base64,{base64.b64encode(b'new').decode()}" in page
    assert page.count("<video") == 1
    monkeypatch.setattr(rollmill.report.media, "MOST_OF_ONE", 2)
    page = draw_page(gather([run]))
    assert "<video" not in page
    assert "too large to be carried" in page


def test_the_verb_writes_the_page_and_replaces_its_own_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    assert main(["report", "run", "--title", "My runs"]) == 0
    assert main(["report", "run"]) == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    (tmp_path / "mine.html").write_text("<p>dear diary")
    (tmp_path / "folder").mkdir()
    capsys.readouterr()
    for words, line in {
        ("run", "--out", "mine.html"): "--out mine.html exists and is not a report: choose another file, or remove it",
        ("run", "--out", "folder"): "--out folder is a folder: name a file in it, such as folder/report.html",
        ("rum",): "rum: no such config or run: did you mean 'run'?",
        ("folder",): "folder: not a run (no run.json in it): give a YAML file or a folder that `rollmill train` made",
    }.items():
        assert main(["report", *words]) == 2
        assert capsys.readouterr() == ("", f"rollmill: {line}\n")
    assert (tmp_path / "mine.html").read_text() == "<p>dear diary"


def test_a_report_needs_neither_torch_nor_gymnasium(tmp_path):
    run = write_run(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from rollmill.report.page import write_report;"
        f"write_report([Path({str(run)!r})], Path({str(tmp_path / 'out.html')!r}));"
        "sys.exit(f'loaded {heavy}' if (heavy := {'torch', 'gymnasium', 'matplotlib'} & set(sys.modules)) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("status", ["running", "died", "interrupted", "failed"])
def test_runs_that_have_not_ended_well_are_shown_as_what_they_are(tmp_path, status):
    run = write_run(tmp_path / "run", status=status)
    assert f"1 {status}" in draw_page(gather([run]))
