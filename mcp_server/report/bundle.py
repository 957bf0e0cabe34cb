"""Writes a finished diagnosis for other people: a self-contained HTML page, or a bundle to repeat it.

The page includes a text for an issue tracker. A bundle is a zip, which `read_source` reads back.
"""

import base64
import hashlib
import io
import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from mcp_server import __version__
from mcp_server.brief import (
    OUTCOME_TITLE,
    confirmation,
    cost_in_words,
    eager_in_words,
    note_on_arguments,
    placed_party,
    what_happened,
)
from mcp_server.diagnosis.kept_files import Subject
from mcp_server.errors import ProblemError, read_json
from mcp_server.jobs.manager import load
from mcp_server.jobs.store import Store, cause
from mcp_server.model import CATEGORIES, SUBJECT_FILE, Verdict
from mcp_server.operations.arguments import HANDLE
from mcp_server.operations.table import command_line
from mcp_server.render import as_text, check_name, party_title
from mcp_server.report.redact import SECRET_NAME, Redactor, clean_text, cleaned, with_texts
from mcp_server.tools.requests import OPERATORS

# What a copied file reveals, by the beginning of its member name.
SHOWS = {
    "package/": "weights, generated code, compile commands with paths, and lines of the model's source",
    "inputs/": "the values of the call",
    "imports/": "source of the workload's own",
}


BACKTICKS = re.compile(r"`+")
PAGE_FILE = "report.html"
HERE = Path(__file__).parent
SHOWN_ELEMENTS = 3


TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(
    confirmation=confirmation,
    happened=what_happened,
    eager=eager_in_words,
    note_on_arguments=note_on_arguments,
)


def issue_text(verdict: Verdict, environment: dict[str, str], redact: Callable[[str], str]) -> str:
    """The redacted verdict and environment, in a code block so that no mention, link or tag works."""
    told = as_text(verdict.model_copy(update={"artifacts": [], "decisions": []}), verbose=True)
    text = "\n".join((told, "Environment", *(f"  {name}: {value}" for name, value in environment.items())))
    fence = "`" * max(3, 1 + max((len(found) for found in BACKTICKS.findall(text)), default=0))
    return redact(f"{fence}text\n{text}\n{fence}\n")


@dataclass(frozen=True)
class Source:
    """A verdict with its subject and log. `directory` has the job's files; None if they are not here."""

    verdict: Verdict
    subject: Subject = Subject()  # noqa: RUF009 - frozen
    directory: Path | None = None
    log: str = ""


Link = tuple[str, str, str]  # label, title and detail of one box on the path from the fault to the cause


