"""Puts probes around every launch of a wrapper, without moving a line.

A launch statement becomes, on its own lines,
`{ aoti_debug::Launch aoti_debug_launch(7, "kernel", 3); <views> <arguments> before(); STATEMENT after(); }`.
Views created inside the call are bound to a variable first, so that a probe can see them. The block destroys
them where the original statement would have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mcp_server.package.launches import Argument, Launch, Role
from mcp_server.package.wrapper import Body, Wrapper
from mcp_server.probes.commands import Skipped

ROLE_BITS: dict[Role, int] = {"read": 1, "written": 2, "read_write": 3, "unknown": 0}

_CONSTANT = re.compile(r"(?P<declared>auto& (?P<name>\w+) = (?P<value>constants_->at\(\d+\)));")
_HOISTED = re.compile(r"wrap_with_raii_handle_if_needed\(")
# Expressions that can be evaluated twice: no quotes, assignments, increments or moves.
_PURE = re.compile(
    r"(?!.*(?:\+\+|--|\bmove\(|\brelease\(|\"|'|(?<![=<>!])=(?!=)))[\w\s+\-*/%().:<>,&!|?]+", re.S
)
_HANDLE_ADDRESS = re.compile(r"&(\w+_handle)")
_PLAIN = re.compile(r"[^\x20-\x7e]|[\"\\]")
_STATEMENT = re.compile(r"\s*(?:AOTI_TORCH_ERROR_CODE_CHECK\s*\(|[\w:.]+\s*\()")
_DECLARATION = re.compile(r"\s*(?:const\s+)?(?:auto|[\w:]+(?:<[^;=]*>)?)[&*]?\s+\w+\s*[=({]")


@dataclass(frozen=True)
class Edit:
    """Replace `text[start:end]`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Rewritten:
    """The new text, the numbers of the launches with probes, and the other launches with the reason.

    Launches of `run_impl` keep their index; those of constant folding are numbered on from there.
    """

    text: str
    probed: tuple[int, ...]
    skipped: tuple[Skipped, ...]


def numbered(wrapper: Wrapper) -> list[tuple[int, Launch]]:
    """Every launch with the number under which probes report it."""
    folding = wrapper.folding.launches if wrapper.folding else ()
    return list(enumerate((*wrapper.run.launches, *folding)))


def rewrite(
    wrapper: Wrapper, model: str, refused: dict[int, str] | None = None, *, separate_weights: bool = False
) -> Rewritten:
    """Insert probes into the text that `wrapper` was read from.

    `refused` maps launch numbers to the compiler's error on their probes; those launches are left unchanged.
    `separate_weights` gives each weight that no launch writes an allocation of its own.
    """
    refused = refused or {}
    edits = [_run_edit(body) for body in (wrapper.run, wrapper.folding) if body is not None and body.launches]
    if separate_weights:
        edits += _separations(wrapper)
    probed: list[int] = []
    skipped = [Skipped(model, None, "", f"line {p.line}: {p.what}") for p in wrapper.problems]
    for number, launch in numbered(wrapper):
        reason = refused.get(number) or why_not(wrapper.text, launch)
        if reason:
            skipped.append(Skipped(model, number, launch.kernel, reason))
            continue
        probed.append(number)
        edits += _launch_edits(wrapper.text, number, launch)
    return Rewritten(apply(wrapper.text, edits), tuple(probed), tuple(skipped))


def apply(text: str, edits: Collection[Edit]) -> str:
    """The text with all edits done; they must not overlap. Edits at one place keep their order."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: e.start):
        parts += (text[at : edit.start], edit.text)
        at = edit.end
    return "".join((*parts, text[at:]))


def _separations(wrapper: Wrapper) -> Iterator[Edit]:
    body = wrapper.run
    written = {n for launch in body.launches for n in launch.writes} | {t.writes for t in body.transfers}
    storages = {buffer.storage for name, buffer in body.buffers.items() if name in written}
    for match in _CONSTANT.finditer(wrapper.text, body.start, body.end):
        buffer = body.buffers.get(match["name"])
        if buffer is not None and buffer.kind == "constant" and buffer.storage not in storages:
            value = f"aoti_debug::separate<RAIIAtenTensorHandle>({match['value']})"
            yield Edit(match.start("declared"), match.end(), f"auto {match['name']} = {value};")


def why_not(text: str, launch: Launch) -> str:
    """Why a launch cannot get probes; empty when it can."""
    statement = text[launch.start : launch.end]
    if _DECLARATION.match(statement) and not _STATEMENT.match(statement):
        return "the launch is part of a declaration, which a block around it would end"
    if not statement.rstrip().endswith(";"):
        return "the statement is cut"
    return ""


def _run_edit(body: Body) -> Edit:
    """The scope object of one call. The base class pointer is enough to tell runners apart."""
    return Edit(
        body.start,
        body.start,
        f' aoti_debug::Run aoti_debug_run(this, "{body.name}", (void*)(stream));',
    )


def _launch_edits(text: str, number: int, launch: Launch) -> list[Edit]:
    hoists: list[Edit] = []
    bindings: list[str] = []
    calls: list[str] = []
    for argument in launch.arguments:
        hoisted = _hoist(text, argument, len(hoists))
        if hoisted is not None:
            hoists.append(hoisted[0])
            bindings.append(hoisted[1])
        calls += _report(argument, hoisted[0].text if hoisted else None)
    head = f"{{ aoti_debug::Launch aoti_debug_launch({number}, {quoted(launch.kernel)}, {len(calls)}); "
    reports = "".join(f"aoti_debug_launch.{call}; " for call in calls)
    before = f"{head}{''.join(bindings)}{reports}aoti_debug_launch.before(); "
    return [
        Edit(launch.start, launch.start, before),
        *hoists,
        Edit(launch.end, launch.end, " aoti_debug_launch.after(); }"),
    ]


def _hoist(text: str, argument: Argument, count: int) -> tuple[Edit, str] | None:
    """The edit that replaces an inline view by a variable, and the variable's definition."""
    expression = text[argument.start : argument.end]
    match = _HOISTED.search(expression) if argument.is_tensor and argument.view else None
    if match is None:
        return None
    start = argument.start + match.start()
    end = _closing(text, argument.start + match.end(), argument.end)
    if end is None:
        return None
    name = f"aoti_debug_view_{count}"
    value = text[start:end].replace("\n", " ")
    return Edit(start, end, name), f"auto&& {name} = {value}; "


def _closing(text: str, at: int, limit: int) -> int | None:
    """The offset after the parenthesis that closes the one just before `at`."""
    depth = 1
    for place in range(at, limit):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return None


def _report(argument: Argument, hoisted: str | None) -> Iterator[str]:
    """The probe call that reports one argument; nothing if it is neither tensor nor number."""
    if argument.is_tensor and argument.target:
        names = f"{quoted(argument.target)}, {quoted(argument.name)}, {ROLE_BITS[argument.role]}"
        if address := _HANDLE_ADDRESS.fullmatch(argument.expression):
            yield f"result({names}, {address[0]})"
        else:
            yield f"tensor({names}, aoti_debug::handle({hoisted or argument.target}))"
    elif argument.kind in ("symbol", "scalar") and _PURE.fullmatch(argument.expression):
        value = argument.expression.replace("\n", " ")
        yield f"scalar({quoted(argument.name or argument.target or '')}, {value})"


def quoted(name: str) -> str:
    """A C++ string literal of a name from untrusted text."""
    return '"' + _PLAIN.sub("?", name)[:200] + '"'
