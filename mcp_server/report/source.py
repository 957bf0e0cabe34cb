"""What a report is made of: a job, a verdict's file or a bundle, and a picture of the dataflow."""

from __future__ import annotations

import tempfile
import zipfile
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_server.diagnosis.subject import FILE as SUBJECT_FILE
from mcp_server.diagnosis.subject import Subject
from mcp_server.errors import ProblemError, read_json
from mcp_server.jobs.manager import load
from mcp_server.jobs.store import Store
from mcp_server.model import Component, Verdict
from mcp_server.operations.work import HANDLE
from mcp_server.package.archive import open_package
from mcp_server.package.graph import Arrow, Graph, Node, dataflow_graph, render_svg
from mcp_server.package.problems import PackageError
from mcp_server.package.view import PackageView
from mcp_server.report.page import Report

MOST_ABOVE = 14  # boxes that lead to the launch, nearest first
MOST_BELOW = 3  # and that read from it


def picture_of(verdict: Verdict, package: Path | None, model_name: str) -> str:
    """An SVG of the launches around that of the root cause or crash site; empty when none is known."""
    if package is None:
        return ""
    try:
        view = PackageView(open_package(package, model_name))
        launches = _launches(verdict, view)
        if not launches:
            return ""
        # Uncut: what is shown is chosen from it by distance to the launch.
        whole = dataflow_graph(view, launches, limit=len(view.flow.steps))
    except PackageError:
        return ""
    return render_svg(around(whole, launches, verdict.guilty), "what flows into the launch, and out of it")


def _launches(verdict: Verdict, view: PackageView) -> list[int]:
    """Launches that the verdict names and the package has; else the first that reads the guilty input."""
    if not view.package.wrapper_text:
        return []
    count = len(view.wrapper.launches)
    parties = [p for p in (verdict.crashing, verdict.guilty, *verdict.causes) if p is not None]
    named = dict.fromkeys(p.launch_index for p in parties if p.launch_index is not None)
    found = [number for number in named if 0 <= number < count]
    if found or named:
        return found
    read = (_first_reader(view, p.input_index) for p in parties if p.input_index is not None)
    return list(dict.fromkeys(number for number in read if number is not None))


def _first_reader(view: PackageView, index: int) -> int | None:
    """The first launch that reads an input; None where no launch does."""
    for edge in view.flow.everything().edges:
        if edge.writer is not None or edge.reader.launch is None:
            continue
        buffer = view.flow.root(edge.name)
        if buffer.kind == "input" and buffer == view.wrapper.inputs().get(index):
            return edge.reader.launch
    return None


def around(graph: Graph, launches: Iterable[int], guilty: Component | None) -> Graph:
    """The boxes nearest to the launches, these and the guilty input marked. `left_out` is kept at 0."""
    named = {node.id for node in graph.nodes if node.kind == "launch" and _number(node) in set(launches)}
    above = _nearest(named, _neighbours((a.target, a.source) for a in graph.arrows), MOST_ABOVE)
    below = _nearest(named, _neighbours((a.source, a.target) for a in graph.arrows), MOST_BELOW)
    shown = named | above | below
    marked = named | {n.id for n in graph.nodes if guilty is not None and _is_input(n, guilty)}
    nodes = tuple(replace(n, marked=n.id in marked) for n in graph.nodes if n.id in shown)
    return Graph(nodes, tuple(_kept(graph.arrows, shown, marked)))


def _kept(arrows: Iterable[Arrow], shown: set[str], marked: set[str]) -> Iterable[Arrow]:
    for arrow in arrows:
        if arrow.source in shown and arrow.target in shown:
            yield replace(arrow, marked=arrow.source in marked and arrow.target in marked)


def _number(node: Node) -> int:
    """A launch's box begins with its number."""
    return int(node.lines[0].split()[0])


def _is_input(node: Node, guilty: Component) -> bool:
    return node.kind == "input" and guilty.kind == "input" and guilty.name in node.lines[0]


