"""Runs the program again: without the hook, with its GPU work serialised, or with a Triton kernel corrected.

For a correction, the hook replaces lines of one file as Python and Triton read it. No line moves.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mcp_server.diagnosis.causes import shared_memory
from mcp_server.diagnosis.causes.illegal_memory_access import (
    in_users_kernel,
    is_a_turn_away,
    marker_of,
    numbers_doubted,
)
from mcp_server.diagnosis.components import kernel_of, name_of
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial, judged_elsewhere
from mcp_server.diagnosis.observe import DECIDES, NEEDED, Observation, limit_of
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
from mcp_server.package.prover import narrow_addresses, narrow_sums, paddings
from mcp_server.package.terms.triton_calls import function_of
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.tools.capture import CHANGED, capture, workload_argv

LARGEST = 4 << 20  # size of a file that is searched
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


class RunAlone(Observation):
    """Run the program that passed under the hook again without it, where the hook may hide a race.

    The hook takes time before each call, and waits for the device after it. If the program fails without the
    hook, run it with each kernel finished before the next starts, and once more unchanged.
    """

    name = "run_alone"
    seconds = 30.0
    best = DECIDES
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        passed = case.capture is not None and case.capture.finished.ok
        return self.best if passed and _may_race(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.runs["alone"] = await self._run(case, context, "alone", {})
        if case.runs["alone"].failure in ("none", "timeout") or case.device != "cuda":
            return
        in_order = await self._run(case, context, "in_order", {BLOCKING: "1"})
        again = await self._run(case, context, "alone_again", {})
        failed = [each.root.text for each in (case.runs["alone"], again) if each.root is not None]
        failing = Seen("raised", text=failed[0] if failed else "an error")
        if "none" not in (again.failure, in_order.failure):
            case.trials[IN_ORDER.key] = judged_elsewhere(IN_ORDER, Effect.SAME, failing)
        elif again.failure != "none":
            gone = judged_elsewhere(IN_ORDER, Effect.GONE, failing)
            case.trials[IN_ORDER.key] = replace(gone, reason="the program passed")

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
    """The script and the modules beside it. Empty for another workload."""
    script = case.workload.script if isinstance(case.workload, ScriptWorkload) else None
    return [script, *sorted(script.parent.glob("*.py"))[:MOST_FILES]] if script is not None else []


def _may_race(case: DiagnosisState) -> bool:
    """Whether streams or copies of a CUDA program may run during a call, or an input was freed too early."""
    if any(each.act == "freed" and each.interval == "stream" for each in case.captured.memory):
        return True
    files = _files_of_script(case)
    if not files or case.device != "cuda":
        return False
    texts = (each.read_text(errors="replace") for each in files if each.stat().st_size <= LARGEST)
    return any(each.streams for each in case.calls) or any(map(UNWAITED.search, texts))


class ReadUsersKernel(Observation):
    """Find the user's Triton kernel that failed to compile, in the files with lines of the program."""

    name = "read_users_kernel"
    seconds = 0.1
    best = NEEDED

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.package is None and case.runs and _refused(case) is not None else 0.0

    async def act(self, case: DiagnosisState, _context: Context) -> None:
        refused = _refused(case)
        case.users_kernel = _of_user(*refused, case) if refused is not None else None


def _refused(case: DiagnosisState) -> tuple[str, int] | None:
    """Return the user's Triton kernel that could not be compiled, and its failing line from its `def`."""
    for _, root in case.own_roots:
        if root.family.id == "triton_compile" and "function" in root.fields:
            line = root.fields.get("kernel_line", "")
            return (root.fields["function"], int(line)) if line.isdigit() else None
    return None


