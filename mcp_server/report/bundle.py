"""A finished diagnosis for other people: one zip with the verdict as text, and all that repeats it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from mcp_server import __version__
from mcp_server.diagnosis.kept_files import Subject
from mcp_server.errors import ProblemError, read_json
from mcp_server.jobs.manager import load
from mcp_server.jobs.store import Store, cause
from mcp_server.model import SUBJECT_FILE, Verdict
from mcp_server.operations.arguments import HANDLE
from mcp_server.render import as_text
from mcp_server.report.redact import SECRET_NAME, Redactor, clean_text, with_texts
from mcp_server.tools.requests import OPERATORS

SHOWS = {
    "package/": "weights, generated code, compile commands with paths, and lines of the model's source",
    "inputs/": "the values of the call",
    "imports/": "source of the workload's own",
}


ABOUT = """\
Loading a package runs the code in it: do so only if you trust where this bundle comes from.

Commands were run on the machine where the evidence was gathered; paths are those of that machine.
`verdict.json` is what `aoti-debug diagnose --json` prints, `subject.json` the call and its environment,
`steps/` holds the request, report and output of each step, and `manifest.json` the SHA-256 of every file."""
REDACTED = (
    "Texts were redacted: directories, hosts, users, addresses and what looks like a secret. What a program "
    "printed of its data, and names of its files, tensors and functions, are still there."
)
NOT_REDACTED = (
    "Nothing was redacted: paths, names of hosts and users, and the workload's variables stand as they were."
)
BACKTICKS = re.compile(r"`+")


@dataclass(frozen=True)
class Source:
    """A verdict with its subject and log. `directory` is the job's, if it is on this machine."""

    verdict: Verdict
    subject: Subject = Subject()  # noqa: RUF009 - frozen
    directory: Path | None = None
    log: str = ""


VERDICT_FILE = "verdict.json"
LOG_FILE = "log.txt"
PACKAGE_FILE = "package/model.pt2"
LOG_TAIL = 20_000  # characters
ALLOWED = "a job handle such as job_1a2b3c4d, which diagnose prints, or a file of diagnose --json"
MANIFEST = "manifest.json"
README = "README.md"
INPUTS_FILE = "inputs/inputs.pt"
DEFAULT_LIMIT_BYTES = 64 << 20
CHUNK = 1 << 20

# The files of each step: the request, the worker's report, the output.
STEP_FILES = ("request.json", "report.jsonl", "output.log")
STEP_LOG_LIMIT = 4 << 20

Redact = Callable[[str], str]


def read_source(text: str, store: Store) -> Source:
    """Read the source that `text` names: a job or a verdict. Raise ProblemError for anything else."""
    handle = HANDLE.fullmatch(text)
    if handle:
        directory = store.find(handle[1]).path
        state = load(directory)
        if state is None or state.result is None:
            raise ProblemError("the job has no result", value=directory.name, allowed=ALLOWED)
        return of_verdict(_verdict(state.result, directory.name))
    path = Path(text).expanduser()
    if not path.is_file():
        raise ProblemError("no such job or verdict", value=text, allowed=ALLOWED)
    return of_verdict(_verdict(path.read_bytes(), text))


def of_verdict(verdict: Verdict) -> Source:
    """Combine a verdict with the job that its artifacts name."""
    paths = [artifact.path for artifact in verdict.artifacts if artifact.path.name == SUBJECT_FILE]
    if not paths or not paths[0].is_file():
        return Source(verdict, Subject())
    subject = Subject.model_validate_json(paths[0].read_bytes())
    log = tail(subject.log) if subject.log is not None else ""
    return Source(verdict, subject, paths[0].parent, log)


