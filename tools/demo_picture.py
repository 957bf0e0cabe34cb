"""Writes docs/demo.svg, shown in the README, from what `make demo` prints; run that first.

The picture loads nothing: text in the viewer's own monospace font, and an animation in CSS.
"""

import re
import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

from tools.made import MADE

ROOT = Path(__file__).resolve().parent.parent
DEMO = MADE / "demo"
TARGET = ROOT / "docs" / "demo.svg"
WIDTH, ROW, LEFT, TOP = 118, 19, 18, 30
COLOURS = (
    (re.compile(r"^\$ "), "#8be9fd"),
    (re.compile(r"^FAULT"), "#ff6e6e"),
    (re.compile(r"^ +\+ "), "#50fa7b"),
    (re.compile(r"^ +- "), "#ff9580"),
    (re.compile(r"^(?:Where|Kernel|Fix|Confirmed)\b"), "#f1fa8c"),
)
LABELLED = re.compile(r"^(?:[A-Z]\w*)? {2,}")
END = re.compile(r"^(?:Reproduce|Next|Cost)\b")  # differs from run to run


def printed() -> list[str]:
    """The command and its verdict up to the confirmation, with paths as a user in that folder sees them."""
    argv = [str(Path(sys.executable).with_name("aoti-debug")), "diagnose", "ranker.pt2", "--inputs", "bad.pt"]
    done = subprocess.run(argv, cwd=DEMO, capture_output=True, text=True, check=False)
    lines = ["$ aoti-debug diagnose ranker.pt2 --inputs bad.pt", ""]
    for line in done.stdout.replace(f"{DEMO}/", "").replace(f"{ROOT}/examples/", "").splitlines():
        if END.match(line):
            break
        label = LABELLED.match(line)
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=" " * len(label[0]) if label else "")
    return lines


def drawn(lines: list[str]) -> str:
    """One text element for each line; each appears a moment after the last."""
    height, width = TOP + ROW * len(lines), round(LEFT * 2 + WIDTH * 8.1)
    rows = []
    for number, line in enumerate(lines):
        colour = next((colour for pattern, colour in COLOURS if pattern.match(line)), "#e6e9ef")
        delay = 0.0 if number == 0 else 0.8 + 0.12 * number
        place = f'x="{LEFT}" y="{TOP + ROW * number}" fill="{colour}"'
        rows.append(f'<text {place} style="animation-delay:{delay:.2f}s">{escape(line)}</text>')
    style = (
        "text{font:13.4px ui-monospace,Menlo,Consolas,monospace;white-space:pre;animation:show .2s both}"
        "@keyframes show{from{opacity:0}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    title = "aoti-debug diagnoses an index out of bounds in a package"
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="#1f2430"/>'
    return "\n".join([f'{head} aria-label="{title}">', f"<style>{style}</style>", frame, *rows, "</svg>", ""])


if __name__ == "__main__":
    TARGET.write_text(drawn(printed()), encoding="utf-8")
