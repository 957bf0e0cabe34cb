"""The context of a tool call: directory, interpreter, children, leases and cost."""

import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import anyio
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from mcp_server import worker
from mcp_server.errors import ProblemError, here, read_json
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.child import Child, Command, Finished, Starter
from mcp_server.jobs.gpus import Clock, Lease, Waits
from mcp_server.jobs.run import run
from mcp_server.jobs.shared_import import IMPORT_LIMIT_S, SharedImport, WarmImports, shared_import
from mcp_server.jobs.store import SCHEME, TEMPORARY
from mcp_server.logs.captured import building, doing
from mcp_server.model import Artifact, Cost, Record, WorkloadBase
from mcp_server.package.exported import exported_device, package_device
from mcp_server.package.members import refuse_unsafe
from mcp_server.runtime.failure import ONLY_FIRST, check_started, launched, look_ahead
from mcp_server.runtime.steps import StepCache, in_words, keep, key_of
from mcp_server.worker.events import Event, Failed, Phase, Refused
from mcp_server.worker.main import OPERATIONS
from mcp_server.worker.report import members

SHARE_VARIABLE = "AOTI_DEBUG_SHARE_GPUS"
SECOND_GPU = Path("/dev/nvidia1")
DEVICES = Path("/dev")


def gpus_of(device_type: str | None, device_index: int = -1) -> tuple[int, ...] | None:
    """The GPU to lease. None for a CPU package, or if `AOTI_DEBUG_SHARE_GPUS=1` lets jobs share.

    A workload whose device is unknown (None) leases a GPU only if the machine has one. Any /dev/nvidiaN
    counts, because a container may have only /dev/nvidia2.
    """
    if os.environ.get(SHARE_VARIABLE) == "1" or device_type == "cpu":
        return None
    if device_type is None and not any(DEVICES.glob("nvidia[0-9]*")):
        return None
    return (max(device_index, 0),)


def device_of(request: Mapping[str, object]) -> str | None:
    """The device type of the package, library or program in a request. None if unknown."""
    if request.get("library"):
        return str(request.get("device", "cpu")).partition(":")[0]
    if request.get("package"):
        return package_device(Path(str(request["package"])))
    return exported_device(Path(str(request["exported"]))) if request.get("exported") else None


E = TypeVar("E", bound=Event)


def read_events(path: Path, but: Sequence[type[Event]] = ()) -> tuple[Event, ...]:
    """Read the events of a report, except those of the kinds in `but`. Empty if there is no file."""
    left_out = tuple(map(_begin, but))
    return tuple(_events(path, lambda line: not line.startswith(left_out)))


def stream_events(path: Path, kind: type[E]) -> Iterator[E]:
    """Iterate over the events of one kind. Empty if there is no file."""
    begin = _begin(kind)
    return (event for event in _events(path, lambda line: line.startswith(begin)) if isinstance(event, kind))


def _begin(kind: type[Event]) -> str:
    """How the line of an event begins (worker/report.py)."""
    return f'{{"event": "{kind.event}"'


def _events(path: Path, wanted: Callable[[str], bool]) -> Iterator[Event]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in filter(wanted, file):
            with suppress(ValueError):  # a line that a crash cut short
                facts = read_json(line)
                if isinstance(facts, dict) and "event" in facts:
                    yield decode(facts)


_readers: dict[str, TypeAdapter[Event]] = {}


def decode(facts: Mapping[str, object]) -> Event:
    """Decode one line of a report. An event without a class only names a phase; unknown keys are ignored.

    Raise `ProblemError` for a line that lacks what its class needs.
    """
    name = str(facts["event"])
    found: Event = Phase(name, str(facts.get("about", "")))
    if name in Event.kinds:
        if name not in _readers:
            _readers[name] = TypeAdapter(Event.kinds[name])
        try:
            found = _readers[name].validate_python(facts)
        except ValidationError as error:
            what = f"the worker's event {name} has an unexpected form: {error.errors()[0]['loc']}"
            raise ProblemError(what, value=str(facts)[:200]) from error
    object.__setattr__(found, "t", facts.get("t", 0.0))  # some events are frozen
    return found