def tail(log: Path) -> str:
    """Return the end of a log. Empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _verdict(data: object, name: str) -> Verdict:
    """Parse the verdict in `data`, which may be the bytes of its JSON. Raise ProblemError if invalid."""
    try:
        return Verdict.model_validate(read_json(data) if isinstance(data, bytes) else data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"not a verdict ({'.'.join(map(str, first['loc']))}: {first['msg']})"
    except ValueError:
        what = "the file is not JSON"
    raise ProblemError(what, value=name, allowed=ALLOWED)


Member = tuple[str, str | Path]  # its name, and its text or the file that is copied unchanged


def write_bundle(
    source: Source, target: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, redacted: bool = False
) -> tuple[list[str], list[str]]:
    """Pack `source` into the new file `target`; package and inputs only if each has at most `limit_bytes`.

    With `redacted`, paths, hosts, users and addresses are removed from texts; package and inputs are copied
    unchanged. Return a line for each file that was too large, and the names of the copied files. Raise
    ProblemError if `target` already exists or cannot be written.
    """
    redact: Redact = str
    if redacted:
        # A verdict quotes parts of the logs, so fragments of secrets in these quotes are removed too.
        named = [source.subject.package, source.subject.inputs, *_imported(source.subject)]
        places = [path.absolute().parent for path in named if path is not None]
        places += [source.directory.absolute()] if source.directory is not None else []
        plain, found = Redactor.of_this_machine(places), set[str]()
        plain(source.log, found)
        for path in _step_files(source):
            plain(path.read_text(errors="replace"), found)
        redact = plain.after(found)
    files, left_out = _files(source, limit_bytes)
    members = [*_texts(source, redact, files), *files]
    as_they_are = [name for name, _ in files]
    with (
        new_file(target, "bundle", "a new file"),
        zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive,
    ):
        sums = {name: _add(archive, name, content) for name, content in members}
        facts = {"files": sums, "left_out": left_out, "redacted": redacted, "as_they_are": as_they_are}
        archive.writestr(MANIFEST, json.dumps({"aoti-debug": __version__, **facts}, indent=1))
    return left_out, as_they_are


@contextmanager
def new_file(path: Path, what: str, allowed: str) -> Iterator[None]:
    """Raise ProblemError if the body finds that `path` already exists, or cannot write it."""
    try:
        yield
    except FileExistsError:
        raise ProblemError(f"the {what} is there already", value=str(path), allowed=allowed) from None
    except OSError as error:
        with suppress(OSError):  # a partial file would be in the way of the next attempt
            path.unlink()
        raise ProblemError(f"the {what} cannot be written: {cause(error)}", value=str(path)) from error


def _texts(source: Source, redact: Redact, files: list[Member]) -> Iterator[Member]:
    names = {name for name, _ in files}
    verdict = _redacted_json(source.verdict.model_dump_json(), redact)
    subject = _redacted_json(source.subject.model_dump_json(), redact)
    shown = Source(Verdict.model_validate_json(verdict), Subject.model_validate_json(subject))
    yield README, redact(_readme(shown, names, redact is not str))
    yield VERDICT_FILE, verdict
    yield SUBJECT_FILE, subject
    yield LOG_FILE, redact(source.log)
    for path in _step_files(source):
        text = path.read_text(errors="replace")
        hide = _redacted_lines if path.suffix == ".jsonl" else _redacted_json
        text = redact(text) if path.suffix == ".log" else hide(text, redact)
        yield f"steps/{path.parent.name}/{path.name}", text


def _step_files(source: Source) -> Iterator[Path]:
    """Yield each step's request, reports and output, except files that are too large."""
    if source.directory is None:
        return
    for directory in sorted(path for path in source.directory.glob("[0-9][0-9]*-*") if path.is_dir()):
        for path in (*(directory / name for name in STEP_FILES), *sorted(directory.glob("capture-*.jsonl"))):
            if path.is_file() and path.stat().st_size <= STEP_LOG_LIMIT:
                yield path


def _imported(subject: Subject) -> list[Path]:
    """List the files to import, including files that only supply operators (`FILE.py#operators`)."""
    return [Path(name.removesuffix(OPERATORS)) for name in subject.extra_imports]


