"""What a report is made of: a job, a verdict's file, or a bundle."""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcp_server.diagnosis.subject import FILE as SUBJECT_FILE
from mcp_server.diagnosis.subject import Subject
from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import load
from mcp_server.jobs.store import Store
from mcp_server.json_text import read_json
from mcp_server.model import Verdict
from mcp_server.operations.resumed import HANDLE
from mcp_server.report.page import Report
from mcp_server.report.picture import picture_of

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
    return Report(source.verdict, source.subject.environment, source.picture, source.log)


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