WORKER_MAIN = Path(worker.__file__).with_name("main.py")
REPORT = "report.jsonl"

# For every worker: output survives an abort, torch compiles no test program for each CPU ISA, and waiting
# threads sleep. By default they spin, which is 25 times as slow on a busy machine.
WORKER_ENV = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}

# The arguments of a request that name an archive for torch to load.
ARCHIVES = frozenset({"package", "exported"})


@dataclass
class CostMeter:
    runs: int = 0
    compiles: int = 0
    clock: Clock = field(default_factory=Clock)

    def cost(self) -> Cost:
        return Cost(
            runs=self.runs,
            compiles=self.compiles,
            wall_s=round(self.clock.wall_s, 3),
            waited_s=round(self.clock.waited_s, 3),
        )


@dataclass(frozen=True)
class WorkerRun:
    finished: Finished
    events: tuple[Event, ...]
    directory: Path
    python: Path

    def last(self, kind: type[E]) -> E | None:
        return next((found for found in reversed(self.events) if isinstance(found, kind)), None)

    def all(self, kind: type[E]) -> list[E]:
        return [found for found in self.events if isinstance(found, kind)]

    def phases(self, name: str) -> list[Phase]:
        """The events with which the worker began this phase."""
        return [found for found in self.all(Phase) if found.event == name]

    @property
    def phase(self) -> str:
        """The worker's last event; if the worker died, it died in this phase."""
        return self.events[-1].event if self.events else "starting"

    @property
    def why(self) -> str:
        """The exception that ended the operation, or how the process ended."""
        failed = self.last(Failed)
        return failed.text if failed is not None else self.finished.ending