def _of_user(function: str, line: int, case: DiagnosisState) -> UsersKernel | None:
    """Return the program's definition of the kernel. None if no file defines it, or several do.

    These files are the script with the modules beside it, and the files with lines of its model.
    """
    pattern = re.compile(rf"^def\s+{re.escape(function)}\s*\(", re.MULTILINE)
    stacks = [Path(at.file) for compiled in case.captured.compiles for at in compiled.stack]
    nodes = [Path(at.file) for at in _lines_of_program(case)]
    found = []
    for path in dict.fromkeys(path.resolve() for path in [*_files_of_script(case), *stacks, *nodes]):
        if path.is_file() and path.stat().st_size <= LARGEST:
            found += [(path, at) for at in pattern.finditer(path.read_text(errors="replace"))]
    if len(found) != 1:
        return None
    path, at = found[0]
    number = at.string.count("\n", 0, at.start()) + line
    lines = at.string.splitlines()
    code = lines[number - 1].strip()[:300] if number <= len(lines) else ""
    return UsersKernel(function, path, number, code)


def _lines_of_program(case: DiagnosisState) -> list[ModelLocation]:
    """Return lines of the program whose compile failed. Empty if the program was not kept."""
    for compiled in reversed(case.captured.compiles):
        if compiled.exported is not None and compiled.exported.is_file():
            with contextlib.suppress(PackageError):
                return [at for _, at in node_lines(compiled.exported)]
            return []
    return []


class TryUsersKernels(Observation):
    """Run the program with a line corrected where its text shows a mistake, then again without.

    The line is in a user's kernel, or rebinds the input of a CUDA graph.
    """

    name = "try_users_kernels"
    seconds = 40.0
    best = DECIDES
    alone = True

    def after_proof(self, case: DiagnosisState) -> bool:
        """Whether a proven index may mark unused elements, so that a mask in the kernel is the better fix."""
        fault = _fault(case)
        return fault is not None and bool(marker_of(fault))

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        read = case.kernel_defects is not None or case.view is None
        doubted = numbers_doubted(case) or _fault(case) is not None
        tried = any(case.trials[each.key].effect is Effect.GONE for each in case.users_changes.values())
        possible = isinstance(case.workload, ScriptWorkload) and doubted and not tried
        shows = possible and ((read and users_kernels(case)) or rebound(case) is not None)
        return self.best if shows else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        if (found := rebound(case)) is not None:
            file, text = found
            change = change_of("", Mistake("graph", 0), (file.read_text(), text), file.name)
            case.trials[change.key] = await _run_with(case, context, file, change, text)
            if case.trials[change.key].effect is Effect.GONE:
                case.users_changes["", "graph"] = change
                return
        wanted = [
            (kernel, at, mistake, right)
            for kernel in users_kernels(case)
            if (at := _defined(kernel, case)) is not None
            for mistake in mistakes_of(kernel, at.file.read_text(), case)
            if (right := corrected(at.file.read_text(), at.name, mistake))
        ]
        for kernel, at, mistake, text in wanted[:MOST_TRIED]:
            change = change_of(kernel.name, mistake, (at.file.read_text(), text), at.file.name)
            case.trials[change.key] = await _run_with(case, context, at.file, change, text)
            case.users_changes.setdefault((kernel.name, mistake.kind), change)
            if case.trials[change.key].effect is Effect.GONE:
                return


def users_kernels(case: DiagnosisState) -> list[Kernel]:
    found = (kernel_of(launch, case) for launch in case.launches if launch.kind == "user_triton")
    return list({each.name: each for each in found if each is not None}.values())


def _defined(kernel: Kernel, case: DiagnosisState) -> UsersKernel | None:
    function = function_of(kernel)
    return _of_user(function.name, 0, case) if function is not None else None


