"""Corrected texts of a user's program: of a Triton kernel, of how a package is loaded, and of streams.

Each function reads the text of a file and returns it with a mistake corrected. Only a run with the correction
shows whether it was a mistake.
"""

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from mcp_server.package.kernels import Kernel
from mcp_server.package.prover import narrow_addresses, narrow_sums, paddings
from mcp_server.package.view import PackageView


class Mistake(NamedTuple):
    """A mistake that the text of a user's Triton kernel shows.

    `line` counts from the kernel's `def`, whose line is 0. `needed` is the number that masked lanes need, or
    an index that marks unused elements.
    """

    kind: str
    line: int
    needed: str = ""


ATOMICS = tuple(f"atomic_{each}" for each in ("add", "max", "min", "and", "or", "xor", "xchg", "cas"))
_Node = TypeVar("_Node", bound=ast.AST)
_Edits = Iterator[tuple[ast.expr | ast.stmt, str]]  # expressions to replace, with their new text


def _called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls `tl.NAME` or `x.NAME`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


@dataclass(frozen=True)
class _KernelText:
    """A kernel's function in the text of its file, the line of the mistake, and the whole file."""

    function: ast.FunctionDef
    line: int
    needed: str
    file: ast.Module

    def launches(self) -> Iterator[tuple[ast.Call, ast.expr]]:
        """The launches of the kernel in its file, each with its grid."""
        every = list(ast.walk(self.file))
        assigned = {
            ast.unparse(each.targets[0]): each.value for each in every if isinstance(each, ast.Assign)
        }
        calls = [each for each in every if isinstance(each, ast.Call)]
        for call, at in ((each, each.func) for each in calls):
            if isinstance(at, ast.Subscript) and self.function.name in _wrapped(at.value):
                yield call, assigned.get(ast.unparse(at.slice), at.slice)

    def arguments(self) -> Iterator[tuple[str, ast.expr]]:
        """The parameters of the kernel, each with what a launch passes for it."""
        names = [each.arg for each in self.function.args.args]
        for call, _ in self.launches():
            yield from zip(names, call.args, strict=False)
            yield from ((each.arg, each.value) for each in call.keywords if each.arg is not None)

    def calls(self, *names: str, anywhere: bool = False) -> list[ast.Call]:
        """The calls of `names` at the line of the mistake, or in the whole function."""
        found = [each for each in ast.walk(self.function) if isinstance(each, ast.Call)]
        named = [each for each in found if _called(each, *names)]
        return [each for each in named if anywhere or each.lineno <= self.line <= (each.end_lineno or 0)]

    def value(self, node: ast.expr) -> ast.expr:
        """The last assignment to a name before the node. The node itself if it is not a name."""
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
        """The pointer parameters of the kernel that these calls access."""
        found = set()
        for call in self.calls(*names, anywhere=True):
            place = self.value(call.args[0])
            while isinstance(place, ast.BinOp):
                place = self.value(place.left)
            found.add(ast.unparse(place))
        return found & self.parameters


def _wrapped(kernel: ast.expr) -> set[str]:
    """The name of the launched kernel, perhaps one that was passed to `wrap_triton`."""
    return {ast.unparse(each) for each in (kernel, *(kernel.args if isinstance(kernel, ast.Call) else ()))}


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
    """Mask a load at indices that mark unused elements, or with the mask of the kernel's stores.

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
    """Compute in 64 bits the products in an address, or everything that depends on the program id."""
    passed = kernel.parameters
    parts = [part for call in kernel.calls("load", "store") for part in kernel.behind(call.args[0])]
    products = [each for each in parts if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult)]
    factors = [_variable(each, passed) for each in products if not _names(each) <= passed]
    for factor in dict.fromkeys(factors or kernel.calls("program_id", anywhere=True)):
        yield factor, f"{ast.unparse(factor)}.to(tl.int64)"


def _variable(node: ast.expr, passed: set[str]) -> ast.expr:
    """The first operand that is not a kernel argument. Arguments may be Python numbers, which lack `.to`."""
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
    """Make the tuner restore what the kernel updates, as its trials run on the program's own tensors."""
    updated = kernel.pointers("store") & kernel.pointers("load") | kernel.pointers(*ATOMICS)
    for call in kernel.function.decorator_list:
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("autotune") or not updated:
            continue
        key, given = _other(call, "key", 1), {each.arg for each in call.keywords}
        if key is not None and key.lineno == kernel.line and not given & {"restore_value", "reset_to_zero"}:
            text = f"{ast.unparse(key)}, restore_value={sorted(updated)}"
            yield key, text.replace("'", '"')