@dataclass
class Context:
    """What a tool needs to run children.

    `progress` gets one short line before each slow step: `step` is the last line, `announced` their number.
    `launcher` is put before every child's command, for example `srun --gpus=1`. `kept` are the steps that
    finished before the job was resumed. `knows` gets partial results, in case the job is stopped. `holder`
    names this job to others that wait for its GPU; its children share its `leases`. `home` owns fork servers
    that may outlive the job. `incomplete` says why output of a child was lost.
    """

    directory: Path
    python: Path
    progress: Callable[[str], None] = lambda _step: None
    cost: CostMeter = field(default_factory=CostMeter)
    kept: StepCache = field(default_factory=StepCache)
    children: int = 0
    launcher: tuple[str, ...] = ()
    imports: SharedImport | None = None
    home: WarmImports | None = None
    knows: Callable[[Record], None] = lambda _result: None
    holder: str = ""
    incomplete: str = ""
    announced: int = 0
    step: str = ""
    leases: dict[str, Lease] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.children = max(self.children, self.kept.last)

    @asynccontextmanager
    async def sharing_imports(self) -> AsyncIterator[None]:
        """Let requests to the worker share one import of torch where possible."""
        if self.imports is not None:
            yield
            return
        async with shared_import(self.directory / "import-torch", self.home) as self.imports:
            try:
                yield
            finally:
                self.imports = None

    def expect(
        self,
        *,
        env: Mapping[str, str] | None = None,
        python: Path | None = None,
        cwd: Path | None = None,
        modules: tuple[str, ...] = (),
    ) -> None:
        """Start the shared import of torch and `modules` for later requests with this environment.

        Nothing starts under a launcher, where each worker imports torch itself, or in a resumed job, which
        may need no worker.
        """
        if self.imports is not None and not self.launcher and not self.kept.last:
            argv = (str(python or self.python), "-u", str(WORKER_MAIN))
            asked = Command(argv, cwd or here(), {**WORKER_ENV, **(env or {})}, IMPORT_LIMIT_S)
            self.imports.expect(asked, modules)

    async def run(self, command: Command, name: str, *, runs: int = 0) -> Finished:
        return await self.run_in(self.fresh(name), command, runs=runs)

    async def run_in(
        self,
        directory: Path,
        command: Command,
        start: Callable[[], Awaitable[Starter]] | None = None,
        *,
        runs: int = 0,
    ) -> Finished:
        """Run a child in a directory from `fresh`, or reuse its cached result.

        `start` returns the function that starts the child; `runs` is how often the child runs the workload.
        """
        key = key_of(command, directory)
        kept = self.kept.take(key, command, directory)
        if kept is not None:
            await look_ahead(kept.output)
            return kept
        step = self._announce(in_words(directory.name.split("-", 1)[1], command.argv))
        first = () if runs or not self.launcher else ONLY_FIRST
        argv = launched(self.launcher, (*first, *command.argv), directory)
        env = {**command.env, **({"AOTI_DEBUG_LAUNCHED": "1"} if self.launcher else {})}
        tell, builds = partial(self._still, step, directory), partial(building, directory)
        command = replace(command, timeout_s=min(command.timeout_s, self.cost.clock.left_s))
        spare = self.cost.clock.spare
        started = replace(command, argv=argv, env=env, tell=tell, builds=builds, spare=spare)
        with self.cost.clock.child():
            starter = await start() if start else Child.start
            holder = self.holder or self.directory.name
            waits = Waits(holder, self.progress, self.cost.clock.blocked, self.leases)
            finished = await run(started, directory, start=starter, waits=waits)
            self.incomplete = self.incomplete or finished.incomplete
            await look_ahead(finished.output)
            check_started(finished, self.launcher)
        keep(key, directory, finished)
        self.cost.runs += runs
        return finished

    def _announce(self, words: str) -> str:
        """Report and return the line of a step. A child whose words are equal or empty continues it."""
        if words and not self.step.endswith(f": {words}"):
            self.announced += 1
            self.step = f"step {self.announced}: {words}"
            self.progress(self.step)
        return self.step

    def _still(self, step: str, directory: Path, seconds: float) -> None:
        """Report that a step still runs, and what its process is doing according to its newest journal."""
        journals = [(path.stat().st_mtime, path) for path in directory.glob("*.jsonl")]
        now = doing(max(journals)[1]) if journals else ""
        self.progress(f"{step}: {seconds:.0f} s so far{f', {now}' if now else ''}")

    def fresh(self, name: str) -> Path:
        """Create a new directory `NN-name`."""
        self.children += 1
        directory = self.directory / f"{self.children:02d}-{name}"
        directory.mkdir(parents=True)
        return directory

    async def worker(
        self,
        operation: str,
        request: Mapping[str, object],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        timeout_s: float = 300,
        python: Path | None = None,
        cwd: Path | None = None,
        gpus: tuple[int, ...] | None = None,
        prefix: Sequence[str] = (),
        directory: Path | None = None,
        streamed: Sequence[type[Event]] = (),
        alone: bool = False,
        workload: WorkloadBase | None = None,
    ) -> WorkerRun:
        """Run one operation of the worker; a crash of the workload is a result.

        If `workload` is given, it determines environment (with `env`), directory, interpreter and time limit.
        `prefix` is put before the interpreter (a sanitizer, a debugger); `directory`, from `fresh`, is for
        requests that name files in it. `events` of the result omits the kinds in `streamed`. `gpus` are
        leased (default: the request's GPU, or the first; () for none). With `alone`, the worker imports torch
        itself, because forks of one process inherit its memory layout and contents. Raise `PackageError` for
        an unsafe archive before a worker starts, and `ProblemError` if the worker rejects the request or the
        interpreter cannot run it.
        """
        directory = directory or self.fresh(name or operation)
        if workload is not None:
            env = {**workload.env, **(env or {})}
            python, cwd, timeout_s = workload.python, cwd or workload.cwd, workload.timeout_s
        interpreter = python or self.python
        check_interpreter(interpreter)
        traits = OPERATIONS[operation]
        for archive in ARCHIVES & request.keys():
            await anyio.to_thread.run_sync(refuse_unsafe, Path(str(request[archive])))
        if gpus is None and traits.leases:
            device = await anyio.to_thread.run_sync(device_of, request)
            gpus = gpus_of(device, int(str(request.get("device_index", -1))))
        own = {}
        # Only loads: a compile keeps its cache in the user's temporary folder, for later compiles.
        if "package" in request and traits.loads and "TMPDIR" not in (env or {}):
            own["temporary"] = str(self.temporary())
        asked = directory / "request.json"
        asked.write_text(json.dumps({**request, **own, "operation": operation}, default=encoded, indent=1))
        argv = (*prefix, str(interpreter), "-u", str(WORKER_MAIN), str(asked), str(directory / REPORT))
        variables = {**WORKER_ENV, **(env or {})}
        command = Command(
            argv=argv,
            cwd=cwd or here(),
            env={name: value for name, value in variables.items() if name not in unset},
            timeout_s=timeout_s,
            gpus=gpus,
            unset=tuple(unset),
        )
        shared = self.imports if not (prefix or self.launcher or alone) else None
        start = partial(shared.starter, operation, command) if shared is not None else None
        finished = await self.run_in(directory, command, start, runs=traits.runs)
        if shared is not None and shared.lost(finished):
            (directory / REPORT).unlink(missing_ok=True)
            finished = await self.run_in(directory, command)
        self.cost.compiles += traits.compiles and not finished.reused
        done = WorkerRun(finished, read_events(directory / REPORT, streamed), directory, interpreter)
        _raise_refusal(done)
        return done

    def temporary(self) -> Path:
        """The folder for temporary files of this job; `remove_temporary` deletes it."""
        folder = self.directory / TEMPORARY
        folder.mkdir(exist_ok=True)
        return folder

    def remove_temporary(self) -> None:
        """Remove what loaders unpacked, including what crashes left behind."""
        shutil.rmtree(self.directory / TEMPORARY, ignore_errors=True)

    def artifact(self, path: Path, what: str) -> Artifact:
        """`path` as an artifact of this job. Raises `ProblemError` if it does not exist."""
        if not path.exists():
            raise ProblemError("the step left no such file", value=str(path))
        return Artifact(
            uri=f"{SCHEME}{self.directory.name}/{quote(os.path.relpath(path, self.directory))}",
            path=path,
            bytes=path.stat().st_size,
            what=what,
        )

    def python_for(self, workload: WorkloadBase) -> Path:
        return workload.python or self.python


