"""Every code block of the documentation runs, page by page, in the order in which a reader meets them."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"#\s*([\w./]+\.(?:yaml|py))\s*\n")
KNOWN = {"bash", "python", "yaml", "text"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    from rollmill.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for language, text in blocks(page):
        assert language in KNOWN, f"{page.name}: a block in {language} is not run by this test"
        if name := NAMED.match(text):
            Path(name[1]).write_text(text)
        elif language == "python" and "rollmill.portable()" in text:  # here the libraries are loaded already
            subprocess.run([sys.executable, "-c", text], check=True)
        elif language == "python":
            exec(compile(text, str(page), "exec"), {"__name__": "__main__"})
        elif language == "bash":
            for line in text.splitlines():
                run_line(line, main, page)
        elif language == "yaml":
            pytest.fail(f"{page.name}: a YAML block begins with its file's name as a comment, so that it can be used")
    capsys.readouterr()


@pytest.fixture(autouse=True)
def deadline():
    """A page that waits for somebody would hold up everything."""

    def too_long(number, frame):
        raise TimeoutError("the page takes longer than five minutes")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run_line(line, main, page):
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "make":  # CI itself runs these; here it is enough that they exist
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    if words[0] == "source":
        return
    assert words[0] == "rollmill", f"{page.name}: unknown command {words[0]}"
    if "runtime.numerics=portable" in words:
        subprocess.run([sys.executable, "-m", *words], check=True)
        return
    assert main(words[1:]) == 0, f"{page.name}: {line}"


def test_every_page_is_linked_from_the_readme_or_another_page():
    linked = {name for page in PAGES for name in re.findall(r"\(([\w/.]*\w+\.md)\)", page.read_text())}
    names = {Path(name).name for name in linked}
    assert {page.name for page in PAGES[1:]} <= names