def mistakes_of(kernel: Kernel, text: str, case: DiagnosisState) -> list[Mistake]:
    """List the mistakes in the kernel's text, with lines counted from its `def`. `text` has the function."""
    function = function_of(kernel)
    if function is None:
        return []
    defects = [each for each in case.kernel_defects or {} if each.kernel == kernel.name]
    found: list[tuple[str, int, str]] = [(each.kind, each.line, "") for each in defects]
    found += [("padded", each.load_line, f"float('{each.needed}')") for each in paddings(kernel)]
    found += [("narrow_sum", each.line, "") for each in narrow_sums(kernel)]
    if case.view is not None:
        narrow = narrow_addresses(case.view, case.sizes)
        found += [("overflow", line, "") for name, line in narrow if name == kernel.name]
    known = [Mistake(kind, line - function.lineno, needed) for kind, line, needed in found]
    fault, lines = _fault(case), kernel.source.split("\n")
    if fault is not None and fault.launch is not None and fault.launch.kernel == kernel.name:
        wraps = fault.missed is not None and is_a_turn_away(fault.missed)
        at_fault = [n for n, line in enumerate(lines, 1) if fault.code and line.strip() == fault.code.strip()]
        kind, needed = ("overflow", "") if wraps else ("beyond", marker_of(fault))
        known += [Mistake(kind, n - function.lineno, needed) for n in at_fault[:1]]
    return known + shown(text, function.name)


def _fault(case: DiagnosisState) -> Fault | None:
    """The memory fault in a user's kernel, if it was located."""
    fault = case.located.fault if case.located is not None else None
    return fault if fault is not None and in_users_kernel(fault, case) else None


async def _run_with(
    case: DiagnosisState, context: Context, file: Path, change: Intervention, text: str
) -> Trial:
    """Run the program with the changed text of a file and, if it passes, again without."""
    assert isinstance(case.workload, ScriptWorkload)
    copy = context.fresh("changed") / file.name
    copy.write_text(text)
    limit = limit_of(case, share=SHARE_OF_RUN)
    workload = case.workload.model_copy(update={"timeout_s": limit.seconds})
    with _without_packages(case, context):
        env = {CHANGED: f"{file}{os.pathsep}{copy}"}
        changed = await capture(context, workload, env=env, gpus=gpus_of(None))
    errors = [root for _, root in case.own_roots]
    failing = Seen("raised", text=errors[0].text if errors else "an error")
    if not changed.compiles:
        return _undecided(change, failing, "the program did not compile its package again")
    if not changed.finished.ok:
        root = see("changed", changed.finished).root
        if root is None or not errors or root.family.id != errors[0].family.id:
            return _undecided(change, failing, "with the change, the program failed in another way")
        return judged_elsewhere(change, Effect.SAME, failing)
    with _without_packages(case, context):
        again = await capture(context, workload, gpus=gpus_of(None))
    if again.finished.ok:
        return _undecided(change, failing, "the program passed without the change, too")
    return replace(judged_elsewhere(change, Effect.GONE, failing), reason="the program passed")


def _undecided(change: Intervention, failing: Seen, why: str) -> Trial:
    return replace(judged_elsewhere(change, Effect.NOT_APPLICABLE, failing), reason=why)


@contextlib.contextmanager
def _without_packages(case: DiagnosisState, context: Context) -> Iterator[None]:
    """Move aside what the captured run wrote: a program may compile only if there is no package."""
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
    """The change from the first text to the second, with the lines that differ. `name` is the file's name."""
    pairs = zip(*(text.split("\n") for text in texts), strict=True)
    lines = [(n, old.strip(), new.strip()) for n, (old, new) in enumerate(pairs, 1) if old != new]
    shown = ", ".join(str(number) for number, _, _ in lines)
    return Intervention(
        key=f"source:{kernel}:{mistake.kind}:{mistake.line}",
        kind=Kind.SOURCE,
        what=f"this change in line {shown} of {name}",
        before_code="\n".join(old for _, old, _ in lines),
        after_code="\n".join(new for _, _, new in lines if not _DOES_NOTHING.fullmatch(new)),
    )


class Mistake(NamedTuple):
    """A mistake that the text of a user's Triton kernel shows.

    `line` counts from the kernel's `def`, whose line is 0. `needed` is the number that masked lanes need.
    """

    kind: str
    line: int
    needed: str = ""


_Edits = Iterator[tuple[ast.expr | ast.stmt, str]]  # expressions to replace, with their new text


def _called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls `tl.NAME` or `x.NAME`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


