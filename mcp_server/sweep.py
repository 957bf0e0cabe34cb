"""Diagnoses many cases: a YAML file lists them, each gets a result file, and a table shows all results.

    defaults: {budget_s: 120}
    cases:
      - {name: ranker, package: ranker.pt2, inputs: calls/bad.pt}
      - {package: "models/*.pt2", inputs: calls/one.pt}     # one case per matching file
      - {script: serve.py, script_args: [--fast], gpus: 0}

Keys are the arguments of `diagnose`, plus `name` and `gpus` (number of GPUs, default 1). Relative paths start
at the directory of the YAML file.

Each case is diagnosed in a process of its own: `python -m mcp_server.sweep ARGUMENTS.json RESULT.json`.
Exit status 0: RESULT holds the verdict. Exit status 2: bad arguments, RESULT holds `problem`.

Cases run on this machine (`Local`) or on an existing Ray cluster (`Cluster`, extra `ray`). Cases with a
stored verdict are not run again, and lost ones are retried.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import anyio
import anyio.to_thread
import yaml
from pydantic import Field, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.jobs.manager import JobState, Manager
from mcp_server.jobs.run import run
from mcp_server.jobs.store import cause, write_whole
from mcp_server.model import Record, Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.table import DIAGNOSE
from mcp_server.operations.work import open_store, work_of

FILES = ("package", "exported", "script", "log", "inputs")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_VALUES = 200_000
EXAMPLE = "a YAML file such as: cases: [{package: model.pt2, inputs: call.pt}, {script: serve.py}]"


@dataclass(frozen=True)
class SweepCase:
    """One diagnosis of a sweep: validated arguments of `diagnose`, and the number of GPUs to reserve."""

    name: str
    arguments: dict[str, Any]  # checked by `DiagnoseArguments`
    gpus: float = 1

    @property
    def digest(self) -> str:
        """Cache key: a hash of the arguments, and of size and modification time of the files they name."""
        files: list[list[Any]] = []
        for path in (str(self.arguments[key]) for key in FILES if self.arguments.get(key)):
            try:
                state = Path(path).stat()
                files.append([path, state.st_size, state.st_mtime_ns])
            except OSError:
                files.append([path])
        text = json.dumps([self.arguments, files], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_plan(path: Path) -> tuple[SweepCase, ...]:
    """Parse the cases in `path`. Raise `ProblemError` if the file or a case is invalid."""
    try:
        text = path.read_text()
        _check_size(yaml.compose(text, yaml.SafeLoader), {})
        document = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"the cases cannot be read: {cause(error) if isinstance(error, OSError) else error}"
        raise ProblemError(what, value=str(path), allowed=EXAMPLE) from error
    entries = _mapping(document, f"the content of {path}").get("cases")
    defaults = _mapping(document.get("defaults") or {}, "defaults")
    if not isinstance(entries, list) or not entries:
        raise ProblemError("no cases in the file", value=str(path), allowed=EXAMPLE)
    base = path.resolve().parent
    cases = [case for number, entry in enumerate(entries) for case in _cases(number, entry, defaults, base)]
    twice = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    if twice:
        allowed = "a unique name for each case: set `name` if two files have the same name"
        raise ProblemError("two cases have one name", value=", ".join(twice), allowed=allowed)
    return tuple(cases)


def _check_size(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Count the values in a node after alias expansion. Raise `ValueError` beyond `MAX_VALUES`.

    Nested YAML aliases expand a few lines to billions of values ("billion laughs").
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = MAX_VALUES  # a self-referencing alias is infinite, so count it as too large
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_check_size(part, sizes) for part in parts)
    if sizes[id(node)] > MAX_VALUES:
        raise ValueError(f"it stands for more than {MAX_VALUES} values")
    return sizes[id(node)]


def _mapping(value: Any, what: str) -> dict[str, Any]:
    """The mapping `value`. Raises `ProblemError` if it is not a mapping."""
    if not isinstance(value, dict):
        raise ProblemError(f"{what} is not a mapping", value=str(value)[:120], allowed=EXAMPLE)
    return value


def _cases(number: int, entry: Any, defaults: dict[str, Any], base: Path) -> Iterator[SweepCase]:
    """Yield the case with absolute paths; if a path is a glob pattern, one copy per file."""
    entry = {"cwd": str(base), **defaults, **_mapping(entry, f"case {number}")}
    name, gpus = entry.pop("name", None), entry.pop("gpus", 1)
    if not isinstance(gpus, int | float) or gpus < 0:
        raise ProblemError(f"case {number}: gpus must be a number of GPUs", value=gpus, allowed="0 and above")
    # `inputs` may also hold tensor specs, as a list or as JSON text that starts with "[".
    named = {key: entry[key] for key in FILES if isinstance(entry.get(key), str) and entry[key]}
    paths = {key: str(base / value) for key, value in named.items() if not value.lstrip().startswith("[")}
    patterns = [key for key, value in paths.items() if glob.has_magic(value) and not Path(value).exists()]
    if len(patterns) > 1:
        value = ", ".join(paths[key] for key in patterns)
        raise ProblemError(f"case {number}: more than one pattern", value=value, allowed="one per case")
    copies = [{**entry, **paths}]
    if patterns:
        pattern = Path(paths[patterns[0]])
        found = sorted(map(str, Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))))
        if not found:
            raise ProblemError(f"case {number}: no file matches", value=str(pattern))
        copies = [{**entry, **paths, patterns[0]: path} for path in found]
    for arguments in copies:
        try:
            DiagnoseArguments.model_validate(arguments, strict=False)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            allowed = ", ".join(["name", "gpus", *DiagnoseArguments.model_fields])
            what = f"case {number}: {where}: {first['msg']}"
            raise ProblemError(what, value=str(first["input"])[:120], allowed=allowed) from error
        yield SweepCase(_name(number, name, arguments, patterns), arguments, gpus)


def _name(number: int, name: Any, arguments: dict[str, Any], patterns: list[str]) -> str:
    """`name`, or else the stem of the first file. A match of a pattern gets its stem added."""
    stems = [Path(arguments[key]).stem for key in patterns]
    plain = next((Path(arguments[key]).stem for key in FILES if arguments.get(key)), f"case{number}")
    parts = [str(name)] if name is not None else ([] if stems else [plain])
    text = "-".join([*parts, *stems])
    if not NAME.fullmatch(text):
        raise ProblemError(f"case {number}: no name for a file", value=text, allowed=NAME.pattern)
    return text


Ending = Literal["verdict", "refused", "lost"]


class Attempt(Record):
    """One attempt at a case. `lost`: its process or node died. `refused`: the arguments were rejected."""

    ended: Ending
    where: str
    wall_s: float
    why: str = ""


class CaseRecord(Record):
    """The result of a case. `digest` is `SweepCase.digest` at the time of the run."""

    name: str
    digest: str
    ended: Ending
    attempts: list[Attempt]
    verdict: Verdict | None = None

    @property
    def result(self) -> str:
        """One word for the results table: category, outcome, `refused` or `lost`."""
        if self.verdict is None:
            return self.ended
        return self.verdict.category or self.verdict.outcome


class Sweep(Record):
    """All results, in the order of the YAML file. `reused` of them are of an earlier sweep."""

    cases: list[CaseRecord] = Field(default_factory=list)
    reused: int = 0
    report: Path | None = None


class Results:
    """Result files in `directory`/results. The digest is in the name, so a changed case gets a new file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "results"
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, case: SweepCase) -> Path:
        return self.directory / f"{case.name}-{case.digest}.json"

    def known(self, case: SweepCase) -> CaseRecord | None:
        """The stored record if it has a verdict; else None: lost and refused cases run again."""
        try:
            record = CaseRecord.model_validate_json(self.path(case).read_bytes())
        except (OSError, ValidationError):
            return None
        return record if record.verdict is not None else None

    def keep(self, case: SweepCase, record: CaseRecord) -> None:
        write_whole(self.path(case), record.model_dump_json(indent=1))


