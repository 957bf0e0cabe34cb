"""Runs the program again: without the hook, with its GPU work serialised, or with a mistake corrected.

For a correction, Python and Triton read another text of one file (`corrections`).
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import islice
from pathlib import Path

from mcp_server.diagnosis.causes import log_text, shared_memory
from mcp_server.diagnosis.causes.illegal_memory_access import (
    explains,
    in_users_kernel,
    is_a_turn_away,
    marker_of,
    numbers_doubted,
)
from mcp_server.diagnosis.components import kernel_of, name_of, text_of
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial, judged_elsewhere
from mcp_server.diagnosis.observe import DECIDES, NEEDED, Observation, limit_of
from mcp_server.diagnosis.observe.corrections import (
    LACKS,
    Mistake,
    bindings,
    corrected,
    edited,
    shown,
    shown_by_code,
)
from mcp_server.diagnosis.observe.program import SHARE_OF_PROGRAM, see
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState, UsersKernel
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import here
from mcp_server.jobs.child import Command
from mcp_server.memory_faults import Fault
from mcp_server.model import CommandWorkload, ModelLocation, ScriptWorkload
from mcp_server.package.exported import node_lines
from mcp_server.package.kernels import Kernel
from mcp_server.package.problems import PackageError
from mcp_server.package.terms.triton_calls import function_of
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.tools.capture import CHANGED, capture, hook_environment, workload_argv

MOST_FILES = 100  # files beside a script that are searched
MOST_TRIED = 3  # mistakes tried, at most
SHARE_OF_RUN = 0.5  # of the remaining budget
_DOES_NOTHING = re.compile(r"(\w+) = \1")


def plain_command(case: DiagnosisState, context: Context, env: Mapping[str, str], limit_s: float) -> Command:
    """The program as the user runs it, with further variables."""
    workload = case.workload
    assert isinstance(workload, ScriptWorkload | CommandWorkload)
    return Command(
        argv=workload_argv(context, workload),
        cwd=workload.cwd or here(),
        env={**workload.env, **env},
        timeout_s=limit_s,
        gpus=gpus_of(None),
    )


class RunAlone(Observation, seconds=30, best=DECIDES, alone=True):
    """Run the program again without the hook, which may hide a race, or where a correction may cure it.

    The hook takes time before each call, and waits for the device after it. If the program fails without the
    hook, run it corrected, or with each kernel finished before the next starts, and once more unchanged.
    """

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.capture is None:
            return 0.0
        may = _may_race(case) if case.capture.finished.ok else any(_corrected(case))
        return self.best if may or _of_streams(case) or log_text.folder_of_library(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.runs["alone"] = await self._run(case, context, "alone", {})
        if case.runs["alone"].failure in ("none", "timeout"):
            return
        change, kind = await self._waiting(case, context) or (IN_ORDER, "")
        if not kind and not _may_race(case):
            return
        passed = bool(kind) or (await self._run(case, context, "in_order", {BLOCKING: "1"})).failure == "none"
        again = await self._run(case, context, "alone_again", {})
        failed = [each.root.text for each in (case.runs["alone"], again) if each.root is not None]
        failing = Seen("raised", text=failed[0] if failed else "an error")
        if again.failure == "none":
            return
        case.trials[change.key] = judged_elsewhere(change, Effect.SAME, failing)
        if passed:
            case.trials[change.key] = judged_elsewhere(change, Effect.GONE, failing, "the program passed")
            case.users_changes["", kind] = change

    async def _waiting(self, case: DiagnosisState, context: Context) -> tuple[Intervention, str] | None:
        """The first correction with which the program passes, and its kind. None if none helps."""
        folder = log_text.folder_of_library(case)
        searched = {"LD_LIBRARY_PATH": str(folder)}
        if folder is not None and (await self._run(case, context, "searched", searched)).failure == "none":
            what = f"LD_LIBRARY_PATH={folder} before the start"
            return Intervention(key="library", kind=Kind.ENVIRONMENT, what=what), "library_missing"
        for path, kind, text, changed in _corrected(case):
            asked = case.workload.env if case.workload is not None else {}
            env = {**hook_environment(context.fresh("site"), asked), **_read_as(context, path, changed)}
            del env["AOTI_DEBUG_CAPTURE"]
            if (await self._run(case, context, f"with_{kind}", env)).failure == "none":
                return change_of("", Mistake(kind, 0), (text, changed), path.name), kind
        return None

    async def _run(
        self, case: DiagnosisState, context: Context, label: str, env: Mapping[str, str]
    ) -> RunSeen:
        limit = limit_of(case, share=SHARE_OF_PROGRAM)
        finished = await context.run(plain_command(case, context, env, limit.seconds), label, runs=1)
        limit.check(finished, "the program")
        return see(label, finished)


BLOCKING = "CUDA_LAUNCH_BLOCKING"
IN_ORDER = Intervention(
    key=shared_memory.IN_ORDER,
    kind=Kind.ENVIRONMENT,
    what=f"each kernel and copy ended before the next is started ({BLOCKING}=1)",
)
UNWAITED = re.compile(r"non_blocking\s*=\s*True|pin_memory")


def _files_of_script(case: DiagnosisState) -> list[Path]:
    """The script and the modules beside it that it names, or one of them. Empty for another workload."""
    if not isinstance(case.workload, ScriptWorkload):
        return []
    found = [case.workload.script.resolve()]
    beside = {path.stem: path for path in sorted(found[0].parent.glob("*.py"))[:MOST_FILES]}
    for path in found:  # the loop appends to `found`
        named = beside.keys() & set(re.findall(r"\w+", text_of(path)))
        found += [beside[name] for name in sorted(named) if beside[name] not in found]
    return found


def _of_streams(case: DiagnosisState) -> bool:
    """Whether the hook saw that a stream wrote an input too late, or that one was freed too early."""
    return any(each.interval == "stream" for each in case.captured.memory)


def _corrected(case: DiagnosisState) -> Iterator[tuple[Path, str, str, str]]:
    """File, kind, text and corrected text of each change that may cure the program, given how it failed.

    `doubted`: its own check failed, although the call alone does what the exported program does.
    """
    returned = case.failure_of("plain") == "none" and all(each.outcome == "ok" for each in case.calls)
    doubted = numbers_doubted(case) and returned and case.equals_eager is not False
    raced = case.device == "cuda" and (doubted or case.failure_of("script") == "none" or _of_streams(case))
    wanted = {
        "stream_capture": any(root.family.id == "stream_capture" for _, root in case.own_roots),
        "update": doubted and any(each.interval == "update" for each in case.captured.memory),
        "precision": doubted,
    }
    for path in _files_of_script(case):
        text = text_of(path)
        for kind, correct in LACKS.items():
            if wanted.get(kind, raced) and (changed := correct(text)):
                yield path, kind, text, changed


def _may_race(case: DiagnosisState) -> bool:
    """Whether streams or copies of a CUDA program may run during a call."""
    files = _files_of_script(case) if case.device == "cuda" else []
    streams = bool(files) and any(each.streams for each in case.calls)
    return streams or any(map(UNWAITED.search, map(text_of, files)))


class ReadUsersKernel(Observation, seconds=0.1, best=NEEDED):
    """Find the user's Triton kernel that failed to compile, in the files with lines of the program."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.package is None and case.runs and _refused(case) is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        refused = _refused(case)
        case.users_kernel = _of_user(*refused, case) if refused is not None else None


