"""The line of a program that makes the call, with one argument changed: `run(a.to(torch.float32), b)`."""

from __future__ import annotations

import ast
import re

from mcp_server.model import Fix

_LEAF = re.compile(r"args\[(?P<place>\d+)\]")


def at_call_site(fix: Fix, line: str, arguments: int) -> Fix:
    """`fix` of one positional argument in the line that makes the call, which has so many arguments.

    As it is for anything else, and where the line has more than one such call.
    """
    leaf = _LEAF.fullmatch(fix.before or "")
    if leaf is None or fix.after is None:
        return fix
    changed = fix.after.removeprefix(f"{leaf[0]} = ")
    if not changed.startswith(f"{leaf[0]}."):
        return fix
    after = _with_argument(line.strip(), int(leaf["place"]), arguments, changed.removeprefix(leaf[0]))
    return fix.model_copy(update={"before": line.strip(), "after": after}) if after else fix


def _with_argument(line: str, place: int, arguments: int, method: str) -> str:
    """The line with `method` called on that argument of its only call with so many; empty if unsure."""
    try:
        calls = [each for each in ast.walk(ast.parse(line)) if _takes(each, arguments)]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if len(calls) != 1 or not line.isascii():
        return ""
    (call,) = calls
    assert isinstance(call, ast.Call)
    given = call.args[place]
    text = line[given.col_offset : given.end_col_offset]
    whole = isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    changed = f"{text}{method}" if whole else f"({text}){method}"
    return f"{line[: given.col_offset]}{changed}{line[given.end_col_offset :]}"


def _takes(node: ast.AST, arguments: int) -> bool:
    """Whether a node is a call with so many positional arguments and nothing else."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != arguments:
        return False
    return arguments > 0 and not any(isinstance(each, ast.Starred) for each in node.args)
