"""Everything that another engineer needs to see a diagnosis again, in one zip."""

from __future__ import annotations

import hashlib
import json
import shlex
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcp_server import __version__
from mcp_server.diagnosis.subject import FILE as SUBJECT_FILE
from mcp_server.diagnosis.subject import Subject
from mcp_server.errors import ProblemError
from mcp_server.model import Artifact, Record, Verdict
from mcp_server.report.page import FILE as PAGE_FILE
from mcp_server.report.page import Report, page
from mcp_server.report.redact import SECRET_NAME, Redactor
from mcp_server.report.source import LOG_FILE, PACKAGE_FILE, VERDICT_FILE, Source, report_of
from mcp_server.tools.requests import OPERATORS

MANIFEST = "manifest.json"
README = "README.md"
INPUTS_FILE = "inputs/inputs.pt"
DEFAULT_LIMIT_BYTES = 64 << 20
CHUNK = 1 << 20

# Of each step: what was asked, what was told, what was printed.
STEP_FILES = ("request.json", "report.jsonl", "output.log")
STEP_LOG_LIMIT = 4 << 20

Redact = Callable[[str], str]


class Bundled(Record):
    """What was packed, what was too large for it, and which files were copied unchanged."""

    bundle: Artifact
    files: list[str]
    left_out: list[str]
    as_they_are: list[str]


@dataclass(frozen=True)
class Member:
    """One file of the bundle: a text, or a file that is copied as it is."""

    name: str
    text: str | None = None
    file: Path | None = None

    def chunks(self) -> Iterator[bytes]:
        if self.file is None:
            yield (self.text or "").encode("utf-8", "replace")
            return
        with self.file.open("rb") as file:
            yield from iter(lambda: file.read(CHUNK), b"")


def write_bundle(
    source: Source, target: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, redacted: bool = False
) -> Bundled:
    """Pack `source` into the new file `target`; package and inputs when each has at most `limit_bytes`.

    With `redacted`, texts are without paths, hosts, users and addresses; package and inputs are copied as
    they are. Raises ProblemError when `target` is there already or cannot be written.
    """
    redact: Redact = _redactor(source) if redacted else str
    files, left_out = _files(source, limit_bytes)
    members = [*_texts(source, redact, files), *files]
    as_they_are = [member.name for member in files]
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            sums = {member.name: _add(archive, member) for member in members}
            archive.writestr(MANIFEST, _manifest(sums, left_out, redacted, as_they_are))
    except FileExistsError:
        raise ProblemError("the bundle is there already", value=str(target), allowed="a new file") from None
    except OSError as error:
        raise ProblemError(f"the bundle cannot be written: {error.strerror}", value=str(target)) from error
    made = Artifact(uri=target.absolute().as_uri(), path=target, bytes=target.stat().st_size, what="bundle")
    return Bundled(bundle=made, files=[*sums, MANIFEST], left_out=left_out, as_they_are=as_they_are)


def _redactor(source: Source) -> Redact:
    """Also takes away what a verdict, which quotes the logs in part, left of their secrets."""
    plain, found = Redactor.of_this_machine(_places(source)), set[str]()
    plain(source.log, found)
    for path in _step_files(source):
        plain(path.read_text(errors="replace"), found)
    return plain.after(found)


def _texts(source: Source, redact: Redact, files: list[Member]) -> Iterator[Member]:
    names = {member.name for member in files}
    yield Member(README, redact(_readme(source, names, redact is not str)))
    yield Member(VERDICT_FILE, _redacted_json(source.verdict.model_dump_json(indent=1), redact))
    yield Member(SUBJECT_FILE, _redacted_json(source.subject.model_dump_json(indent=1), redact))
    shown = report_of(source)
    yield Member(PAGE_FILE, page(shown) if redact is str else page(_redacted(shown, redact)))
    yield Member(LOG_FILE, redact(source.log))
    for path in _step_files(source):
        text = path.read_text(errors="replace")
        hide = _redacted_lines if path.suffix == ".jsonl" else _redacted_json
        text = redact(text) if path.suffix == ".log" else hide(text, redact)
        yield Member(f"steps/{path.parent.name}/{path.name}", text)


def _step_files(source: Source) -> Iterator[Path]:
    """What each step was asked, said and printed, if that is not too much."""
    for directory in _steps(source):
        for path in (*(directory / name for name in STEP_FILES), *sorted(directory.glob("capture-*.jsonl"))):
            if path.is_file() and path.stat().st_size <= STEP_LOG_LIMIT:
                yield path


def _places(source: Source) -> Iterator[Path]:
    """Directories of the workload and of the job."""
    subject = source.subject
    for path in (subject.package, subject.inputs, *_imported(subject)):
        if path is not None:
            yield path.absolute().parent
    if source.directory is not None:
        yield source.directory.absolute()


def _imported(subject: Subject) -> list[Path]:
    """Files to import, also those of which only the operators are taken (`FILE.py#operators`)."""
    return [Path(name.removesuffix(OPERATORS)) for name in subject.extra_imports]


def _steps(source: Source) -> list[Path]:
    if source.directory is None:
        return []
    return sorted(path for path in source.directory.glob("[0-9][0-9]*-*") if path.is_dir())