def _refused(case: DiagnosisState) -> tuple[str, int] | None:
    """The user's Triton kernel that failed to compile, and the line, counted from its `def`."""
    for _, root in case.own_roots:
        if root.family.id == "triton_compile" and "function" in root.fields:
            line = root.fields.get("kernel_line", "")
            return (root.fields["function"], int(line)) if line.isdigit() else None
    return None


def _of_user(function: str, line: int, case: DiagnosisState) -> UsersKernel | None:
    """The program's definition of the kernel. None if no file defines it, or several do.

    The script, the modules beside it, and the files with lines of its model are searched.
    """
    pattern = re.compile(rf"^def\s+{re.escape(function)}\s*\(", re.MULTILINE)
    stacks = [Path(at.file) for compiled in case.captured.compiles for at in compiled.stack]
    nodes = [Path(at.file) for at in _lines_of_program(case)]
    found = []
    for path in dict.fromkeys(path.resolve() for path in [*_files_of_script(case), *stacks, *nodes]):
        found += [(path, at) for at in pattern.finditer(text_of(path))]
    if len(found) != 1:
        return None
    path, at = found[0]
    number = at.string.count("\n", 0, at.start()) + line
    lines = at.string.splitlines()
    code = lines[number - 1].strip()[:300] if number <= len(lines) else ""
    return UsersKernel(function, path, number, code)