COLUMNS = ("case", "result", "confidence", "guilty", "summary", "tries", "s")


def totals(sweep: Sweep) -> str:
    counts = Counter(case.result for case in sweep.cases)
    parts = [f"{count} {result}" for result, count in counts.most_common()]
    return f"{len(sweep.cases)} cases: {', '.join(parts)}; {sweep.reused} known from before"


def as_markdown(sweep: Sweep) -> str:
    """Format the table, then why cases were lost or refused."""
    lines = ["# Sweep", "", totals(sweep), "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line(row(case)) for case in sweep.cases]
    for case in sweep.cases:
        lines += [
            f"\n- {case.name}: {try_.ended} on {try_.where}: {try_.why}" for try_ in case.attempts if try_.why
        ]
    return "\n".join(lines) + "\n"


def row(case: CaseRecord) -> tuple[str, ...]:
    verdict, seconds = case.verdict, sum(attempt.wall_s for attempt in case.attempts)
    found = "", "", shorten(case.attempts[-1].why, 120, placeholder="…")
    if verdict is not None:
        at = verdict.guilty
        guilty = (at.elements or [f"{at.kind} {at.name}"])[0] if at else ""
        found = verdict.confidence, guilty[:60], shorten(verdict.summary, 120, placeholder="…")
    return (case.name, case.result, *found, str(len(case.attempts)), f"{seconds:.0f}")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


SLACK_S = 120.0  # added to the budget: time to end the running step and write the verdict
QUEUE_S = 3600.0  # limit of the wait for a GPU, which does not count against the budget
REFUSED = 2
WAIT_S = 30.0


AttemptResult = tuple[Attempt, Verdict | None]
OnDone = Callable[[SweepCase, AttemptResult], None]  # called when an attempt ends


async def attempt(case: SweepCase, gpus: str | None = None) -> AttemptResult:
    """Diagnose `case` in a child process. `gpus`, if set, becomes CUDA_VISIBLE_DEVICES of its runs."""
    arguments = dict(case.arguments)
    if gpus is not None:
        arguments["env"] = {"CUDA_VISIBLE_DEVICES": gpus, **arguments.get("env", {})}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aoti-debug-sweep-") as name:
        request, result = Path(name, "arguments.json"), Path(name, "result.json")
        request.write_text(json.dumps(arguments))
        command = Command(
            argv=(sys.executable, "-m", "mcp_server.sweep", str(request), str(result)),
            cwd=Path(case.arguments["cwd"]),
            env={key: value for key, value in os.environ.items() if key.startswith("AOTI_DEBUG_")},
            # Compiles do not count against the budget, up to the length of the budget.
            timeout_s=2 * float(case.arguments.get("budget_s", 300)) + SLACK_S + QUEUE_S * bool(case.gpus),
        )
        finished = await run(command, result.parent)
        text = result.read_text() if result.exists() else ""
        tail = finished.output.read_text(errors="replace").strip().splitlines()[-1:]
    why = f"its process ended by {finished.signal or finished.ending}: {' '.join(tail)[:300]}"
    lost = Attempt(ended="lost", where=socket.gethostname(), wall_s=time.monotonic() - started, why=why)
    try:
        if finished.ok:
            return lost.model_copy(update={"ended": "verdict", "why": ""}), Verdict.model_validate_json(text)
        if finished.returncode == REFUSED:
            refused = {"ended": "refused", "why": json.loads(text)["problem"][:500]}
            return lost.model_copy(update=refused), None
    except ValueError:
        pass  # the result was not completely written
    return lost, None


async def sweep(
    cases: Sequence[SweepCase],
    results: Results,
    executor: Callable[[], Local | Cluster],
    *,
    retries: int = 1,
    on_record: Callable[[CaseRecord], None] = lambda _record: None,
) -> Sweep:
    """Diagnose every case that has no stored verdict; `on_record` is called with each new record.

    A case whose process or node died is retried `retries` times. `executor` is only called if there is
    something to run, so a fully cached sweep needs no Ray cluster.
    """
    records = {case.name: record for case in cases if (record := results.known(case))}
    reused = len(records)
    attempts: dict[str, list[Attempt]] = {case.name: [] for case in cases}

    def done(case: SweepCase, result: AttemptResult) -> None:
        last, verdict = result
        tries, ended = attempts[case.name], last.ended
        tries.append(last)
        if ended == "lost" and len(tries) <= retries:
            return
        record = CaseRecord(
            name=case.name, digest=case.digest, ended=ended, attempts=list(tries), verdict=verdict
        )
        records[case.name] = record
        results.keep(case, record)
        on_record(record)

    while left := [case for case in cases if case.name not in records]:
        await executor().each(left, done)
    return Sweep(cases=[records[case.name] for case in cases], reused=reused)


DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia(\d+)")


def local_gpus(devices: Path = DEVICES) -> list[str]:
    """List GPUs as in CUDA_VISIBLE_DEVICES, or else from /dev/nvidia*. (This process has no torch.)"""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    found = (_DEVICE.fullmatch(path.name) for path in devices.glob("nvidia*"))
    return [str(number) for number in sorted(int(match[1]) for match in found if match)]


class Local:
    """Runs cases on this machine in `jobs` lanes; lane i uses GPU i modulo the number of GPUs.

    With `jobs` 0, each GPU has one lane. A lease keeps other jobs off a GPU while its case runs.
    """

    def __init__(self, jobs: int = 0) -> None:
        self.gpus = local_gpus()
        self.lanes = jobs or max(1, len(self.gpus))

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        waiting = list(reversed(cases))

        async def lane(gpus: str | None) -> None:
            while waiting:
                case = waiting.pop()
                done(case, await attempt(case, gpus if case.gpus else None))

        async with anyio.create_task_group() as tasks:
            for number in range(min(self.lanes, len(cases))):
                tasks.start_soon(lane, self.gpus[number % len(self.gpus)] if self.gpus else None)


REACH_S = 10.0


def _attempt(case: SweepCase) -> AttemptResult:
    # This runs in the Ray worker, where Ray has set CUDA_VISIBLE_DEVICES, so no GPU is named here.
    return anyio.run(attempt, case)


class Cluster:
    """Runs cases as tasks of the Ray cluster at `address`; `auto` finds the cluster of this machine.

    Ray's own retries are off: the caller must see each lost task. `ProblemError` is raised if Ray is not
    installed or no cluster answers.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ProblemError(
                "Ray is not installed",
                value=address,
                allowed="the extra `ray`",
                next_call="pip install 'aoti-debug[ray]'",
            ) from error
        self.ray: Any = ray
        self.address = address
        self.task = ray.remote(max_retries=0, num_cpus=1)(_attempt)
        self._join()

    def _join(self) -> None:
        try:
            # See if anything listens at HOST:PORT: Ray itself would keep trying for minutes.
            host, _, port = self.address.rpartition("://")[2].rpartition(":")
            if host and port.isdigit() and "[" not in host:  # Ray itself checks IPv6 addresses
                with socket.socket() as connection:
                    connection.settimeout(REACH_S)
                    connection.connect((host, int(port)))
            self.ray.init(address=self.address, ignore_reinit_error=True, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            what, allowed = f"no Ray cluster answers: {error}", "auto, or HOST:PORT"
            raise ProblemError(what, value=self.address, allowed=allowed) from error

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        """Run all cases side by side; `done` is called when one ends. Leaves the cluster at the end."""
        # Ray reports lost tasks on stdout, where results belong. It may do so as late as in its shutdown.
        with redirect_stdout(sys.stderr):
            self._join()
            try:
                await self._each(cases, done)
            finally:
                self.ray.shutdown()

    async def _each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        running = {self.task.options(num_gpus=case.gpus, name=case.name).remote(case): case for case in cases}
        try:
            while running:
                wait = partial(self.ray.wait, list(running), num_returns=1)
                ended, _ = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
                for one in ended:
                    try:
                        result: AttemptResult = self.ray.get(one)
                    except self.ray.exceptions.RayError as error:  # the task's process or node died
                        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
                        result = Attempt(ended="lost", where="the cluster", wall_s=0.0, why=why), None
                    done(running.pop(one), result)
        finally:
            for one in running:
                self.ray.cancel(one, force=True)


def main() -> int:
    request, result = (Path(word) for word in sys.argv[1:3])
    arguments = DiagnoseArguments.model_validate_json(request.read_text(), strict=False)

    async def diagnosed() -> JobState:
        async with Manager.open(open_store()) as manager:
            job = manager.start(DIAGNOSE.name, work_of(DIAGNOSE, arguments))
            while (state := await manager.wait(job.id, WAIT_S)).state == "running":
                pass
        return state

    state = anyio.run(diagnosed)
    if state.problem is not None:
        result.write_text(json.dumps({"problem": f"{state.problem.what}: {state.problem.value}"}))
        return REFUSED
    assert state.result is not None, "a job without a problem has a result"
    result.write_text(json.dumps(state.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