def encoded(value: object) -> object:
    """Convert a part of a request to JSON; a record becomes its fields that are set."""
    return members(value) if is_dataclass(value) else to_jsonable_python(value)


def _raise_refusal(done: WorkerRun) -> None:
    """Raise `ProblemError` if the worker rejected the request, or the interpreter cannot run the worker."""
    refused, failed = done.last(Refused), done.last(Failed)
    if refused is not None:
        raise ProblemError(refused.what, value=refused.value, allowed=refused.allowed)
    what = ""
    if done.finished.ending == "not_started":
        what = "cannot start the interpreter: " + done.finished.note
    elif not done.events and done.finished.ending == "exit":
        text = done.finished.stderr.read_bytes()[-4000:].decode("utf-8", "replace").strip()
        last = text.splitlines()[-1] if text else "it printed nothing"
        last = "".join(char for char in last if char.isprintable())[:300]
        what = "this Python cannot run the worker: " + last
    elif failed is not None and failed.during == "importing_torch":
        what = f"torch cannot be imported ({failed.text[:300]})"
    if what:
        raise ProblemError(what, value=str(done.python), next_call=interpreter_help())


def check_interpreter(python: Path) -> None:
    """Raise `ProblemError` unless `python` is an executable file."""
    what = ""
    if not python.exists():
        what = "no such interpreter"
    elif not python.is_file() or not os.access(python, os.X_OK):
        what = "the interpreter is not an executable file"
    if what:
        raise ProblemError(what, value=str(python), next_call=interpreter_help())
