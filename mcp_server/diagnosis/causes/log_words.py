"""What the text of an error names: the guilty party, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.logs.facts import ErrorFact
from mcp_server.logs.families import Advice, Naming
from mcp_server.logs.text import is_expression
from mcp_server.model import Category, ComponentKind

PARTIES: dict[Category, ComponentKind] = {
    "invalid_package": "package",
    "compile_failure": "toolchain",
    "toolchain": "toolchain",
    "arch_mismatch": "package",
    "environment": "environment",
    "device_mismatch": "input",
    "input_mismatch": "input",
    "shape_out_of_range": "input",
    "constants": "constant",
    "custom_op": "op",
    "concurrency": "call",
    "out_of_memory": "environment",
    "index_out_of_bounds": "input",
    "nan_or_inf": "kernel",
    "illegal_memory_access": "kernel",
    "hang": "call",
    "wrong_output": "kernel",
    "script_error": "script",
}


@dataclass(frozen=True)
class Named:
    """Who an error text names: `name` may be empty, `value` is what the text says of it."""

    kind: ComponentKind
    name: str = ""
    value: str | None = None


# Fields that name the guilty party in families without `names`, the most telling first.
_FIELDS = ("operator", "op", "constant", "library", "symbol", "name", "kernel", "package")
_FIELD_KINDS: Mapping[str, ComponentKind] = {"kernel": "kernel", "op": "op", "operator": "op"}

_ACTIONS: Mapping[Advice, str] = {
    "check_inputs": "compare every input with what the package was compiled for, and convert what differs",
    "check_package": "build or copy the package again, for this machine, and compare its checksum",
    "check_machine": "fix the machine or process environment that the text names, then run again",
    "trace_index": "keep the index within the bound of the tensor that it indexes",
    "locate": "find the launch and the line of the access, then fix the index or the size behind it",
    "find_nan": "find the first launch whose output is not finite, and guard its operation",
    "compare": "find the first launch that diverges from the reference",
    "recompile": "fix the line of the model that the compiler names, then compile again",
    "run_again": "run again with blocking launches and input checks, keeping all output",
    "read_cause": "read the error before this one: it holds the cause",
    "constants": "give every constant of the package under its own name, dtype, shape and device",
    "fix_script": "fix the statement that raised",
    "trace_hang": "find the launch or lock that does not return",
}

# A symbol of libtorch: of its C interface, or in one of its C++ namespaces, as the Itanium ABI writes it.
_OF_TORCH = re.compile(r"aoti_torch_|_Z[A-Z]*N?K?(?:3c10|2at|5torch)")
_OTHER_TORCH = "build {library} again with the libtorch that is installed here, which has no {symbol}"


class _Fields(dict[str, str]):
    """Fields of which a missing one spoils the words; sentences of a log are none."""

    def __missing__(self, name: str) -> str:
        raise KeyError(name)


def named(category: Category, root: ErrorFact) -> Named:
    """The party that `root` names; without a name where it names none."""
    if category == "arch_mismatch" and "built_for" in root.fields:
        return Named(
            "package", "the package", f"built for {root.fields['built_for']}, here {root.fields['here']}"
        )
    if category == "custom_op" and "at_function" in root.fields:
        return Named("op", root.fields["at_function"])
    for naming in root.family.names:
        if found := _filled(naming, category, root):
            return found
    for field in _FIELDS:
        if root.fields.get(field):
            return Named(_FIELD_KINDS.get(field, PARTIES[category]), root.fields[field], _got(root))
    return Named(_unnamed_kind(category, root), "", _got(root))


def _filled(naming: Naming, category: Category, root: ErrorFact) -> Named | None:
    name = _fill(naming.name, root)
    if not name:
        return None
    return Named(naming.kind or PARTIES[category], name, _fill(naming.value, root) or _got(root))


def _fill(template: str, root: ErrorFact) -> str:
    told = {name: value for name, value in root.fields.items() if is_expression(value)}
    try:
        return template.format_map(_Fields(told))
    except KeyError:
        return ""


def _unnamed_kind(category: Category, root: ErrorFact) -> ComponentKind:
    """Export and lowering fail on what the model does, C++ on the toolchain."""
    compiled = category == "compile_failure" and root.family.stage in ("export", "compile")
    return "script" if compiled and not root.family.id.startswith("cpp_") else PARTIES[category]


def _got(root: ErrorFact) -> str | None:
    return root.fields.get("got") or root.fields.get("value")


def action(root: ErrorFact, category: Category) -> str:
    """What to do about a fault of this category, of which this text is the root."""
    if category == "script_error" and root.family.advice not in ("read_cause", "compare"):
        return _ACTIONS["fix_script"]
    own = root.family.fix
    if root.family.id == "undefined_symbol" and _OF_TORCH.match(root.fields.get("symbol", "")):
        own = _OTHER_TORCH
    return (own and _fill(own, root)) or _ACTIONS[root.family.advice]
