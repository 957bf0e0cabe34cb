"""Writes docs/demo.svg: what `make demo` prints, line after line as in a recording. Run `make demo` first.

The picture loads nothing: text in the viewer's own monospace font, and an animation in CSS.
"""

from __future__ import annotations

import re
import subprocess
import sys
from html import escape
from pathlib import Path

from made import MADE

ROOT = Path(__file__).resolve().parent.parent
DEMO = MADE / "demo"
TARGET = ROOT / "docs" / "demo.svg"
WIDTH, ROW, LEFT, TOP = 118, 19, 18, 30
COLOURS = (
    (re.compile(r"^\$ "), "#8be9fd"),
    (re.compile(r"^FAULT"), "#ff6e6e"),
    (re.compile(r"^ +\+ "), "#50fa7b"),
    (re.compile(r"^ +- "), "#ff9580"),
    (re.compile(r"^(?:Guilty|Root cause|Crashed|Crash site|Evidence|Fix|Next)\b"), "#f1fa8c"),
    (re.compile(r"^ +\$ "), "#7d8799"),
)
END = re.compile(r"^(?:Next|Looked at|Checks run|Cost|File)\b")


def printed() -> list[str]:
    """The command and its verdict up to the fix, with paths as a user in that directory sees them."""
    argv = [str(Path(sys.executable).with_name("aoti-debug")), "diagnose", "ranker.pt2", "--inputs", "bad.pt"]
    done = subprocess.run(argv, cwd=DEMO, capture_output=True, text=True, check=False)
    lines = ["$ aoti-debug diagnose ranker.pt2 --inputs bad.pt", ""]
    for line in done.stdout.replace(f"{DEMO}/", "").replace(f"{ROOT}/examples/", "").splitlines():
        if END.match(line):
            break
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
    return lines


def drawn(lines: list[str]) -> str:
    """One text element for each line; each appears a moment after the one before."""
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
