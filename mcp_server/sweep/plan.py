"""Reads the file that lists the cases of a sweep, and keeps what became of each case.

Reads the file that lists the cases of a sweep.

    defaults: {budget_s: 120}
    cases:
      - {name: ranker, package: ranker.pt2, inputs: calls/bad.pt}
      - {package: "models/*.pt2", inputs: calls/one.pt}     # a case for each file
      - {script: serve.py, script_args: [--fast], gpus: 0}

Keys are the arguments of `diagnose`, and `name` and `gpus` (how many it needs, default 1). Relative paths
start at the file's directory.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.model import Record, Verdict
from mcp_server.operations.arguments import DiagnoseArguments

FILES = ("package", "exported", "script", "log", "inputs")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_VALUES = 200_000
EXAMPLE = "cases: [{package: model.pt2, inputs: call.pt}, {script: serve.py}]"


@dataclass(frozen=True)
class SweepCase:
    """One diagnosis of a sweep. `arguments` are those of `diagnose`, checked; `gpus` is how many it takes."""

    name: str
    arguments: dict[str, Any]
    gpus: float = 1

    @property
    def digest(self) -> str:
        """Changes with the arguments and with the files that they name, by size and time of change."""
        files = [_stamp(Path(str(self.arguments[key]))) for key in FILES if self.arguments.get(key)]
        text = json.dumps([self.arguments, files], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_plan(path: Path) -> tuple[SweepCase, ...]:
    """The cases in `path`. Raises ProblemError, with the number of the case, for what is not understood."""
    document = _load(path)
    base = path.resolve().parent
    defaults = _mapping(document.get("defaults") or {}, "defaults")
    entries = document.get("cases")
    if not isinstance(entries, list) or not entries:
        raise ProblemError("no cases in the file", value=str(path), allowed=EXAMPLE)
    cases = [case for number, entry in enumerate(entries) for case in _cases(number, entry, defaults, base)]
    twice = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    if twice:
        allowed = "a name of its own for each case; give `name` where files are called alike"
        raise ProblemError("two cases have one name", value=", ".join(twice), allowed=allowed)
    return tuple(cases)


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        _check_size(yaml.compose(text, yaml.SafeLoader), {})
        document = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ProblemError(f"the cases cannot be read: {error}", value=str(path), allowed=EXAMPLE) from error
    return _mapping(document, "the file")


def _check_size(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """How many values a node stands for, with all that its aliases repeat. Raises ValueError for too many."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = MOST_VALUES  # an alias of itself has no end
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_check_size(part, sizes) for part in parts)
    if sizes[id(node)] > MOST_VALUES:
        raise ValueError(f"it stands for more than {MOST_VALUES} values")
    return sizes[id(node)]


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProblemError(f"{what} is not a mapping", value=str(value)[:120], allowed=EXAMPLE)
    return value


def _cases(number: int, entry: Any, defaults: dict[str, Any], base: Path) -> Iterator[SweepCase]:
    given = {**defaults, **_mapping(entry, f"case {number}")}
    name, gpus = given.pop("name", None), given.pop("gpus", 1)
    if not isinstance(gpus, int | float) or gpus < 0:
        raise ProblemError(f"case {number}: gpus is no number of GPUs", value=gpus, allowed="0 and above")
    given.setdefault("cwd", str(base))
    for arguments in _expanded(number, given, base):
        yield SweepCase(_name(number, name, arguments, given), _checked(number, arguments), gpus)


def _expanded(number: int, given: dict[str, Any], base: Path) -> Iterator[dict[str, Any]]:
    """The case with absolute paths, once for each file that its pattern matches."""
    paths = {key: str(base / value) for key, value in given.items() if key in FILES and _is_path(value)}
    patterns = [key for key, value in paths.items() if glob.has_magic(value) and not Path(value).exists()]
    if len(patterns) > 1:
        value = ", ".join(paths[key] for key in patterns)
        raise ProblemError(f"case {number}: more than one pattern", value=value, allowed="one per case")
    if not patterns:
        yield {**given, **paths}
        return
    pattern = Path(paths[patterns[0]])
    found = sorted(map(str, Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))))
    if not found:
        raise ProblemError(f"case {number}: no file matches", value=str(pattern))
    for path in found:
        yield {**given, **paths, patterns[0]: path}


def _is_path(value: Any) -> bool:
    """Whether it is not specs of tensors, as a list or as JSON text."""
    return isinstance(value, str) and bool(value) and not value.lstrip().startswith("[")


def _name(number: int, name: Any, arguments: dict[str, Any], given: dict[str, Any]) -> str:
    """The given name, or that of the file; of several files of one pattern, the given name and the file's."""
    of_pattern = [
        Path(arguments[key]).stem for key in FILES if key in given and _differs(key, arguments, given)
    ]
    plain = next((Path(arguments[key]).stem for key in FILES if arguments.get(key)), f"case{number}")
    parts = [str(name)] if name is not None else ([] if of_pattern else [plain])
    text = "-".join([*parts, *of_pattern])
    if not NAME.fullmatch(text):
        raise ProblemError(f"case {number}: no name for a file", value=text, allowed=NAME.pattern)
    return text


def _differs(key: str, arguments: dict[str, Any], given: dict[str, Any]) -> bool:
    return isinstance(given[key], str) and glob.has_magic(given[key]) and given[key] != arguments[key]


def _checked(number: int, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        DiagnoseArguments.model_validate(arguments, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        allowed = ", ".join(["name", "gpus", *DiagnoseArguments.model_fields])
        what = f"case {number}: {where}: {first['msg']}"
        raise ProblemError(what, value=str(first["input"])[:120], allowed=allowed) from error
    return arguments


def _stamp(path: Path) -> list[Any]:
    try:
        state = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), state.st_size, state.st_mtime_ns]


Ending = Literal["verdict", "refused", "lost"]


class Attempt(Record):
    """One try. `lost` means that what ran it died; `refused` that the case itself cannot be diagnosed."""

    ended: Ending
    where: str
    wall_s: float
    why: str = ""


class CaseRecord(Record):
    """A case with how it ended. `digest` tells whether it is still the same case."""

    name: str
    digest: str
    ended: Ending
    attempts: list[Attempt]
    verdict: Verdict | None = None

    @property
    def result(self) -> str:
        """One word for a table."""
        if self.verdict is None:
            return self.ended
        return self.verdict.category or self.verdict.outcome


class Sweep(Record):
    """All cases in the order of the file, and where the report is."""

    cases: list[CaseRecord] = Field(default_factory=list)
    reused: int = 0
    report: Path | None = None


class Results:
    """The records below one directory. A case that changed gets a new file; none is overwritten."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "results"
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, case: SweepCase) -> Path:
        return self.directory / f"{case.name}-{case.digest}.json"

    def known(self, case: SweepCase) -> CaseRecord | None:
        """The verdict of an earlier sweep on the same case; a case that was lost is tried again."""
        try:
            record = CaseRecord.model_validate_json(self.path(case).read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.verdict is not None else None

    def keep(self, case: SweepCase, record: CaseRecord) -> None:
        """Written whole or not at all."""
        path = self.path(case)
        partial = path.with_suffix(".partial")
        partial.write_text(record.model_dump_json(indent=1))
        partial.replace(path)