def _files(source: Source, limit_bytes: int) -> tuple[list[Member], list[str]]:
    """Return package, inputs and modules that fit, and a line for each file that does not."""
    subject = source.subject
    wanted = [(PACKAGE_FILE, subject.package), (INPUTS_FILE, subject.inputs)]
    wanted += [(f"imports/{path.name}", path) for path in _imported(subject)]
    found: list[Member] = []
    left_out: list[str] = []
    for name, path in wanted:
        if path is None or not path.is_file():
            continue
        size = path.stat().st_size
        if size <= limit_bytes:
            found.append((name, path))
        else:
            left_out.append(f"{name}: {size} bytes, more than the {limit_bytes} that were allowed")
    return found, left_out


def _redacted_json(text: str, redact: Redact, indent: int | None = 1) -> str:
    """Redact each text of the JSON separately, so that it stays JSON. A key may mark its text as a secret."""

    def change(value: str, name: str) -> str:
        return "<secret>" if redact is not str and SECRET_NAME.search(name) else redact(value)

    return json.dumps(with_texts(json.loads(text), change), indent=indent, ensure_ascii=False)


def _redacted_lines(text: str, redact: Redact) -> str:
    """Redact each line as JSON; a line that a crash cut short, as text."""
    lines = []
    for line in text.splitlines(keepends=True):
        try:
            lines.append(_redacted_json(line, redact, None) + "\n")
        except ValueError:
            lines.append(redact(line))
    return "".join(lines)


def _add(archive: zipfile.ZipFile, name: str, content: str | Path) -> dict[str, object]:
    """Write a member and return its digest and size."""
    digest, size = hashlib.sha256(), 0
    source = content.open("rb") if isinstance(content, Path) else io.BytesIO(content.encode(errors="replace"))
    with archive.open(name, "w", force_zip64=True) as out, source as file:
        while chunk := file.read(CHUNK):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return {"sha256": digest.hexdigest(), "bytes": size}


def _readme(source: Source, names: set[str], redacted: bool) -> str:
    """Write what the bundle holds, how to repeat the diagnosis, and the verdict for an issue tracker."""
    verdict, copied = source.verdict, _copied(names)
    parts = ["# A diagnosis of aoti-debug", _fenced(verdict, source.subject.environment)]
    if PACKAGE_FILE in names:
        again = shlex.join(_again(source, names))
        parts += ["Unpacked, the same call is diagnosed again with", f"    {again}"]
    else:
        parts += ["The package is not in this bundle: it was too large, or there was none."]
    warn = " Copied as they are, so look at them before you hand this on:" if redacted and copied else ""
    parts += [(REDACTED if redacted else NOT_REDACTED) + warn, *copied, ABOUT]
    return clean_text("\n\n".join(parts)) + "\n"


def _fenced(verdict: Verdict, environment: Mapping[str, str]) -> str:
    """Return verdict and environment in a code block, where no mention, link or tag works."""
    told = as_text(verdict.model_copy(update={"artifacts": [], "decisions": []}), verbose=True)
    text = "\n".join((told, "Environment", *(f"  {name}: {value}" for name, value in environment.items())))
    fence = "`" * max(3, 1 + max((len(found) for found in BACKTICKS.findall(text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _again(source: Source, names: set[str]) -> list[str]:
    """Return the command that diagnoses the same call from the unpacked bundle."""
    model_name = source.subject.model_name
    words = ["aoti-debug", "diagnose", PACKAGE_FILE]
    words += ["--inputs", INPUTS_FILE] if INPUTS_FILE in names else []
    words += ["--model-name", model_name] if model_name != "model" else []
    for name in sorted(name for name in names if name.startswith("imports/")):
        words += ["--extra-imports", name]
    return words


def _copied(names: set[str]) -> list[str]:
    """Return a list of the files that are copied unchanged, with what each reveals, or nothing."""
    lines = [
        f"- `{name}`: {what}"
        for start, what in SHOWS.items()
        for name in sorted(names)
        if name.startswith(start)
    ]
    return ["\n".join(lines)] if lines else []
