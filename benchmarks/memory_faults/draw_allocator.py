"""Draws how the caching allocator masks an overrun, from the journals of two runs of one program.

`python benchmarks/memory_faults/draw_allocator.py RECORDING out.svg`: RECORDING is what `run.py` wrote for
the program. `cached/` holds a run with the allocator as it is, `located/` the run under memcheck, in which
each tensor has an allocation of its own. All addresses and sizes are those of the journals.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from mcp_server.logs.journal import JournalLaunch, TensorFacts, read_journal_file  # noqa: E402

WIDTH, ROW, LEFT = 900, 130, 20
AROUND = 3  # the view is this many times as wide as the tensor that was missed


@dataclass(frozen=True)
class Span:
    """The memory behind one tensor variable, and the launches (places in the call) between which it was seen.

    Variables that follow each other in one allocation are spans of their own.
    """

    name: str
    first: int
    last: int
    tensor: TensorFacts

    @property
    def start(self) -> int:
        return self.tensor.storage_start

    @property
    def end(self) -> int:
        return self.tensor.storage_end


@dataclass(frozen=True)
class Scene:
    """One run: tensors by address, the one that was missed, and where the access landed in this run."""

    title: str
    spans: tuple[Span, ...]
    missed: Span
    address: int


def main(recording: Path, target: Path) -> None:
    """Raises `ValueError` when the recording holds no located fault with an address."""
    fault = json.loads((recording / "located.json").read_text())["fault"]
    missed, offset = fault["missed"], _offset(fault)
    scenes = [
        _scene("caching allocator on", recording / "cached", missed["variable"], fault, offset),
        _scene(
            "caching allocator off, under memcheck", recording / "located", missed["variable"], fault, offset
        ),
    ]
    target.write_text("\n".join(_svg(scenes)))


def _offset(fault: dict[str, object]) -> int:
    """Bytes of the access from the first element."""
    missed = fault["missed"]
    assert isinstance(missed, dict)
    if missed.get("side") not in ("before", "after"):
        raise ValueError("the fault has no address beside a tensor")
    outside = int(missed.get("bytes_outside", 0))
    return -outside if missed["side"] == "before" else int(missed["holds_bytes"]) + outside


def _spans(launches: Iterable[JournalLaunch]) -> tuple[Span, ...]:
    """One span for each variable and storage, from the first launch that had it to the last."""
    found: dict[tuple[str, int, int], Span] = {}
    for launch in sorted(launches, key=lambda one: one.sequence):
        for argument in launch.arguments:
            tensor = argument.tensor
            if tensor is None or not tensor.storage_bytes:
                continue
            key = (argument.name, tensor.storage_start, tensor.storage_bytes)
            old = found.get(key)
            new = Span(argument.name, launch.sequence, launch.sequence, tensor)
            found[key] = new if old is None else replace(old, last=launch.sequence)
    return tuple(found.values())


def _scene(title: str, directory: Path, variable: str, fault: dict[str, object], offset: int) -> Scene:
    place = fault["launch"]
    assert isinstance(place, dict)
    journal = read_journal_file(next(iter(sorted(directory.rglob("launches.jsonl")))))
    launches = [one for one in journal.launches if one.launch <= int(place["index"])]
    spans = _spans(launches)
    missed = next(span for span in reversed(spans) if span.name == variable)
    return Scene(title, _near(spans, missed), missed, missed.tensor.pointer + offset)


def _near(spans: tuple[Span, ...], missed: Span) -> tuple[Span, ...]:
    reach = AROUND * (missed.end - missed.start)
    return tuple(s for s in spans if s.end > missed.start - reach and s.start < missed.end + reach)


def _svg(scenes: list[Scene]) -> Iterator[str]:
    height = ROW * len(scenes) + 20
    size = f'width="{WIDTH}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    for number, scene in enumerate(scenes):
        yield from _row(scene, number * ROW + 20)
    yield "</svg>"


def _row(scene: Scene, top: int) -> Iterator[str]:
    reach = AROUND * (scene.missed.end - scene.missed.start)
    low, high = scene.missed.start - reach, scene.missed.end + reach

    def at(address: int) -> float:
        inside = min(max(address, low), high)
        return round(LEFT + (inside - low) / (high - low) * (WIDTH - 2 * LEFT), 1)

    yield _text(LEFT, top, f"{scene.title}: {_relation(scene)}", 13)
    yield f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{top + 70}" y2="{top + 70}" stroke="#999"/>'
    for span in scene.spans:
        colour = "#f5b971" if span == scene.missed else "#9fc5e8"
        x, width = at(span.start), max(at(span.end) - at(span.start), 1.0)
        yield f'<rect x="{x}" y="{top + 35}" width="{width}" height="35" fill="{colour}" stroke="#555"/>'
        yield _text(x, top + 30, f"{span.name} {span.tensor.storage_bytes} B", 10)
        yield _text(x, top + 84, f"{span.start:#x}", 9)
    x = at(scene.address)
    yield f'<line x1="{x}" x2="{x}" y1="{top + 25}" y2="{top + 95}" stroke="#c00" stroke-width="2"/>'
    yield _text(x + 4, top + 100, f"access {scene.address:#x}", 10)


def _relation(scene: Scene) -> str:
    hit = next((s for s in scene.spans if s.start <= scene.address < s.end and s != scene.missed), None)
    if hit is not None:
        return f"the access lands in {hit.name}"
    return "the access lands in no tensor of the call"


def _text(x: float, y: float, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{html.escape(text)}</text>'


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
