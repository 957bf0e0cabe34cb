"""Launches as calls into ATen: the nodes of the exported program, as torch's proxy executor takes them.

An AOTInductor package may hold a list of operator calls (`<library>.json`) that its C++ makes by number:
`aoti_torch_proxy_executor_call_function`. Integers and tensors are passed at run time, the rest stands in the
list (torch/csrc/inductor/aoti_torch/oss_proxy_executor.cpp, 2.8-2.15). Every argument is written out, since
not all releases fill in defaults.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Mapping, Optional, Sequence

import torch
from torch._export.serde import serialize
from torch.fx import Node

from .eager_launches import Replacement
from .eager_values import BIAS, operator_name
from .events import EagerCode, NotRepairable, ShimCall
from .launch_nodes import Known, bias_of
from .protocol import RepairRequest
from .report import Refused, Report
from .tensors import dtype_name

ATEN = torch.ops.aten
INLINED = 8  # elements of a constant that Inductor writes into kernels (graph.py, get_attr, 2.13)
NUMBERS = (bool, int, float, torch.SymInt)
ENUMS = {
    "ScalarTypeType": ("as_scalar_type", serialize._TORCH_TO_SERIALIZE_DTYPE),
    "LayoutType": ("as_layout", serialize._TORCH_TO_SERIALIZE_LAYOUT),
    "MemoryFormatType": ("as_memory_format", serialize._TORCH_TO_SERIALIZE_MEMORY_FORMAT),
}
PLAIN: dict[str, tuple[str, Any]] = {
    "FloatType": ("as_float", (float, int)),
    "BoolType": ("as_bool", (bool,)),
    "StringType": ("as_string", (str,)),
}
LISTS = {"FloatType": "as_floats", "BoolType": "as_bools", "StringType": "as_strings"}


def operate(request: RepairRequest, report: Report) -> None:
    """Event `eager_code` (`EagerCode`) for each launch, or `not_repairable` with the reason."""
    replacement = Replacement(request["plan"], report)
    for launch in request["launches"]:
        try:
            code = Writer(replacement, request, launch).code()
        except Refused as refused:
            report.event(NotRepairable(launch, refused.what))
        else:
            report.event(code)


class Inexpressible(Refused):
    """An argument that the list of calls has no form for."""


class Writer:
    """The calls of one launch. `values` are C++ names of tensors by node, lists of them by nodes of several.

    `graph.values` does the same in Python.
    """

    def __init__(self, replacement: Replacement, request: RepairRequest, launch: int) -> None:
        self.plan, self.graph, self.launch = replacement.plan, replacement.graph, launch
        self.readable = request["readable"][str(launch)]
        # The C++ names of the program's symbols.
        tensors = [_meta(node) for node in self.graph.inputs if isinstance(_meta(node), torch.Tensor)]
        self.sizes = {
            str(size.node.expr): request["sizes"]["{}.{}".format(place, dim)]
            for place, tensor in enumerate(tensors)
            for dim, size in enumerate(tensor.shape)
            if isinstance(size, torch.SymInt) and "{}.{}".format(place, dim) in request["sizes"]
        }
        self.own, self.module = replacement.own, replacement.graph.module
        self.values: dict[Node, Any] = {}
        self.fresh: set[str] = set()  # values in memory of their own
        self.made = EagerCode(launch)

    def code(self) -> EagerCode:
        """Raises `Refused` with the node that cannot be expressed."""
        stored = self.plan["stored"].get(str(self.launch), {})
        missing = [name for name in self.readable["wanted"] if name not in stored]
        if missing or not stored:
            raise Refused("no node of the program is known for what it writes: " + ", ".join(missing))
        known = self._known()
        whole: Mapping[Node, str] = self.graph.whole_values(known)
        numbers = {node for node in self.graph.by_name.values() if isinstance(_meta(node), torch.SymInt)}
        # Evaluated in the order of the program, since some nodes mutate what others read.
        needed = self.graph.needed([held.node for held in stored.values()], known, numbers)
        changes = any(self.graph.mutated[node] for node in needed)
        products = self.graph.products(known)
        self.values.update(whole)
        if changes:  # what the launch reads is not for an operator to mutate
            self.values.update(
                (node, self._call(ATEN.clone.default, (name,))) for node, name in whole.items()
            )
        bare: dict[Node, str] = {}
        wanted = {(held.node, held.product) for held in stored.values()}
        for node in self.graph.by_name.values():
            if node in needed and node not in numbers:
                bias = bias_of(node) if node in products else None
                if bias is not None:
                    bare[node] = products[node]
                    self.values[node] = self._call(ATEN.add.Tensor, (products[node], self._tensor(bias)))
                else:
                    self._evaluate(node)
            if (node.name, True) in wanted and node not in bare:  # a product without its bias
                place, factors = BIAS[operator_name(node)]
                left, right = (self._tensor(self._latest(node, node.args[i])) for i in factors)
                right = self._call(ATEN.t.default, (right,)) if place == 2 else right
                bare[node] = self._call(ATEN.matmul.default, (left, right))
        for name, held in stored.items():
            node = self.graph.by_name[held.node]
            found = bare[node] if held.product else self._place(node, held.place)
            if node.name not in self.graph.carried:  # a copy of an input or constant, broadcast
                found = self._call(ATEN.expand.default, (found, self._shape(node, held.shape)))
            if found not in self.fresh:  # the launch may write over the memory that it reads
                found = self._call(ATEN.clone.default, (found,))
            if held.shape != held.sizes:
                found = self._call(ATEN.reshape.default, (found, self.readable["writes"][name]))
            self.made.stores.append((name, found))
        return self.made

    def _known(self) -> dict[Known, str]:
        """The values that the launch reads, by node and place: what other launches stored."""
        found: dict[Known, str] = {}
        for name, (writer, written) in self.plan["sources"].get(str(self.launch), {}).items():
            held = self.plan["stored"].get(str(writer), {}).get(written)
            if held is None or name not in self.readable["reads"]:
                continue
            node = self.graph.by_name[held.node]
            value = "eager{}_{}".format(self.launch, name)
            self.made.buffers.append((value, name, writer, written))
            if self.readable["reads"][name] != held.dtype:
                value = self._call(ATEN.to.dtype, (value, getattr(torch, held.dtype)))
            if held.shape != held.sizes:
                shape = self._shape(node, held.shape, held.place)
                value = self._call(ATEN.reshape.default, (value, shape))
            found[held.node, held.place, held.product] = value
        return found

    def _shape(self, node: Node, seen: Sequence[int], place: int = 0) -> list[str]:
        """The sizes of a node's value, in C++. Those `seen` in one call, where they are known to be fixed."""
        value = _meta(node)
        value = value[place] if isinstance(value, (tuple, list)) else value
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else []
        if len(sizes) != len(seen):
            if self.sizes:
                raise Refused("the sizes of {} are not known".format(node.name))
            return [str(size) for size in seen]
        return [self._integer(size) for size in sizes]

    def _tensor(self, node: Node) -> str:
        """The C++ name of a tensor. Raises `Refused` if the launch cannot get at it."""
        if node not in self.values:
            if node.op == "placeholder":
                place = [one for one in self.graph.inputs if isinstance(_meta(one), torch.Tensor)].index(node)
                name = self.readable["inputs"].get(str(place))
            else:
                name = self._constant(str(node.target)) if node.op == "get_attr" else None
            if name is None:
                what = "the launch does not read {}, of which its nodes are computed"
                raise Refused(what.format(node.name))
            self.values[node] = name
        return str(self.values[node])

    def _constant(self, name: str) -> Optional[str]:
        """The package's variable; None where Inductor laid the constant out in another way."""
        variable, *facts = self.readable["constants"].get(name, ("", "", []))
        own = self.own.get(name)
        if own is None or (variable and facts != [dtype_name(own.dtype), [*own.shape]]):
            return None
        if variable or own.numel() > INLINED or own.dim() > 1 or own.is_complex():
            return variable or None
        numbers: Any = [self._scalar(number) for number in own.reshape(-1).tolist()]
        value = self._call(ATEN.stack.default, (numbers,)) if own.dim() else numbers[0]
        return str(self._call(ATEN._to_copy.default, (value,), {"dtype": own.dtype, "device": own.device}))

    def _place(self, node: Node, place: int) -> str:
        value = self.values.get(node)
        return str(value[place]) if isinstance(value, list) else self._tensor(node)

    def _latest(self, node: Node, taken: Any) -> Node:
        """What stands for an argument of a node, after operators that mutated it."""
        return self.graph.takes[node][node.all_input_nodes.index(taken)]

    def _evaluate(self, node: Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            copied = any(node in self.graph.mutated[user] for user in node.users)
            value: Any = self._tensor(node)
            self.values[node] = self._call(ATEN.clone.default, (value,)) if copied else value
        elif node.target is operator.getitem:
            self.values[node] = self.values[self._latest(node, node.args[0])][node.args[1]]
        elif isinstance(node.target, torch._ops.OpOverload):
            try:
                args, kwargs = (
                    torch.fx.node.map_arg(one, lambda each: self._argument(node, each))
                    for one in (node.args, node.kwargs)
                )
                self.values[node] = self._call(node.target, args, kwargs, _meta(node))
            except Inexpressible as why:
                what = "node {} ({}) cannot be expressed: {}".format(node.name, node.target, why.what)
                raise Refused(what) from None
        else:
            raise Refused("node {} ({}) is no operator of the dispatcher".format(node.name, node.target))

    def _argument(self, node: Node, taken: Node) -> Any:
        """The C++ name of a tensor that a node takes, or its size."""
        value = _meta(taken)
        return value if isinstance(value, (torch.SymInt, int)) else self._tensor(self._latest(node, taken))

    def _call(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = {}, result: Any = None) -> Any:
        """Add a call; the C++ name of its result, or a list. Strings among the arguments are such names."""
        given = dict(zip((argument.name for argument in op._schema.arguments), args))
        given.update(kwargs)
        op = _fitting(op, given)
        call = _new_call()
        inputs = []
        for declared in op._schema.arguments:
            kind = declared.real_type
            if declared.name not in given and str(kind.kind()) in ENUMS:
                continue  # the schema's own number is not what the list takes
            value = given.get(declared.name, declared.default_value)
            inputs.append({"name": declared.name, "arg": self._serialized(kind, value, call), "kind": 1})
        outputs, names = [], []
        for place, returned in enumerate(op._schema.returns):
            several = str(returned.type.kind()) == "ListType"
            if not several and str(returned.type.kind()) != "TensorType":
                raise Inexpressible("it returns {}".format(returned.type))
            values = result if several else [None]
            if not isinstance(values, (list, tuple)):
                raise Inexpressible("the number of its results is not known")
            made = ["{}_{}".format(self._next(), index) for index in range(place, place + len(values))]
            listed = [{"name": name} for name in made]
            self.fresh.update(made if returned.alias_info is None else ())
            outputs.append({"as_tensors": listed} if several else {"as_tensor": listed[0]})
            names += made
        call.results = names
        name = op.name().partition(".")
        call.node = {
            "target": "{}{}{}".format(*name), "inputs": inputs, "outputs": outputs, "metadata": {}
        }  # fmt: skip
        self.made.calls.append(call)
        alone = len(op._schema.returns) == 1 and str(op._schema.returns[0].type.kind()) == "TensorType"
        return names[0] if alone else names

    def _next(self) -> str:
        return "eager{}_call{}".format(self.launch, len(self.made.calls))

    def _serialized(self, kind: Any, value: Any, call: ShimCall) -> dict[str, Any]:
        """One argument in the list's form; its tensors and integers are added to the call.

        Raises `Inexpressible`.
        """
        name = str(kind.kind())
        if name == "OptionalType":
            inner = kind.getElementType()
            return {"as_none": True} if value is None else self._serialized(inner, value, call)
        if name == "ListType":
            return self._list(kind.getElementType(), value, call)
        if name == "TensorType":
            call.tensors.append(self._scalar(value) if isinstance(value, NUMBERS) else str(value))
            return {"as_tensor": {"name": call.tensors[-1]}}
        if name in ("IntType", "SymIntType") or (name == "NumberType" and type(value) in (int, torch.SymInt)):
            call.integers.append(self._integer(value))
            return {"as_int": value if type(value) is int else 0}
        if name == "NumberType" and isinstance(value, (bool, float)) and math.isfinite(value):
            return {"as_bool" if isinstance(value, bool) else "as_float": value}
        if name in ENUMS and value in ENUMS[name][1]:
            return {ENUMS[name][0]: ENUMS[name][1][value].value}
        if name in PLAIN and isinstance(value, PLAIN[name][1]) and value not in (math.inf, -math.inf):
            return {PLAIN[name][0]: 1.0 * value if name == "FloatType" else value}
        if name == "DeviceObjType" and isinstance(value, torch.device):
            return {"as_device": {"type": value.type, "index": value.index}}
        raise Inexpressible("{!r} for an argument of type {}".format(value, kind))

    def _list(self, kind: Any, value: Any, call: ShimCall) -> dict[str, Any]:
        name, values = str(kind.kind()), list(value) if isinstance(value, (list, tuple)) else [value]
        if name in ("IntType", "SymIntType"):
            call.integers += [self._integer(one) for one in values]
            return {"as_ints": [one if type(one) is int else 0 for one in values]}
        if name == "OptionalType":
            return {"as_optional_tensors": [self._serialized(kind, one, call) for one in values]}
        parts = [self._serialized(kind, one, call) for one in values]
        if name == "TensorType":
            return {"as_tensors": [part["as_tensor"] for part in parts]}
        if name in LISTS:
            return {LISTS[name]: [next(iter(part.values())) for part in parts]}
        raise Inexpressible("a list of {}".format(kind))

    def _scalar(self, value: Any) -> str:
        """A number as a tensor."""
        if isinstance(value, torch.SymInt):
            raise Inexpressible("the size {} as a tensor".format(value))
        kind = "bool" if isinstance(value, bool) else "int64_t" if isinstance(value, int) else "double"
        text = str(value).lower()
        if kind == "double" and not math.isfinite(value):
            text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        self.made.calls.append(_new_call(kind, text, self._next() + "_scalar"))
        return self.made.calls[-1].results[0]

    def _integer(self, value: Any) -> str:
        """An integer in C++. Raises `Inexpressible` for what is computed of sizes by other than + and *."""
        if isinstance(value, str):
            return value
        expression = value.node.expr if isinstance(value, torch.SymInt) else value
        if isinstance(expression, int) or expression.is_Integer:
            return "{}L".format(int(expression))
        if expression.is_Symbol and str(expression) in self.sizes:
            return self.sizes[str(expression)]
        if expression.is_Add or expression.is_Mul:
            sign = " + " if expression.is_Add else "*"
            return "({})".format(sign.join(map(self._integer, expression.args)))
        raise Inexpressible("the size {}".format(expression))


def _new_call(scalar: str = "", value: str = "", *results: str) -> ShimCall:
    return ShimCall(scalar=scalar, value=value, results=list(results))


def _meta(node: Node) -> Any:
    return node.meta.get("val")


def _fitting(op: Any, given: Mapping[str, Any]) -> Any:
    """The overload that takes numbers where they are given: `mul.Scalar` for `mul.Tensor(x, 0.5)`.

    The list of calls holds no infinity and no NaN: those go as tensors, into `masked_fill.Tensor`.
    """
    own = _kinds(op)

    def misfits(kinds: Mapping[str, str]) -> int:
        """How many arguments the overload takes in another form than they have."""
        if any(kinds.get(name) != own[name] and {kinds.get(name), own[name]} != SWAPPED for name in given):
            return len(given) + 1
        return sum(
            (kinds[name] == "NumberType") != (isinstance(value, NUMBERS) and math.isfinite(value))
            for name, value in given.items()
            if kinds[name] in SWAPPED
        )

    packet = op.overloadpacket
    overloads = [op] + [getattr(packet, name) for name in packet.overloads() if "out" not in name]
    return min(overloads, key=lambda one: misfits(_kinds(one)))


SWAPPED = {"NumberType", "TensorType"}


def _kinds(op: Any) -> dict[str, str]:
    return {argument.name: str(argument.real_type.kind()) for argument in op._schema.arguments}
