"""One result of each layout, with everything that a layout may contain, and a parser of report pages."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.kept_files import Subject
from mcp_server.model import (
    Artifact,
    CallNumber,
    Component,
    Confirmed,
    Cost,
    Evidence,
    Fix,
    ModelLocation,
    NextStep,
    Record,
    RuledOut,
    Verdict,
)
from mcp_server.report.bundle import Source
from mcp_server.tools.machine import Checkup


class Launch(Record):
    """Only short fields: a row of a table."""

    index: int
    kernel: str
    shape: list[int]
    note: str | None = None


class Run(Record):
    """One field is too long for a row: a block."""

    number: int
    seconds: float
    failed: bool
    notes: list[str]
    location: ModelLocation | None = None


class Report(Record):
    """The general layout."""

    package: Path
    launches: list[Launch]
    runs: list[Run]
    flags: dict[str, str]
    next_steps: list[NextStep]
    summary: str
    empty: list[str]


LINE = ModelLocation(file="model.py", line=42, code="rows = self.table(ids)")

VERDICT = Verdict(
    outcome="fault",
    category="index_out_of_bounds",
    confidence="proven",
    headline="index out of bounds",
    summary="ids[3, 2] is 1000 [red]\x1b[31m and the table has 1000 rows.",
    call=CallNumber(number=2, of=3),
    eager="same",
    guilty=Component(kind="input", name="ids", input_index=0, value="1000 at [3, 2]", model_locations=[LINE]),
    crashing=Component(
        kind="kernel", name="cpp_fused_embedding_0", launch_index=3, generated_location="kernel.cpp:30"
    ),
    evidence=[
        Evidence(
            step="run",
            fact="index out of bounds: 0 <= tmp4 < 1000L [red]\x1b[31m",
            source="aoti-debug://jobs/job_00000000/01-run/output.log line 2",
            command="aoti-debug run-deterministic m.pt2 --inputs b.pt",
        )
    ],
    ruled_out=[RuledOut(hypothesis="output 0 contains garbage", by="the row of the index explains it")],
    fix=Fix(text="map unknown ids to 0", before="model(ids)", after="model(known(ids))"),
    confirmed=Confirmed(
        what="ids[3, 2] = 999 instead of 1000",
        before="raised: index out of bounds",
        after="returned",
        again="raised: index out of bounds",
        command="aoti-debug try-fix m.pt2 --inputs b.pt --change 'ids: set 999 at 3,2'",
        side_effects="",
        not_for_shipping="A test, not the fix: row 3 would be scored with row 999.",
    ),
    next_steps=[
        NextStep(why="see the launches", tool="trace_launches", arguments={"package": "a b.pt2", "calls": 2}),
        NextStep(
            why="make the call with random inputs",
            tool="diagnose",
            arguments={"inputs": [{"shape": [2]}], "env": {"A": "1"}},
        ),
    ],
    cost=Cost(runs=1, compiles=2, wall_s=4.25),
    artifacts=[Artifact(uri="aoti-debug://jobs/j/log", path=Path("/state/log"), bytes=12, what="output")],
)

REPORT = Report(
    package=Path("m.pt2"),
    launches=[Launch(index=n, kernel=f"k{n}", shape=[8, n]) for n in range(62)],
    runs=[Run(number=1, seconds=0.25, failed=True, notes=["a sentence of its own"], location=LINE)],
    flags={"CUDA_LAUNCH_BLOCKING": "1"},
    next_steps=[
        NextStep(why="look closer", tool="inspect_package", arguments={"package": "m.pt2", "launch": 3})
    ],
    summary="one of one failed",
    empty=[],
)

TORCH = {"name": "torch", "standing": "ok", "found": "2.13.0", "for_what": "every run", "essential": True}
GPU = {"name": "GPU", "standing": "missing", "found": "none", "for_what": "CUDA packages", "how": "get one"}
CHECKUP = Checkup.model_validate(
    {"summary": "missing or limited: GPU", "needs": [TORCH, GPU], "unknown": ["the driver"]}
)

SAMPLES: dict[str, Record] = {"verdict": VERDICT, "report": REPORT, "checkup": CHECKUP}


VOID = frozenset({"meta", "br", "img", "input", "link", "hr"})
SAID = {"format_version", "outcome", "category", "confidence", "eager", "kind", "uri", "path", "tool"}


class Page(HTMLParser):
    """Collects the elements in order, the texts, and nesting errors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"{name} is never closed" for name in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing, line {self.getpos()[0]}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def rewritten(write: Callable[[str], str]) -> Source:
    """A full report with `write` applied to every text."""
    environment = {name: write(name) for name in ("torch", "GPU")}
    return Source(
        Verdict.model_validate(_written(VERDICT.model_dump(mode="json"), write)),
        Subject(environment=environment),
        log=write("log"),
    )


def _written(value: Any, write: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _written(item, write, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item, write, name) for item in value]
    return write(value) if isinstance(value, str) and name not in SAID else value
