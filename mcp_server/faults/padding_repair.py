"""A Triton kernel's source with neutral fillers in masked lanes, to hold the kernel itself against."""

from __future__ import annotations

import ast
import math

from mcp_server.faults.padding import Reduction, filler_of, mask_of, parsed, reductions

_MOST = 8  # changes of one kernel


def repaired(source: str, kernel: str) -> str | None:
    """The source in which no reduction of `kernel` meets a wrong filler; None where that can't be made.

    Comments are lost.
    """
    tree = parsed(source)
    for changes in range(_MOST):
        if tree is None:
            return None
        found = reductions(tree, kernel)
        if not found:
            return ast.unparse(tree) if changes else None
        _repair(tree, found[0])
        tree = parsed(ast.unparse(ast.fix_missing_locations(tree)))
    return None


def _repair(tree: ast.Module, found: Reduction) -> None:
    """Another filler at the load for a maximum or minimum, else or where that has been done, a `tl.where`."""
    wanted = _literal(found.needed)
    other = filler_of(found.load)
    if math.isinf(found.needed) and (other is None or ast.dump(other) != ast.dump(wanted)):
        _fill(found.load, wanted)
        _begin_neutral(tree, found, wanted)
    else:
        _mask(tree, found, wanted)


def _fill(load: ast.Call, value: ast.expr) -> None:
    load.keywords = [word for word in load.keywords if word.arg != "other"]
    del load.args[2:3]
    load.keywords.append(ast.keyword("other", value))


def _begin_neutral(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """What a running maximum begins with: `x = tl.zeros(shape, …)` becomes `tl.full(shape, value, …)`."""
    running = found.call.args[0]
    if not isinstance(running, ast.Name):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_named(node.targets[0], running.id):
            call = node.value
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if call.func.attr == "zeros":
                    call.func.attr = "full"
                    call.args.insert(1, value)
                elif call.func.attr == "full" and len(call.args) > 1:
                    call.args[1] = value


def _mask(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """`tl.where(mask, x, value)` around what is reduced, or around what a loop adds to it."""
    summed = found.call.args[0]
    added = [node for node in ast.walk(tree) if isinstance(node, ast.AugAssign) and _adds(node, summed)]
    for node in added:
        node.value = _where(found, node.value, value)
    if not added:
        found.call.args[0] = _where(found, summed, value)


def _adds(node: ast.AugAssign, to: ast.expr) -> bool:
    return isinstance(to, ast.Name) and isinstance(node.op, ast.Add) and _is_named(node.target, to.id)


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _where(found: Reduction, kept: ast.expr, value: ast.expr) -> ast.expr:
    mask = mask_of(found.load)
    assert mask is not None, "only masked loads are found"
    where = ast.Attribute(ast.Name("tl", ast.Load()), "where", ast.Load())
    return ast.Call(where, [mask, kept, value], [])


def _literal(value: float) -> ast.expr:
    text = repr(value) if math.isfinite(value) else f"float('{value}')"
    return ast.parse(text, mode="eval").body
