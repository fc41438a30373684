"""Stacks as a flame graph: one SVG file that any browser shows without a network, roots on top, a click zooms in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from rollmill.profiling.stacks import IDLE_THREADS, Stack
from rollmill.sampling import WAITING

WIDTH, ROW, TOP, MARGIN = 1200, 18, 74, 10  # pixels
NARROWEST = 0.0005  # share of the width below which nothing is drawn
CHARACTER = 6.7  # pixels of one in the font below
COLOURS = {
    "env stepping": "#8fd175",
    "inference": "#7cb9e8",
    "loading weights": "#9fc5d8",
    "assembling, copying": "#c3a6e0",
    "forward": "#f6c26b",
    "backward": "#f0915f",
    "optimiser": "#e46f6f",
    "returns, loss": "#f2d98a",
    "batch assembly": "#d9a9c4",
    "publishing": "#b7c38a",
    "waiting": "#d0d3d6",
    "other": "#e6dccb",
}


@dataclass
class Frame:
    """A function below its callers, with all the time that was spent in it or below it."""

    name: str
    seconds: float = 0.0
    children: dict[str, Frame] = field(default_factory=dict)
    activities: dict[str, float] = field(default_factory=dict)

    def add(self, names: Sequence[str], seconds: float, activity: str) -> None:
        """Count a stack below this frame."""
        frame = self
        for name in ("", *names):
            frame = frame.children.setdefault(name, Frame(name)) if name else self
            frame.seconds += seconds
            frame.activities[activity] = frame.activities.get(activity, 0.0) + seconds

    @property
    def colour(self) -> str:
        """That of what is mostly done in it."""
        activity = max(self.activities, key=lambda name: self.activities[name])
        return COLOURS["waiting"] if activity.startswith(WAITING) else COLOURS.get(activity, COLOURS["other"])


def grow(stacks: Sequence[Stack]) -> Frame:
    """The tree of all stacks: processes, their threads, their functions; threads that only wait are left out."""
    root = Frame("all processes")
    for stack in stacks:
        if stack.activity != IDLE_THREADS:
            thread = [] if stack.thread == "MainThread" else [f"thread {stack.thread}"]
            root.add([stack.place, *thread, *stack.frames], stack.seconds, stack.activity)
    return root


def draw(root: Frame, title: str) -> str:
    """The SVG text."""
    shapes: list[str] = []
    depth = _place(root, 0.0, 0, max(root.seconds, 1e-9), shapes)
    height = TOP + ROW * depth + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'preserveAspectRatio="xMidYMin" style="height: auto" '  # as wide as the window, however high that makes it
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>\n'
        f'<text x="{MARGIN}" y="38" fill="#555">Width is time. A click zooms in, a click on the top row out.</text>\n'
        f"{_legend()}"
        f'<g id="frames">\n{"".join(shapes)}</g>\n'
        f"<script><![CDATA[{_SCRIPT}]]></script>\n</svg>\n"
    )


def write_flame_graph(file: Path, stacks: Sequence[Stack], title: str) -> None:
    """Draw the stacks into a file."""
    file.write_text(draw(grow(stacks), title), encoding="utf-8")


def _place(frame: Frame, start: float, level: int, total: float, shapes: list[str]) -> int:
    """Add the shapes of a frame and of all below it; the levels down to the lowest."""
    share = frame.seconds / total
    if share < NARROWEST:
        return level
    inner = WIDTH - 2 * MARGIN
    x, y, width = MARGIN + start * inner, TOP + level * ROW, share * inner
    note = f"{frame.name}: {frame.seconds:.2f} s, {share * 100:.1f} %"
    shapes.append(
        f'<g data-x="{start:.6f}" data-w="{share:.6f}" data-y="{level}" data-n={quoteattr(frame.name)}>'
        f"<title>{escape(note)}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.5, 0.2):.2f}" height="{ROW - 1}" fill="{frame.colour}"/>'
        f'<text x="{x + 3:.2f}" y="{y + 12}">{escape(_fitting(frame.name, width))}</text></g>\n'
    )
    lowest = level + 1
    for child in sorted(frame.children.values(), key=lambda child: child.name):
        lowest = max(lowest, _place(child, start, level + 1, total, shapes))
        start += child.seconds / total
    return lowest


def _fitting(name: str, width: float) -> str:
    """As much of the name as there is room for; the function matters more than its module."""
    room = int((width - 6) / CHARACTER)
    if room < 3:
        return ""
    if len(name) > room:
        name = name.partition(" (")[0].rpartition(":")[2]
    return name if len(name) <= room else name[: room - 1] + "…"


def _legend() -> str:
    parts, x = [], float(MARGIN)
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x:.0f}" y="50" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 13:.0f}" y="59" fill="#333" font-size="10">{escape(name)}</text>')
        x += 13 + 6.1 * len(name) + 12
    return "".join(parts) + "\n"


_SCRIPT = f"""
const frames = [...document.querySelectorAll('#frames > g')];
const inner = {WIDTH - 2 * MARGIN}, margin = {MARGIN}, character = {CHARACTER};
function fitting(name, width) {{
  const room = Math.floor((width - 6) / character);
  if (room < 3) return '';
  if (name.length > room) name = name.split(' (')[0].split(':').pop();
  return name.length <= room ? name : name.slice(0, room - 1) + '…';
}}
function zoom(chosen) {{
  const from = +chosen.dataset.x, span = +chosen.dataset.w, level = +chosen.dataset.y;
  for (const frame of frames) {{
    const start = +frame.dataset.x, share = +frame.dataset.w;
    const isAbove = +frame.dataset.y < level && start <= from + 1e-6 && start + share >= from + span - 1e-6;
    const isWithin = +frame.dataset.y >= level && start >= from - 1e-6 && start + share <= from + span + 1e-6;
    frame.style.display = isAbove || isWithin ? '' : 'none';
    const x = isAbove ? 0 : (start - from) / span, width = inner * (isAbove ? 1 : share / span);
    const [shape, label] = [frame.querySelector('rect'), frame.querySelector('text')];
    shape.setAttribute('x', margin + x * inner);
    shape.setAttribute('width', Math.max(width - 0.5, 0.2));
    shape.style.opacity = isAbove ? 0.5 : 1;
    label.setAttribute('x', margin + x * inner + 3);
    label.textContent = fitting(frame.dataset.n, width);
  }}
}}
for (const frame of frames) {{
  frame.style.cursor = 'pointer';
  frame.addEventListener('click', () => zoom(frame));
}}
"""