def _rounded_up(kernel: _KernelText) -> _Edits:
    """Round the grid up, so that a program starts for the last, incomplete block."""
    for _, grid in kernel.launches():
        for part in ast.walk(grid):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv):
                yield part, f"triton.cdiv({ast.unparse(part.left)}, {ast.unparse(part.right)})"


def _zeroed(kernel: _KernelText) -> _Edits:
    """Fill the new tensors that the kernel updates with zeros."""
    updated = kernel.pointers("store") & kernel.pointers("load") | kernel.pointers(*ATOMICS)
    made = [each for each in ast.walk(kernel.file) if isinstance(each, ast.Assign)]
    for name, value in kernel.arguments():
        for each in made if name in updated else ():
            call = each.value
            if ast.unparse(each.targets[0]) == ast.unparse(value) and isinstance(call, ast.Call):
                filled = re.sub(r"\b(new_)?empty(_like)?$", r"\1zeros\2", ast.unparse(call.func))
                yield call.func, filled


def _contiguous(kernel: _KernelText) -> _Edits:
    """Pass contiguous tensors to a kernel that takes no strides."""
    if any("stride" in each.lower() for each in kernel.parameters):
        return
    read = kernel.pointers("load") - kernel.pointers("store", *ATOMICS)
    for name, value in kernel.arguments():
        if name in read and not ast.unparse(value).endswith(".contiguous()"):
            yield value, f"{ast.unparse(value)}.contiguous()"


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
    "short_grid": _rounded_up,
    "strides": _contiguous,
    "unset": _zeroed,
}
SHOWN = ("tuned", "past_end", "unmasked")  # found by text alone, so they may be intended
AT_LAUNCH = ("short_grid", "strides")  # the same, found where the kernel is launched


def shown(text: str, function: str) -> list[Mistake]:
    """List mistakes that a kernel's text alone shows, including mistakes in its decorators."""
    parsed = _function(text, function)
    if parsed is None:
        return []
    file, found = parsed
    first = min([found.lineno, *(each.lineno for each in found.decorator_list)])
    texts = [_KernelText(found, line, "", file) for line in range(first, (found.end_lineno or first) + 1)]
    return [
        Mistake(kind, each.line - found.lineno)
        for kind in SHOWN
        for each in texts
        if any(CORRECTIONS[kind](each))
    ] + [Mistake(kind, 0) for kind in AT_LAUNCH if any(CORRECTIONS[kind](texts[0]))]


def shown_by_code(
    kernel: Kernel, view: PackageView | None, sizes: Mapping[str, int]
) -> list[tuple[str, int, str]]:
    """List kind, line and `needed` of mistakes that follow from a kernel's code and the sizes of the call."""
    found = [("padded", each.load_line, f"float('{each.needed}')") for each in paddings(kernel)]
    found += [("narrow_sum", line, "") for line, _ in narrow_sums(kernel)]
    narrow = narrow_addresses(view, sizes) if view is not None else []
    return found + [("overflow", line, "") for name, line in narrow if name == kernel.name]


def corrected(text: str, function: str, found: tuple[str, int, str]) -> str:
    """A program's text without a mistake of its Triton kernel. No line moves. Empty if impossible."""
    mistake, parsed = Mistake(*found), _function(text, function)
    correct = CORRECTIONS.get(mistake.kind)
    if parsed is None or correct is None:
        return ""
    file, at = parsed
    return edited(text, list(correct(_KernelText(at, at.lineno + mistake.line, mistake.needed, file))))


def edited(text: str, edits: list[tuple[ast.expr | ast.stmt, str]]) -> str:
    """The text with replaced expressions or statements. Empty if one spans several lines."""
    lines = [line.encode() for line in text.split("\n")]
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        if node.end_lineno != node.lineno:
            return ""
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
    changed = b"\n".join(lines).decode()
    return changed if edits and changed != text else ""


