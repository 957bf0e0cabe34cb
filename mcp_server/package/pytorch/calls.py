"""Calls of operators in a wrapper as torch calls, from the operator's schema or the package's JSON.

`Alone` is one launch that can be repeated by itself, with arguments that a probe recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mcp_server.package.launches import Argument, Launch, shim_operator
from mcp_server.package.pytorch.axes import NotRead
from mcp_server.package.pytorch.tensors import Tensors
from mcp_server.worker.events import Schema, SchemaArgument

Json = dict[str, Any]


def _schema(operator: str, tensors: str, *others: SchemaArgument) -> Schema:
    given = tuple(SchemaArgument(name, "Tensor") for name in tensors.split())
    return Schema("", operator, [*given, *others, SchemaArgument("out", "Tensor", is_out=True)])


_SCALED = (
    SchemaArgument("beta", "number", keyword=True, default="1"),
    SchemaArgument("alpha", "number", keyword=True, default="1"),
)
COMMON = {
    "mm_out": _schema("torch.mm", "self mat2"),
    "bmm_out": _schema("torch.bmm", "self mat2"),
    "addmm_out": _schema("torch.addmm", "self mat1 mat2", *_SCALED),
    "baddbmm_out": _schema("torch.baddbmm", "self batch1 batch2", *_SCALED),
}
"""Operators of nearly every package, known without an installed torch."""
_ATTENTION = [f"_scaled_dot_product_{kind}_attention" for kind in ("efficient", "flash", "cudnn")]
"""Operators that only a GPU has (torch 2.8-2.15, native_functions.yaml)."""


@dataclass
class Written:
    """A call. `text` has a mark for each of `tensors`. `out` are the variables that it writes through `out=`.

    `results` are the variables that it creates, "" for an unused result.
    """

    text: str = ""
    tensors: list[Argument] = field(default_factory=list)
    results: tuple[str, ...] = ()
    out: tuple[str, ...] = ()

    def mark(self, argument: Argument) -> str:
        self.tensors.append(argument)
        return f"\0{len(self.tensors) - 1}\0"

    def filled(self, given: Sequence[str]) -> str:
        return re.sub(r"\0(\d+)\0", lambda mark: given[int(mark[1])], self.text)


@dataclass(frozen=True)
class Place:
    """An argument of a launch: its variable, and its number among the arguments with this variable."""

    variable: str
    turn: int = 0


@dataclass(frozen=True)
class Alone:
    """A launch as one expression over its arguments.

    The expression returns the tensors `gives`, or writes to the tensors among `takes` that the launch writes.
    `assumed` are size, stride and type with which the launch reads tensors that operators made.
    """

    expression: str
    takes: Mapping[str, Place]
    gives: Sequence[str]
    assumed: Mapping[Place, str] = field(default_factory=dict)


def place_of(launch: Launch, argument: Argument) -> Place:
    same = [each for each in launch.tensors if each.target == argument.target]
    return Place(argument.target or "", same.index(argument) if argument in same else 0)


def shim_call(launch: Launch, schemas: Mapping[str, Schema], names: Tensors) -> Written:
    """Write a call of a C shim such as `aoti_torch_cuda_mm_out`. Raise `NotRead` without its schema."""
    shim = shim_operator(launch.callee)
    schema = schemas.get(shim) or COMMON.get(shim)
    if schema is None:
        raise NotRead(f"the schema of {shim}")
    by_position = {at: list(found) for at, found in groupby(launch.arguments, key=lambda each: each.position)}
    positions = iter(sorted(by_position))
    out = [by_position[next(positions)][0] for each in schema.arguments if each.is_out]
    written = Written(out=tuple(each.target or "" for each in out))
    given: list[tuple[SchemaArgument, str]] = []
    for each in schema.arguments:
        if not each.is_out:
            found = by_position[next(positions)]
            if each.type.endswith("Device") or "List[" in each.type:
                next(positions, None)  # skip the index of the device, or the list's length
            given.append((each, _given(each, found, written, launch, names)))
    written.text = f"{schema.operator}({', '.join(_arguments(given))})"
    if shim in _ATTENTION:
        written.text = f"attention({written.text.replace('(', ', ', 1)}"
    results = [by_position[at][0] for at in positions]
    written.results = tuple((each.expression != "nullptr" and each.target) or "" for each in results)
    return written


def _given(
    wanted: SchemaArgument, found: Sequence[Argument], written: Written, launch: Launch, names: Tensors
) -> str:
    """Write the expression for one argument."""
    first, kind = found[0], wanted.type
    expression = first.expression.strip()
    optional = kind.startswith("Optional[")
    inner = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if inner.startswith("List["):
        if expression in ("nullptr", "0"):
            return "None" if optional else "[]"
        if "Tensor" in inner:
            tensors = ("None" if each.expression == "nullptr" else written.mark(each) for each in found)
            return f"[{', '.join(tensors)}]"
        return f"[{', '.join(map(names.number, names.array(expression)))}]"
    if inner == "Device":
        return "device"
    if expression in ("nullptr",) or (optional and expression == "0" and inner != "bool"):
        return "None"
    if inner == "Tensor":
        return written.mark(first) if first.is_tensor else _behind(first, launch, names)
    if inner == "str":
        return repr(expression.strip('"'))
    if optional:
        expression = names.assigned(expression.lstrip("&"), launch.start) or expression
    if "cached_torch_dtype_" in expression:
        return f"torch.{expression.rpartition('cached_torch_dtype_')[2]}"
    if inner == "bool" and expression in ("0", "1"):
        return str(expression == "1")
    return names.number(expression)


def _behind(argument: Argument, launch: Launch, names: Tensors) -> str:
    """The tensor whose handle is passed by address."""
    assigned = names.assigned(argument.expression.lstrip("&").strip(), launch.start)
    if assigned is None:
        raise NotRead(f"the argument {argument.expression}")
    bare = re.sub(r"\.get\(\)|_handle$", "", assigned.strip())
    return names.variable(re.sub(r"wrap_with_raii_handle_if_needed\((.*)\)", r"\1", bare))


def _arguments(given: Sequence[tuple[SchemaArgument, str]]) -> list[str]:
    """Write the arguments without trailing defaults, and by keyword where the schema requires it."""
    told = list(given)
    while told and told[-1][0].default is not None and _same(told[-1][0].default, told[-1][1]):
        told.pop()
    found, by_name = [], False
    for each, text in told:
        if each.default is not None and _same(each.default, text) and (each.keyword or by_name):
            by_name = True
            continue
        by_name = by_name or each.keyword
        found.append(f"{each.name}={text}" if by_name else text)
    return found


def _same(default: str | None, text: str) -> bool:
    if default == text:
        return True
    try:
        return float(str(default)) == float(text)
    except ValueError:
        return False


def proxy_call(launch: Launch, node: Json, names: Tensors) -> Written:
    """Write a call through the proxy executor. `node` is its entry in the package. May raise `NotRead`."""
    written = Written()
    tensors = iter([each for each in launch.arguments if each.is_tensor and not each.fresh])
    numbers = iter([each for each in launch.arguments if not each.is_tensor])

    def value(argument: Json) -> str:
        kind, content = (
            next(iter(argument.items())) if "type" not in argument else (argument["type"], argument["value"])
        )
        match kind:
            case "as_tensor":
                return written.mark(next(tensors))
            case "as_tensors":
                return f"[{', '.join(written.mark(next(tensors)) for _ in content)}]"
            case "as_optional_tensors":
                given = ("None" if "as_none" in each else written.mark(next(tensors)) for each in content)
                return f"[{', '.join(given)}]"
            case "as_none":
                return "None"
            case "as_sym_int" if "as_int" in content:
                return repr(int(content["as_int"]))
            case "as_sym_int":
                return names.number(next(numbers).expression)
            case "as_int" | "as_ints" | "as_float" | "as_floats" | "as_bool" | "as_bools" | "as_string":
                return repr(content)
        raise NotRead(f"an argument of the kind {kind}")

    try:
        target = str(node["target"])
        given = [(str(each["name"]), value(each["arg"])) for each in node["inputs"]]
    except (KeyError, TypeError, StopIteration) as error:
        raise NotRead("the package's list of operator calls") from error
    path = target.removeprefix("torch.ops.").replace("::", ".")
    if not re.fullmatch(r"\w+(\.\w+)+", path) or not all(name.isidentifier() for name, _ in given):
        raise NotRead("an operator whose name is not an identifier")
    written.results = tuple(
        each.target for each in launch.arguments if each.is_tensor and each.fresh and each.target
    )
    written.text = f"torch.ops.{path}({', '.join(f'{name}={text}' for name, text in given)})"
    return written