@dataclass(frozen=True)
class _KernelText:
    """A kernel's function in the text of its file, and the line of the mistake in that file."""

    function: ast.FunctionDef
    line: int
    needed: str

    def calls(self, *names: str, anywhere: bool = False) -> list[ast.Call]:
        """The calls at the line of the mistake, or in the whole function."""
        found = [each for each in ast.walk(self.function) if isinstance(each, ast.Call)]
        named = [each for each in found if _called(each, *names)]
        return [each for each in named if anywhere or each.lineno <= self.line <= (each.end_lineno or 0)]

    def value(self, node: ast.expr) -> ast.expr:
        """The last assignment to a name before the node. The node itself if it is no name."""
        before = [
            each
            for each in ast.walk(self.function)
            if isinstance(each, ast.Assign) and each.lineno < node.lineno
        ]
        found = [each.value for each in before if ast.unparse(each.targets[0]) == ast.unparse(node)]
        return found[-1] if found and isinstance(node, ast.Name) else node

    def behind(self, node: ast.expr) -> Iterator[ast.expr]:
        """All parts of an address: its expression, and what was assigned or added to its names before."""
        yield node
        if _called(node, "load"):
            return
        added = [each for each in ast.walk(self.function) if isinstance(each, ast.AugAssign)]
        made = [each.value for each in added if ast.unparse(each.target) == ast.unparse(node)]
        earlier = [each for each in (self.value(node), *made) if each.lineno < node.lineno]
        for part in (*earlier, *ast.iter_child_nodes(node)):
            if isinstance(part, ast.expr):
                yield from self.behind(part)

    def is_loaded(self, node: ast.expr) -> bool:
        """Whether an expression is the result of a load, or elements of it."""
        return _called(self.value(node.value if isinstance(node, ast.Subscript) else node), "load")

    @property
    def parameters(self) -> set[str]:
        return {each.arg for each in self.function.args.args}

    def pointers(self, *names: str) -> set[str]:
        """The parameters whose addresses these calls get."""
        found = set()
        for call in self.calls(*names, anywhere=True):
            place = self.value(call.args[0])
            while isinstance(place, ast.BinOp):
                place = self.value(place.left)
            found.add(ast.unparse(place))
        return found & self.parameters