def _lines_of_program(case: DiagnosisState) -> list[ModelLocation]:
    """Lines of the program whose compile failed. Empty if the program was not kept."""
    for compiled in reversed(case.captured.compiles):
        if compiled.exported is not None and compiled.exported.is_file():
            with contextlib.suppress(PackageError):
                return [at for _, at in node_lines(compiled.exported)]
            return []
    return []


class TryUsersKernels(Observation, seconds=40, best=DECIDES, alone=True):
    """Run the program with a line corrected where its text shows a mistake, then again without.

    The line is in a user's kernel, or rebinds the input of a CUDA graph.
    """

    def after_proof(self, case: DiagnosisState) -> bool:
        """Whether a proven index may mark unused elements, so that a mask in the kernel is the better fix."""
        fault = _fault(case)
        return fault is not None and bool(marker_of(fault))

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        read = case.kernel_defects is not None or case.view is None
        explained = any(explains(each.kind, case) for each in case.kernel_defects or {})
        doubted = numbers_doubted(case) or _fault(case) is not None or explained
        tried = any(case.trials[each.key].proves for each in case.users_changes.values())
        if not isinstance(case.workload, ScriptWorkload) or tried:
            return 0.0
        shows = doubted and ((read and users_kernels(case)) or rebound(case) is not None)
        return self.best if shows else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        for kernel, file, mistake, text in _corrections(case):
            change = change_of(kernel, mistake, (file.read_text(), text), file.name)
            case.trials[change.key] = trial = await _run_with(case, context, file, change, text)
            if kernel or trial.proves:
                case.users_changes.setdefault((kernel, mistake.kind), change)
            if trial.gone or (trial.proves and not kernel):
                return


def _corrections(case: DiagnosisState) -> Iterator[tuple[str, Path, Mistake, str]]:
    """Yield kernel (if any), file, mistake and corrected text for mistakes that the program shows."""
    if (found := rebound(case)) is not None:
        yield "", found[0], Mistake("graph", 0), found[1]
    of_kernels = (
        (kernel.name, at.file, *found)
        for kernel in users_kernels(case)
        if (at := _defined(kernel, case)) is not None
        for found in corrections_of(kernel, at.file.read_text(), case)
    )
    yield from islice(of_kernels, MOST_TRIED)


def users_kernels(case: DiagnosisState) -> list[Kernel]:
    found = (kernel_of(launch, case) for launch in case.launches if launch.kind == "user_triton")
    return list({each.name: each for each in found if each is not None}.values())


def _defined(kernel: Kernel, case: DiagnosisState) -> UsersKernel | None:
    function = function_of(kernel)
    return _of_user(function.name, 0, case) if function is not None else None


def corrections_of(kernel: Kernel, text: str, case: DiagnosisState) -> list[tuple[Mistake, str]]:
    """List the mistakes of a kernel, each with `text`, which defines the kernel, without it."""
    function = function_of(kernel)
    if function is None:
        return []
    defects = [each for each in case.kernel_defects or {} if each.kernel == kernel.name]
    found: list[tuple[str, int, str]] = [(each.kind, each.line, "") for each in defects]
    found += shown_by_code(kernel, case.view, case.sizes)
    known = [Mistake(kind, line - function.lineno, needed) for kind, line, needed in found]
    fault, lines = _fault(case), kernel.source.split("\n")
    if fault is not None and fault.launch is not None and fault.launch.kernel == kernel.name:
        wraps = fault.missed is not None and is_a_turn_away(fault.missed)
        at_fault = [n for n, line in enumerate(lines, 1) if fault.code and line.strip() == fault.code.strip()]
        kind, needed = ("overflow", "") if wraps else ("beyond", marker_of(fault))
        known += [Mistake(kind, n - function.lineno, needed) for n in at_fault[:1]]
    known += shown(text, function.name)
    return [(each, right) for each in known if (right := corrected(text, function.name, each))]


def _fault(case: DiagnosisState) -> Fault | None:
    """The memory fault in a user's kernel, if it was located."""
    fault = case.located.fault if case.located is not None else None
    return fault if fault is not None and in_users_kernel(fault, case) else None