def page(source: Source) -> str:
    """Render the page. Texts are escaped, and its content policy allows only the script of this digest."""
    verdict = cleaned(source.verdict)
    environment = {clean_text(k): clean_text(value) for k, value in source.subject.environment.items()}
    script = (HERE / "page.js").read_text()
    places = {artifact.path.absolute().parent for artifact in verdict.artifacts}
    return TEMPLATES.get_template("page.html.jinja").render(
        verdict=verdict,
        outcome=OUTCOME_TITLE[verdict.outcome],
        category=CATEGORIES[verdict.category] if verdict.category else "",
        path=list(path_of(verdict)),
        environment=environment,
        checks=list(map(check_name, verdict.decisions)),
        cost=cost_in_words(verdict.cost),
        log=clean_text(source.log),
        issue=issue_text(verdict, environment, Redactor.of_this_machine(places)),
        next_commands=[(step.why, command_line(step)) for step in verdict.next_steps],
        style=Markup((HERE / "page.css").read_text()),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def path_of(verdict: Verdict) -> Iterator[Link]:
    """Yield fault, launch, generated line, model line, expression, elements and root cause, if known."""
    if verdict.category is None:
        return
    yield "Fault", verdict.headline or verdict.category.replace("_", " "), ""
    parties = [party for party in (verdict.crashing, verdict.guilty) if party is not None]
    where = next((p for p in parties if p.launch_index is not None or p.kind in ("kernel", "op")), None)
    if where is not None:
        number = f"launch {where.launch_index}" if where.launch_index is not None else "kernel"
        yield "Launch", number, where.name
    generated = next((p.generated_location for p in parties if p.generated_location), "")
    if generated:
        yield "Generated line", generated, ""
    placed, guilty = placed_party(verdict), verdict.guilty
    if placed is not None:
        place = placed.model_locations[0]
        yield "Model line", f"{Path(place.file).name}:{place.line}", place.code
    expression = next((p.expression for p in parties if p.expression), "")
    if expression and guilty is not where:
        yield "Expression", expression, ""
    elements = next((p.elements for p in reversed(parties) if p.elements), [])
    if elements:
        more = len(elements) - SHOWN_ELEMENTS
        shown = "; ".join(elements[:SHOWN_ELEMENTS])
        yield "Elements behind it", shown, f"and {more} more" if more > 0 else ""
    if guilty is not None and guilty is not where:
        title = party_title(guilty.model_copy(update={"value": None}))
        yield "Root cause", title, guilty.value or ""
    elif expression:
        yield "Root cause", expression, ""


VERDICT_FILE = "verdict.json"
LOG_FILE = "log.txt"
PACKAGE_FILE = "package/model.pt2"
LOG_TAIL = 20_000  # characters
ALLOWED = "a job handle such as job_1a2b3c4d, which diagnose prints; a file of diagnose --json; or a bundle"
MANIFEST = "manifest.json"
README = "README.md"
INPUTS_FILE = "inputs/inputs.pt"
DEFAULT_LIMIT_BYTES = 64 << 20
CHUNK = 1 << 20

STEP_FILES = ("request.json", "report.jsonl", "output.log")
STEP_LOG_LIMIT = 4 << 20

Redact = Callable[[str], str]


def read_source(text: str, store: Store) -> Source:
    """Read the source that `text` names: a job, verdict or bundle. Raise ProblemError for anything else."""
    handle = HANDLE.fullmatch(text)
    if handle:
        directory = store.find(handle[1]).path
        state = load(directory)
        if state is None or state.result is None:
            raise ProblemError("the job has no result", value=directory.name, allowed=ALLOWED)
        return of_verdict(_verdict(state.result, directory.name))
    path = Path(text).expanduser()
    if not path.is_file():
        raise ProblemError("no such job, verdict or bundle", value=text, allowed=ALLOWED)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if VERDICT_FILE not in names:
                raise ProblemError("the archive is not a bundle", value=str(path), allowed=ALLOWED)
            verdict = _verdict(archive.read(VERDICT_FILE), str(path))
            found = archive.read(SUBJECT_FILE) if SUBJECT_FILE in names else b"{}"
            subject = Subject.model_validate_json(found)
            log = archive.read(LOG_FILE).decode("utf-8", "replace") if LOG_FILE in names else ""
        return Source(verdict, subject, None, log[-LOG_TAIL:])
    return of_verdict(_verdict(path.read_bytes(), text))


def of_verdict(verdict: Verdict) -> Source:
    """Combine a verdict with the subject, directory and log of the job that its artifacts name."""
    paths = [artifact.path for artifact in verdict.artifacts if artifact.path.name == SUBJECT_FILE]
    if not paths or not paths[0].is_file():
        return Source(verdict, Subject())
    subject = Subject.model_validate_json(paths[0].read_bytes())
    log = tail(subject.log) if subject.log is not None else ""
    return Source(verdict, subject, paths[0].parent, log)


def tail(log: Path) -> str:
    """The end of a log. Empty if it cannot be read."""
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
    """Raise ProblemError if `path` already exists, or if the body cannot write it."""
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
    yield README, redact(_readme(source, names, redact is not str))
    verdict = _redacted_json(source.verdict.model_dump_json(), redact)
    subject = _redacted_json(source.subject.model_dump_json(), redact)
    yield VERDICT_FILE, verdict
    yield SUBJECT_FILE, subject
    shown = Source(
        Verdict.model_validate_json(verdict), Subject.model_validate_json(subject), log=redact(source.log)
    )
    yield PAGE_FILE, page(shown)
    yield LOG_FILE, shown.log
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
    """Package, inputs and modules that fit, and a line for each file that does not."""
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
    """Redact each string of the JSON. With a key such as `password`, the string becomes <secret>."""

    def change(value: str, name: str) -> str:
        return "<secret>" if redact is not str and SECRET_NAME.search(name) else redact(value)

    return json.dumps(with_texts(json.loads(text), change), indent=indent, ensure_ascii=False)


def _redacted_lines(text: str, redact: Redact) -> str:
    """Redact each line as JSON, or as text if a crash cut the line short."""
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
    verdict, model_name = source.verdict, source.subject.model_name
    # The command that diagnoses the same call from the unpacked bundle.
    words = ["aoti-debug", "diagnose", PACKAGE_FILE]
    words += ["--inputs", INPUTS_FILE] if INPUTS_FILE in names else []
    words += ["--model-name", model_name] if model_name != "model" else []
    for name in sorted(name for name in names if name.startswith("imports/")):
        words += ["--extra-imports", name]
    copied = [
        (name, what) for start, what in SHOWS.items() for name in sorted(names) if name.startswith(start)
    ]
    return TEMPLATES.get_template("bundle.md.jinja").render(
        verdict=verdict,
        outcome=f"{verdict.outcome} {verdict.category or ''} ({verdict.confidence})".replace("  ", " "),
        again=shlex.join(words) if PACKAGE_FILE in names else "",
        redacted=redacted,
        copied=copied,
    )