def _other(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """An argument of a call, by keyword or place."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named or (call.args[place] if len(call.args) > place else None)


def _reads(node: ast.expr, place: str) -> bool:
    return isinstance(node, ast.Call) and _called(node, "load") and ast.unparse(node.args[0]) == place


def _summed(kernel: _KernelText) -> _Edits:
    """Replace load, add and store of an element by an atomic addition."""
    for call in kernel.calls("store"):
        total, place = kernel.value(call.args[1]), ast.unparse(call.args[0])
        sides = [total.left, total.right] if isinstance(total, ast.BinOp) else []
        old = [each for each in sides if _reads(kernel.value(each), place)]
        added = [each for each in sides if each not in old]
        if len(old) == len(added) == 1:
            yield call.func, "tl.atomic_add"
            yield call.args[1], ast.unparse(added[0])


def _added(kernel: _KernelText) -> _Edits:
    for call in kernel.calls("store"):
        yield call.func, "tl.atomic_add"


def _as_passed(kernel: _KernelText) -> _Edits:
    for call in kernel.calls("to", anywhere=True):
        if call.args and _called(call.args[0], "pointer_type") and isinstance(call.func, ast.Attribute):
            yield call, ast.unparse(call.func.value)


def _masked(kernel: _KernelText) -> _Edits:
    """Give a store without a mask the mask with which its value was loaded."""
    for call in kernel.calls("store"):
        used = [kernel.value(each) for each in ast.walk(call.args[1]) if isinstance(each, ast.expr)]
        read = [each for value in used for each in ast.walk(value) if isinstance(each, ast.Call)]
        given = [_other(each, "mask", 1) for each in read if _called(each, "load")]
        masks = {ast.unparse(mask) for mask in given if mask is not None}
        if len(masks) == 1 and _other(call, "mask", 2) is None:
            yield call.args[1], f"{ast.unparse(call.args[1])}, mask={masks.pop()}"


def _guarded(kernel: _KernelText) -> _Edits:
    """Mask a load: at indices marked as unused, or with the mask of the kernel's stores.

    Masked lanes get a value that does not change a reduction.
    """
    masks = [_other(each, "mask", 2) for each in kernel.calls("store", anywhere=True)]
    texts = {ast.unparse(each) for each in masks if each is not None}
    filler = "float('-inf')" if kernel.calls("max", "maximum", anywhere=True) else "0.0"
    for call in kernel.calls("load"):
        mask, parts = _other(call, "mask", 1), ast.walk(call.args[0])
        rows = [each for each in parts if isinstance(each, ast.expr) and kernel.is_loaded(each)]
        if kernel.needed and rows:
            texts = {f"({ast.unparse(rows[0])} != {kernel.needed})"}
        if mask is not None and kernel.needed and rows:
            also = "" if _other(call, "other", 2) is not None else f", other={filler}"
            kept = ast.unparse(mask) if isinstance(mask, ast.Name) else f"({ast.unparse(mask)})"
            yield mask, f"{kept} & {min(texts)}{also}"
        elif len(texts) == 1 and mask is None:
            yield call.args[0], f"{ast.unparse(call.args[0])}, mask={min(texts)}, other={filler}"


def _filled(kernel: _KernelText) -> _Edits:
    for call in kernel.calls("load"):
        filler = _other(call, "other", 2)
        if filler is not None:
            yield filler, kernel.needed


def _in_32_bits(kernel: _KernelText) -> _Edits:
    """Sum in float32: the accumulator of a loop, or the values of a plain sum."""
    running = [_other(each, "dtype", 1) for each in kernel.calls("zeros", anywhere=True)]
    narrow = [each for each in running if each is not None and ast.unparse(each) != "tl.float32"]
    yield from ((each, "tl.float32") for each in narrow)
    for call in kernel.calls("sum") if not narrow else ():
        yield call.args[0], f"({ast.unparse(call.args[0])}).to(tl.float32)"


def _wide(kernel: _KernelText) -> _Edits:
    """Compute in 64 bits the products behind an address, or all that depends on the program id."""
    passed = kernel.parameters
    parts = [part for call in kernel.calls("load", "store") for part in kernel.behind(call.args[0])]
    products = [each for each in parts if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult)]
    factors = [_variable(each, passed) for each in products if not _names(each) <= passed]
    for factor in dict.fromkeys(factors or kernel.calls("program_id", anywhere=True)):
        yield factor, f"{ast.unparse(factor)}.to(tl.int64)"


def _variable(node: ast.expr, passed: set[str]) -> ast.expr:
    """The first operand that is no argument of the kernel, as an argument may be a Python number."""
    while isinstance(node, ast.BinOp):
        node = node.right if _names(node.left) <= passed else node.left
    return node


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _before_end(kernel: _KernelText) -> _Edits:
    """Stop lanes before a limit, not at it, if the limit is a parameter or loaded."""
    for node in ast.walk(kernel.function):
        if not isinstance(node, ast.Compare) or node.lineno != kernel.line or len(node.ops) != 1:
            continue
        left, right = node.left, node.comparators[0]
        ends = {ast.LtE: (left, right, "<"), ast.GtE: (right, left, ">")}
        lane, limit, sign = ends.get(type(node.ops[0]), (left, left, ""))
        limits = ast.unparse(limit) in kernel.parameters or kernel.is_loaded(limit)
        if sign and limits and any(_called(part, "arange") for part in kernel.behind(lane)):
            yield node, f"{ast.unparse(left)} {sign} {ast.unparse(right)}"


def _restored(kernel: _KernelText) -> _Edits:
    """Make the tuner restore what the kernel updates: its trial launches run on the program's own tensors."""
    atomics = [f"atomic_{each}" for each in ("add", "max", "min", "and", "or", "xor", "xchg", "cas")]
    updated = kernel.pointers("store") & kernel.pointers("load") | kernel.pointers(*atomics)
    for call in kernel.function.decorator_list:
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("autotune") or not updated:
            continue
        key, given = _other(call, "key", 1), {each.arg for each in call.keywords}
        if key is not None and key.lineno == kernel.line and not given & {"restore_value", "reset_to_zero"}:
            text = f"{ast.unparse(key)}, restore_value={sorted(updated)}"
            yield key, text.replace("'", '"')


CORRECTIONS: dict[str, Callable[[_KernelText], _Edits]] = {
    "lost": _summed,
    "clash": _added,
    "retyped": _as_passed,
    "unmasked": _masked,
    "beyond": _guarded,
    "padded": _filled,
    "narrow_sum": _in_32_bits,
    "overflow": _wide,
    "past_end": _before_end,
    "tuned": _restored,
}
SHOWN = ("tuned", "past_end", "unmasked")  # found by text alone, so they may be intended


def shown(text: str, function: str) -> list[Mistake]:
    """List mistakes that a kernel's text alone shows, also in its decorators."""
    found = _function(text, function)
    if found is None:
        return []
    first = min([found.lineno, *(each.lineno for each in found.decorator_list)])
    texts = [_KernelText(found, line, "") for line in range(first, (found.end_lineno or first) + 1)]
    return [
        Mistake(kind, each.line - found.lineno)
        for kind in SHOWN
        for each in texts
        if any(CORRECTIONS[kind](each))
    ]


def corrected(text: str, function: str, found: tuple[str, int, str]) -> str:
    """Return a program's text without a mistake of its Triton kernel. No line moves. Empty if impossible."""
    mistake, at = Mistake(*found), _function(text, function)
    correct = CORRECTIONS.get(mistake.kind)
    if at is None or correct is None:
        return ""
    return _edited(text, list(correct(_KernelText(at, at.lineno + mistake.line, mistake.needed))))


def _edited(text: str, edits: list[tuple[ast.expr | ast.stmt, str]]) -> str:
    """Return the text with replaced expressions or statements. Empty if one spans several lines."""
    lines = [line.encode() for line in text.split("\n")]
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        if node.end_lineno != node.lineno:
            return ""
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
    changed = b"\n".join(lines).decode()
    return changed if edits and changed != text else ""


def rebound(case: DiagnosisState) -> tuple[Path, str] | None:
    """A file of the program, and its text with the freed input of a CUDA graph kept, if one line binds it.

    The line rebinds the input's attribute or variable to a value computed from it, or an attribute outside
    `__init__`. None if there is no such line, or several.
    """
    freed = (each for each in case.captured.memory if (each.act, each.interval) == ("freed", "graph"))
    place = next((each.input for each in freed), len(case.compiled_inputs))
    if place >= len(case.compiled_inputs):
        return None
    name, found = name_of(case.compiled_inputs[place]), []
    for path in dict.fromkeys(each.resolve() for each in _files_of_script(case)):
        text = path.read_text(errors="replace") if path.stat().st_size <= LARGEST else ""
        found += [(path, text, *edit) for edit in _bindings(text, name)]
    if len(found) != 1:
        return None
    ((path, text, line, kept),) = found
    changed = _edited(text, [(line, kept)])
    return (path, changed) if changed else None


def _bindings(text: str, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """The statements that rebind `name`, each with a copy into the old tensor as its replacement."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        tree = ast.parse(text)
        first = {
            part
            for each in ast.walk(tree)
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
            for part in ast.walk(each)
        }
        for line in ast.walk(tree):
            if not isinstance(line, ast.Assign) or len(line.targets) != 1 or line in first:
                continue
            target, value = ast.unparse(line.targets[0]), ast.unparse(line.value)
            own = re.search(rf"(?<![\w.]){re.escape(target)}\b", value)
            attribute = isinstance(line.targets[0], ast.Attribute)
            if target.rpartition(".")[2] == name and (attribute or own):
                yield line, f"{target}.copy_({value})"


def _function(text: str, name: str) -> ast.FunctionDef | None:
    """The only function of that name in a program's text. None if there is none, or several."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name]
    return found[0] if len(found) == 1 else None