def bindings(text: str, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """The statements that rebind `name`, each with a copy into the old tensor as its replacement."""
    functions = _nodes(text, ast.FunctionDef)
    made = [each for each in functions if each.name == "__init__"]
    first = {part.lineno for each in made for part in ast.walk(each) if isinstance(part, ast.Assign)}
    captures = [block for block, _ in _blocks(text, "cuda.graph")]
    spans = [(each.lineno, each.end_lineno or 0) for each in functions]
    for line in _nodes(text, ast.Assign):
        target, value = ast.unparse(line.targets[0]), ast.unparse(line.value)
        own = re.search(rf"(?<![\w.]){re.escape(target)}\b", value)
        attribute = isinstance(line.targets[0], ast.Attribute)
        since = max((at for at, end in spans if at <= line.lineno <= end), default=line.lineno)
        later = any(since <= each.lineno <= (each.end_lineno or 0) < line.lineno for each in captures)
        once = len(line.targets) == 1 and line.lineno not in first
        if once and target.rpartition(".")[2] == name and (attribute or own or later):
            yield line, f"{target}.copy_({value})"


def _nodes(text: str, kind: type[_Node]) -> list[_Node]:
    """The nodes of this kind in a text. Empty if it cannot be parsed."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        return [each for each in ast.walk(ast.parse(text)) if isinstance(each, kind)]
    return []


def _function(text: str, name: str) -> tuple[ast.Module, ast.FunctionDef] | None:
    """The parsed text and its only function of that name. None if there is none, or several."""
    for tree in _nodes(text, ast.Module):
        found = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name]
        return (tree, found[0]) if len(found) == 1 else None
    return None


def single_threaded(text: str) -> str:
    """The text with `run_single_threaded=True` where it loads a package, or empty."""
    edits: list[tuple[ast.expr | ast.stmt, str]] = []
    for call in _nodes(text, ast.Call):
        given = [*call.args, *(each.value for each in call.keywords)]
        decided = {each.arg for each in call.keywords} & {None, "run_single_threaded"}
        if given and not decided and ast.unparse(call.func).endswith("load_package"):
            edits.append((given[-1], f"{ast.unparse(given[-1])}, run_single_threaded=True"))
    return edited(text, edits)


def _blocks(text: str, manager: str) -> list[tuple[ast.With, str]]:
    """List the blocks of a text in `with torch.cuda.stream(s):` or another manager, with the text of `s`."""
    entered = [(block, item.context_expr) for block in _nodes(text, ast.With) for item in block.items]
    return [
        (block, ast.unparse(call.args[0]))
        for block, call in entered
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.func).endswith(manager)
    ]


def _waiting(text: str, *, after: bool) -> str:
    """The text with a wait before, or after, each block of a stream, if any."""
    lines, blocks = text.split("\n"), _blocks(text, "cuda.stream")
    for block, stream in sorted(blocks, key=lambda each: each[0].lineno, reverse=True):
        here, first = "torch.cuda.current_stream()", block.lineno - 1
        waits, ends, place = (here, stream, block.end_lineno or 0) if after else (stream, here, first)
        lines.insert(place, " " * block.col_offset + f"{waits}.wait_stream({ends})")
    return "\n".join(lines) if blocks else ""


def _with(values: Mapping[tuple[str, str], str], text: str) -> str:
    """The text with other `values` of settings: keywords, attributes, or the first argument of a call.

    Each setting is given by the end of its name and by its value in the text. Empty if there is none.
    """
    given = [(each.arg or "", each.value) for each in _nodes(text, ast.keyword)]
    given += [(ast.unparse(each.targets[0]), each.value) for each in _nodes(text, ast.Assign)]
    given += [(ast.unparse(each.func), first) for each in _nodes(text, ast.Call) for first in each.args[:1]]
    edits: list[tuple[ast.expr | ast.stmt, str]] = []
    for (end, old), new in values.items():
        edits += [(at, new) for name, at in given if name.endswith(end) and ast.unparse(at) == old]
    return edited(text, edits)


_PRECISE = {
    ("allow_tf32", "True"): "False",
    ("fp32_precision", "'tf32'"): '"ieee"',
    ("float32_matmul_precision", "'high'"): '"highest"',
    ("float32_matmul_precision", "'medium'"): '"highest"',
}
# What a program may lack beside its kernels, in the order in which it is tried: waits for the GPU, a load
# for one thread, memory of its own, precision.
LACKS: dict[str, Callable[[str], str]] = {
    "stream_capture": single_threaded,
    "update": partial(_with, {("user_managed", "True"): "False"}),
    "stream": partial(_waiting, after=False),
    "output_stream": partial(_waiting, after=True),
    "copy": partial(_with, {("non_blocking", "True"): "False"}),
    "precision": partial(_with, _PRECISE),
}