def _files(source: Source, limit_bytes: int) -> tuple[list[Member], list[str]]:
    """Package, inputs and modules that fit, and a line for each that does not."""
    subject = source.subject
    wanted = [(PACKAGE_FILE, subject.package), (INPUTS_FILE, subject.inputs)]
    wanted += [(f"imports/{path.name}", path) for path in _imported(subject)]
    found, left_out = [], []
    for name, path in wanted:
        if path is None or not path.is_file():
            continue
        size = path.stat().st_size
        if size <= limit_bytes:
            found.append(Member(name, file=path))
        else:
            left_out.append(f"{name}: {size} bytes, more than the {limit_bytes} that were allowed")
    return found, left_out


def _redacted(report: Report, redact: Redact) -> Report:
    verdict = Verdict.model_validate_json(_redacted_json(report.verdict.model_dump_json(), redact))
    environment = {name: redact(value) for name, value in report.environment.items()}
    return Report(verdict, environment, redact(report.picture), redact(report.log), report.shapes)


def _redacted_json(text: str, redact: Redact) -> str:
    """Each text in the JSON by itself, so that it stays JSON."""
    return json.dumps(_walk(json.loads(text), redact), indent=1, ensure_ascii=False)


def _walk(value: object, redact: Redact) -> object:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): _of_name(name, item, redact) for name, item in value.items()}
    return [_walk(item, redact) for item in value] if isinstance(value, list) else value


def _of_name(name: str, value: object, redact: Redact) -> object:
    secret = redact is not str and isinstance(value, str) and SECRET_NAME.search(name)
    return "<secret>" if secret else _walk(value, redact)


def _redacted_lines(text: str, redact: Redact) -> str:
    """Each line as the JSON that it is; one that a crash cut short as text."""
    return "".join(map(partial(_redacted_line, redact=redact), text.splitlines(keepends=True)))


def _redacted_line(line: str, redact: Redact) -> str:
    try:
        return json.dumps(_walk(json.loads(line), redact), ensure_ascii=False) + "\n"
    except ValueError:
        return redact(line)


def _add(archive: zipfile.ZipFile, member: Member) -> dict[str, object]:
    """Write a member; its digest and size."""
    digest, size = hashlib.sha256(), 0
    with archive.open(member.name, "w", force_zip64=True) as out:
        for chunk in member.chunks():
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return {"sha256": digest.hexdigest(), "bytes": size}


def _manifest(
    sums: dict[str, dict[str, object]], left_out: list[str], redacted: bool, as_they_are: list[str]
) -> str:
    facts = {"files": sums, "left_out": left_out, "redacted": redacted, "as_they_are": as_they_are}
    return json.dumps({"aoti-debug": __version__, **facts}, indent=1)


def _readme(source: Source, names: set[str], redacted: bool) -> str:
    verdict = source.verdict
    return README_TEXT.format(
        outcome=f"{verdict.outcome} {verdict.category or ''} ({verdict.confidence})".replace("  ", " "),
        summary=verdict.summary,
        again=_again(source, names),
        private=_private(names, redacted),
        commands="\n".join(f"    {item.command}" for item in verdict.evidence if item.command) or "    none",
    )


def _again(source: Source, names: set[str]) -> str:
    """The command that diagnoses the same call from the unpacked bundle."""
    if PACKAGE_FILE not in names:
        return "The package is not in this bundle: it was too large, or there was none."
    words = ["aoti-debug", "diagnose", PACKAGE_FILE]
    words += ["--inputs", INPUTS_FILE] if INPUTS_FILE in names else []
    words += ["--model-name", source.subject.model_name] if source.subject.model_name != "model" else []
    for name in sorted(name for name in names if name.startswith("imports/")):
        words += ["--extra-imports", name]
    return f"Unpacked, the same call is diagnosed again with\n\n    {shlex.join(words)}"


def _private(names: set[str], redacted: bool) -> str:
    """What the bundle tells of the machine and of the data."""
    copied = "".join(
        f"\n- `{name}`: {what}"
        for start, what in TELLS.items()
        for name in sorted(names)
        if name.startswith(start)
    )
    if not redacted:
        return f"{NOT_REDACTED}\n{copied}" if copied else NOT_REDACTED
    return (
        f"{REDACTED} Copied as they are, so look at them before you hand this on:\n{copied}"
        if copied
        else REDACTED
    )


NOT_REDACTED = (
    "Nothing was redacted: paths, names of hosts and users, and the workload's variables stand as they were."
)
REDACTED = (
    "Texts were redacted: directories, hosts, users, addresses and what looks like a secret. What a program "
    "printed of its data, and names of its files, tensors and functions, are still there."
)
# By the beginning of a member's name: what a copied file tells.
TELLS = {
    "package/": "weights, generated code, compile commands with paths, and lines of the model's source",
    "inputs/": "the values of the call",
    "imports/": "source of the workload's own",
}

README_TEXT = """# A diagnosis of aoti-debug

{outcome}

{summary}

Open `report.html` in a browser, or make it anew with `aoti-debug report BUNDLE --out DIRECTORY`.

{again}

{private}

Loading a package runs the code in it: do so only if you trust where this bundle comes from.

The evidence was seen with these commands; paths are those of the machine where it was gathered:

{commands}

`verdict.json` is what `aoti-debug diagnose --json` prints, `subject.json` the call and its environment,
`steps/` holds what each step was asked and what it said, and `manifest.json` the SHA-256 of every file.
"""
