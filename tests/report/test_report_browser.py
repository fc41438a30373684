"""The page in a real browser: two experiments with three seeds each, drawn, read by keyboard, and nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium_pipe import Browser, find_chromium

import rollmill
from rollmill.cli import main

ROOT = Path(__file__).parents[2]
QUICK = {
    "train.steps": 4096,
    "env.group_size": 16,
    "model.hidden": [16],
    "observe.console": "none",
    "observe.tensorboard": False,
    "observe.curve": False,
    "observe.final_episodes": 1,
    "observe.log_interval": 0.0,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no browser: install chromium (make set-up does)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for name in ("ppo", "a2c"):
        for seed in (1, 2, 3):
            config = ROOT / "configs" / name / "cartpole.yaml"
            rollmill.train(config, run=folder / name / f"seed-{seed}", seed=seed, **QUICK)
        (folder / name / "seeds.json").write_text(json.dumps({"seeds": [1, 2, 3]}))
    out = folder / "report.html"
    assert main(["report", str(folder / "ppo"), str(folder / "a2c"), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def count(browser, selector):
    return browser.ask(f"document.querySelectorAll({selector!r}).length")


def test_two_experiments_with_three_seeds_are_drawn(browser, page):
    browser.open(page)
    assert browser.ask("document.querySelector('h1').textContent") == "ppo, a2c on CartPole-v1"
    assert count(browser, "[data-chart=returns-0] path.mean") == 2
    assert count(browser, "[data-chart=returns-0] path.band") == 2
    assert count(browser, "[data-chart=returns-0] line.level") == 1  # the random policy
    for group in (0, 1):
        assert count(browser, f"[data-chart=group-returns-{group}] path.run") == 3
    rows = browser.ask("[...document.querySelectorAll('tbody')].map(body => body.rows.length)")
    assert rows[0] == 2  # groups
    assert rows[2:] == [3, 3]  # seeds
    assert browser.complaints == []


def test_no_request_leaves_the_page(browser, page):
    browser.requests.clear()
    browser.open(page)
    browser.picture()
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.as_uri()}
    # and none could: what the page tries to fetch is refused by its own policy
    assert browser.ask("fetch('data:text/plain,x').then(() => 'fetched', () => 'refused')") == "refused"
    neighbour = page.with_name("neighbour.png")
    neighbour.write_bytes(browser.picture())
    image = "new Promise(end => { const i = new Image(); i.onload = () => end('loaded'); i.onerror = () => end('no');"
    assert browser.ask(f"{image} i.src = {neighbour.as_uri()!r}; }})") == "no"
    browser.complaints.clear()


def test_the_curves_can_be_read_by_mouse_and_keyboard(browser, page):
    browser.open(page)
    tip = "document.querySelector('.tip')?.innerText ?? ''"
    left, top, width, height = browser.ask(
        "(() => { const r = document.querySelector('.plot').getBoundingClientRect();"
        " return [r.x, r.y, r.width, r.height] })()"
    )
    browser.hover(left + width / 2, top + height / 2)
    assert "ppo" in browser.ask(tip)
    assert "a2c" in browser.ask(tip)
    assert "n = 3" in browser.ask(tip)
    browser.hover(2, 2)
    assert browser.ask(tip) == ""
    browser.ask("document.querySelector('.plot').focus()")
    browser.press("Home")
    first = browser.ask(tip)
    browser.press("ArrowRight")
    second = browser.ask(tip)
    assert first != second
    assert "steps" in first
    spoken = browser.ask("document.querySelector('.chart [aria-live]').textContent")
    assert spoken.startswith(second.splitlines()[0])
    browser.press("Escape")
    assert browser.ask(tip) == ""


def test_the_axis_changes_to_wall_time_and_curves_can_be_hidden(browser, page):
    browser.open(page)
    words = "document.querySelector('.plot svg').textContent"
    assert "env steps" in browser.ask(words)
    browser.ask("document.querySelector('input[value=steps]').focus()")
    browser.press("ArrowRight")
    assert "seconds" in browser.ask(words)
    browser.ask("document.querySelector('.keys button').click()")
    assert count(browser, "[data-chart=returns-0] path.mean") == 1
    assert browser.ask("document.querySelector('.keys button').getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_a_phone_and_follows_its_colours(browser, page, is_dark):
    browser.open(page, width=390, height=800, dark=is_dark)
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    red, *_ = browser.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 60 if is_dark else red > 200
    assert len(browser.picture()) > 10_000
