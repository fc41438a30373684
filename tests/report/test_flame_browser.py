"""The flame graph of `rollmill profile` in a real browser: it is drawn, a click zooms, and nothing is fetched."""

from __future__ import annotations

import pytest
from chromium_pipe import Browser, find_chromium

from rollmill.profiling.flame import write_flame_graph
from rollmill.profiling.stacks import Stack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no browser: install chromium (make set-up does)"),
]

STACKS = [
    Stack("main", "MainThread", ("a:Learner.work", "a:forward"), 3.0),
    Stack("main", "MainThread", ("a:Learner.work", "a:backward"), 1.0),
    Stack("worker.0", "MainThread", ("b:Actor.work",), 4.0),
]
FRAME = "[...document.querySelectorAll('#frames > g')].find(g => g.dataset.n == '{}')"


def test_a_click_zooms_in_and_the_top_row_out(tmp_path):
    write_flame_graph(tmp_path / "flame.svg", STACKS, "a <title> & more")

    def width(name: str) -> float:
        return float(browser.ask(f"{FRAME.format(name)}.querySelector('rect').getAttribute('width')"))

    def click(name: str) -> None:
        browser.ask(f"{FRAME.format(name)}.dispatchEvent(new MouseEvent('click'))")

    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "flame.svg")
        assert width("a:forward") == pytest.approx(3 / 8 * 1180, abs=1)
        click("a:Learner.work")
        assert width("a:forward") == pytest.approx(3 / 4 * 1180, abs=1)
        assert browser.ask(f"{FRAME.format('b:Actor.work')}.style.display") == "none"
        click("all processes")
        assert width("b:Actor.work") == pytest.approx(1 / 2 * 1180, abs=1)
        assert browser.requests == [(tmp_path / "flame.svg").as_uri()]
        assert browser.complaints == []