def _neighbours(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found = defaultdict(list)
    for here, there in pairs:
        found[here].append(there)
    return found


def _nearest(start: set[str], neighbours: Mapping[str, list[str]], most: int) -> set[str]:
    """Up to `most` boxes that can be reached, in breadth."""
    seen, waiting = set(start), deque(sorted(start))
    while waiting and len(seen) < most + len(start):
        for near in neighbours.get(waiting.popleft(), ()):
            if near not in seen and len(seen) < most + len(start):
                seen.add(near)
                waiting.append(near)
    return seen - start


VERDICT_FILE = "verdict.json"
LOG_FILE = "log.txt"
PACKAGE_FILE = "package/model.pt2"
LOG_TAIL = 20_000  # characters
ALLOWED = "the handle of a diagnosis, the file of `diagnose --json`, or a bundle"


@dataclass(frozen=True)
class Source:
    """A verdict with what lies beside it. `directory` is the job's, where there is one on this machine."""

    verdict: Verdict
    subject: Subject
    directory: Path | None = None
    picture: str = ""
    log: str = ""


def read_source(text: str, store: Store) -> Source:
    """The source that `text` names. Raises ProblemError for what is none of the three."""
    handle = HANDLE.fullmatch(text)
    if handle:
        return of_job(store.find(handle[1]).path)
    path = Path(text).expanduser()
    if not path.is_file():
        raise ProblemError("no such job, verdict or bundle", value=text, allowed=ALLOWED)
    if zipfile.is_zipfile(path):
        return _of_bundle(path)
    return of_verdict(_verdict(_json(path.read_bytes(), text), text))


def of_job(directory: Path) -> Source:
    """The diagnosis that ran in that directory. Raises ProblemError when it has no verdict."""
    state = load(directory)
    if state is None or state.result is None:
        raise ProblemError("the job has no result", value=directory.name, allowed=ALLOWED)
    return of_verdict(_verdict(state.result, directory.name))


def of_verdict(verdict: Verdict) -> Source:
    """A verdict, with the job that its artifacts name."""
    paths = [artifact.path for artifact in verdict.artifacts if artifact.path.name == SUBJECT_FILE]
    if not paths or not paths[0].is_file():
        return Source(verdict, Subject())
    subject = Subject.model_validate_json(paths[0].read_bytes())
    picture = picture_of(verdict, subject.package, subject.model_name)
    log = tail(subject.log) if subject.log is not None else ""
    return Source(verdict, subject, paths[0].parent, picture, log)


def report_of(source: Source) -> Report:
    """What the page shows."""
    shapes = {number: tuple(shape) for number, shape in source.subject.shapes.items()}
    return Report(source.verdict, source.subject.environment, source.picture, source.log, shapes)


def tail(log: Path) -> str:
    """The end of a log; empty when it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _of_bundle(path: Path) -> Source:
    """Verdict, subject and log of a bundle; its picture is drawn anew, since anything may lie in a bundle."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        if VERDICT_FILE not in names:
            raise ProblemError("the archive is no bundle", value=str(path), allowed=ALLOWED)
        verdict = _verdict(_json(archive.read(VERDICT_FILE), str(path)), str(path))
        found = archive.read(SUBJECT_FILE) if SUBJECT_FILE in names else b"{}"
        subject = Subject.model_validate_json(found)
        log = archive.read(LOG_FILE).decode("utf-8", "replace") if LOG_FILE in names else ""
        picture = _drawn(archive, verdict, subject) if PACKAGE_FILE in names else ""
    return Source(verdict, subject, None, picture, log[-LOG_TAIL:])


def _drawn(archive: zipfile.ZipFile, verdict: Verdict, subject: Subject) -> str:
    with tempfile.TemporaryDirectory() as directory:
        package = archive.extract(PACKAGE_FILE, directory)
        return picture_of(verdict, Path(package), subject.model_name)


def _json(data: bytes, name: str) -> Any:
    try:
        return read_json(data)
    except ValueError:
        raise ProblemError("the file is not JSON", value=name, allowed=ALLOWED) from None


def _verdict(data: Any, name: str) -> Verdict:
    try:
        return Verdict.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"not a verdict ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        raise ProblemError(what, value=name, allowed=ALLOWED) from None