def _read_as(context: Context, file: Path, text: str) -> dict[str, str]:
    """The variable with which Python reads this text in place of a file."""
    copy = context.fresh("changed") / file.name
    copy.write_text(text)
    return {CHANGED: f"{file}{os.pathsep}{copy}"}


async def _run_with(
    case: DiagnosisState, context: Context, file: Path, change: Intervention, text: str
) -> Trial:
    """Run the program with the changed text of a file and, if it gets further, again without."""
    assert isinstance(case.workload, ScriptWorkload)
    limit = limit_of(case, share=SHARE_OF_RUN)
    workload = case.workload.model_copy(update={"timeout_s": limit.seconds})
    with _without_packages(case, context):
        env = _read_as(context, file, text)
        changed = await capture(context, workload, env=env, gpus=gpus_of(None))
    errors = [root for _, root in case.own_roots]
    failing = Seen("raised", text=errors[0].text if errors else "an error")
    undecided = partial(judged_elsewhere, change, Effect.NOT_APPLICABLE, failing)
    if not changed.compiles and case.captured.compiles:
        return undecided("the program did not compile its package again")
    returned = [sum(call.outcome == "ok" for call in each.calls) for each in (case.captured, changed)]
    further = returned[1] > returned[0]
    if not changed.finished.ok and not further:
        root = see("changed", changed.finished).root
        if root is None or not errors or root.family.id != errors[0].family.id:
            return undecided("with the change, the program failed in another way")
        return judged_elsewhere(change, Effect.SAME, failing)
    with _without_packages(case, context):
        again = await capture(context, workload, gpus=gpus_of(None))
    if again.finished.ok:
        return undecided("the program passed without the change, too")
    if not changed.finished.ok:
        reason = "with the change it got past the failing call, and failed later"
        return judged_elsewhere(change, Effect.CHANGED, failing, reason)
    return judged_elsewhere(change, Effect.GONE, failing, "the program passed")


@contextlib.contextmanager
def _without_packages(case: DiagnosisState, context: Context) -> Iterator[None]:
    """Move packages aside that the captured run wrote, as the program may compile only if none exists."""
    own = case.capture is not None and not case.capture.finished.reused
    files = [each.path for each in case.captured.overwritings if own]
    written = {path for path in files if path.is_file()}
    moved = {path: context.fresh("aside") / path.name for path in written}
    for path, aside in moved.items():
        shutil.move(path, aside)
    try:
        yield
    finally:
        for path, aside in moved.items():
            shutil.copy2(aside, path)


def change_of(kernel: str, mistake: Mistake, texts: tuple[str, str], name: str) -> Intervention:
    """The change from the first text to the second, with the lines that differ. `name` is the file's name.

    An added line is shown with the line that follows it.
    """
    old, new = ([line.strip() for line in text.split("\n")] for text in texts)
    before: list[str] = []
    after: list[str] = []
    numbers: list[int] = []
    for kind, first, end, begin, stop in SequenceMatcher(None, old, new, False).get_opcodes():
        if kind != "equal":
            more = int(first == end)
            before += old[first : end + more]
            after += [line for line in new[begin : stop + more] if not _DOES_NOTHING.fullmatch(line)]
            numbers += range(first + 1, end + more + 1)
    return Intervention(
        key=f"source:{kernel}:{mistake.kind}:{mistake.line}",
        kind=Kind.SOURCE,
        what=f"this change in line {', '.join(map(str, numbers))} of {name}",
        before_code="\n".join(before),
        after_code="\n".join(after),
    )


def rebound(case: DiagnosisState) -> tuple[Path, str] | None:
    """A file of the program, and its text with the rebound input of a CUDA graph kept.

    A line rebinds the input if it assigns an attribute outside `__init__`, a value computed from it, or a
    name after the capture in the same function. None if there is no such line, or several.
    """
    freed = (each for each in case.captured.memory if (each.act, each.interval) == ("freed", "graph"))
    place = next((each.input for each in freed), len(case.compiled_inputs))
    if place >= len(case.compiled_inputs):
        return None
    name, found = name_of(case.compiled_inputs[place]), []
    for path in _files_of_script(case):
        text = text_of(path)
        found += [(path, text, *edit) for edit in bindings(text, name)]
    if len(found) != 1:
        return None
    ((path, text, line, kept),) = found
    changed = edited(text, [(line, kept)])
    return (path, changed) if changed else None
