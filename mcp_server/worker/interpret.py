"""Runs the exported program operator by operator, and checks custom operators against their fake functions.

`interpret` finds the operator that raises, the first one that makes a non-finite value, and results whose
layout differs from the fake function's.

A package reads the result of a custom operator with the layout that its fake function gave at export, without
a check. The proxy executor calls the operator through the dispatcher, where a dispatch mode sees the call.
"""

from __future__ import annotations

import re
from typing import Any, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .calling import call, synchronize, take_if_used, watching
from .compare import compare_all
from .eager_values import tensors
from .exported import arguments, load_exported
from .imports import import_all
from .loading import load
from .process import call_padded
from .report import Report, facts
from .tensors import checksum, outputs


def difference(promised: Any, real: torch.Tensor, symbols: dict[Any, int]) -> dict[str, Any]:
    """The `promised` and `returned` layouts if they differ, else {}. Strides of size 1 do not count.

    `promised` is a fake tensor; `symbols` maps its shape symbols to their values in this call. A result of
    data-dependent size is not compared.
    """
    wanted, got = layout(promised, symbols), layout(real, symbols)
    known = all(size is not None for size in wanted["shape"])
    return {"promised": wanted, "returned": got} if known and _differ(wanted, got) else {}


def layout(tensor: Any, symbols: dict[Any, int]) -> dict[str, Any]:
    """Shape and stride (elements; None where unknown), dtype, device type."""
    return {
        "shape": [_number(size, symbols) for size in tensor.shape],
        "stride": [_number(step, symbols) for step in tensor.stride()],
        "dtype": str(tensor.dtype),
        "device": tensor.device.type,
    }


def _number(size: Any, symbols: dict[Any, int]) -> Optional[int]:
    """A size with this call's values for its symbols; None if it depends on data."""
    if isinstance(size, int):
        return size
    value = size.node.expr.subs(symbols)
    return int(value) if value.is_number else None


def _differ(wanted: dict[str, Any], got: dict[str, Any]) -> bool:
    if any(wanted[what] != got[what] for what in ("shape", "dtype", "device")):
        return True
    steps = zip(got["shape"], wanted["stride"], got["stride"])
    return any(size > 1 and want is not None and want != have for size, want, have in steps)


FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]*)\n\s*(?P<code>[^\n]*)'
)
MOST_EVENTS = 20


def operate(request: dict[str, Any], report: Report) -> None:
    """Events `guard_failed`, `node_raised`, `node_non_finite`, `fake_mismatch`; `interpreted` at the end.

    For the integer inputs of the operator that raised (indices, for example), `node_raised` has `behind`, the
    non-finite nodes that they are computed from, and `integers`, the minimum and maximum of each.
    `operators` (`watch` or `repair`) acts on custom operators.

    With `package` the same call is then made there, and event `compared` compares both results. The inputs
    are read again for that, since the program may mutate them.
    """
    import_all(list(request.get("extra_imports", ())), report)
    program = load_exported(request, report)
    report.event("reading_inputs")
    args, kwargs = arguments(program, request)
    leaves = _pytree.tree_leaves((args, kwargs))
    take_if_used()
    watcher = Watcher(program.module(), leaves, report)
    with torch.no_grad(), watching(request, report):
        result = watcher.run(*leaves, enable_io_processing=False)
    report.event("interpreted", nodes=watcher.count, outputs=outputs(result))
    if request.get("package"):
        loader = load(request, report)
        flat = tensors(arguments(program, request))
        got = call(lambda: loader.run(flat), 0, report)
        compare_all(tensors(result), tensors(got), (None, None), report)


class Watcher(torch.fx.Interpreter):
    """Runs the nodes in order and checks each result."""

    def __init__(self, module: Any, leaves: list[Any], report: Report) -> None:
        super().__init__(module)
        self.report = report
        self.count = 0
        self.symbols = bind(module, leaves)
        self.event_counts: dict[str, int] = {}
        self.bad: set[str] = set()

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            result = super().run_node(n)
            synchronize()  # so that an error of its kernels is raised here
        except Exception as error:
            guard = "guard" in str(n.target)
            around = {"behind": self._behind(n), "integers": self._integers(n)}
            self._report("guard_failed" if guard else "node_raised", n, **around, **facts(error))
            raise
        if n.op == "call_function":
            self.count += 1
            self._look(n, result)
        elif n.op in ("placeholder", "get_attr") and not _finite(result):
            self.bad.add(n.name)
        return result

    def _behind(self, node: torch.fx.Node) -> list[str]:
        """The non-finite nodes that the integer inputs of `node` are computed from."""
        seen: set[torch.fx.Node] = set()
        left = [one for one in node.all_input_nodes if _holds_integers(one)]
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left.extend(one.all_input_nodes)
        return sorted(one.name for one in seen if one.name in self.bad)

    def _integers(self, node: torch.fx.Node) -> list[list[int]]:
        """Minimum and maximum of each integer input; empty if a failed device cannot be read."""
        values = [self.env.get(one) for one in node.all_input_nodes if _holds_integers(one)]
        try:
            return [[int(value.min()), int(value.max())] for value in values if _is_filled(value)]
        except RuntimeError:
            return []

    def _look(self, node: torch.fx.Node, result: Any) -> None:
        if not _finite(result):
            fed = [arg.name for arg in node.all_input_nodes if arg.name in self.bad]
            what = {"nan": _has_nan(result), "dtype": _dtype(result), "masked": _is_mask(result)}
            self._report("node_non_finite", node, bad_inputs=fed, **what)
            self.bad.add(node.name)
        for promised, real in zip(tensors(node.meta.get("val")), tensors(result)):
            broken = difference(promised, real, self.symbols)
            if broken and not (str(node.target).startswith("aten.") and _only_strides(broken)):
                self._report("fake_mismatch", node, **broken)

    def _report(self, event: str, node: torch.fx.Node, **more: Any) -> None:
        self.event_counts[event] = self.event_counts.get(event, 0) + 1
        if self.event_counts[event] <= MOST_EVENTS:
            stack = stack_of(node)
            self.report.event(event, node=node.name, op=str(node.target), stack=stack, **more)


def bind(module: Any, leaves: list[Any]) -> dict[Any, int]:
    """Values of the shape symbols, from the fake sizes of the placeholders and the real inputs."""
    found: dict[Any, int] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, leaf in zip(placeholders, leaves):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and isinstance(leaf, torch.Tensor):
            for size, actual in zip(fake.shape, leaf.shape):
                if not isinstance(size, int) and size.node.expr.is_symbol:
                    found[size.node.expr] = int(actual)
    return found


def stack_of(node: torch.fx.Node) -> list[dict[str, Any]]:
    """The model's frames that created the node, innermost first, without installed packages."""
    found: list[dict[str, Any]] = [
        {**match.groupdict(), "line": int(match["line"])}
        for match in FRAME.finditer(node.meta.get("stack_trace") or "")
    ]
    return [frame for frame in reversed(found) if "/site-packages/" not in str(frame["file"])]


def _only_strides(broken: dict[str, Any]) -> bool:
    """Whether only strides differ, which torch's own operators may choose."""
    return all(broken["promised"][what] == broken["returned"][what] for what in ("shape", "dtype", "device"))


def _holds_integers(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _is_filled(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _finite(value: Any) -> bool:
    return all(
        bool(torch.isfinite(t).all()) for t in tensors(value) if t.is_floating_point() or t.is_complex()
    )


def _has_nan(value: Any) -> bool:
    return any(bool(torch.isnan(t).any()) for t in tensors(value))


def _dtype(value: Any) -> str:
    """The dtype of the first result that is not finite."""
    return next((str(t.dtype).replace("torch.", "") for t in tensors(value) if not _finite(t)), "")


def _is_mask(value: Any) -> bool:
    """Whether the only non-finite value is minus infinity, as in attention masks."""
    return all(not bool((torch.isnan(t) | (t == float("inf"))).any()) for t in tensors(value))


# Namespaces of torch itself. Its fake functions are trusted.
OWN = frozenset(
    {"aten", "prims", "prim", "inductor", "quantized", "_c10d_functional", "c10d", "higher_order"}
)


class Operators(TorchDispatchMode):
    """Event `operator` for each call of a custom operator that breaks its schema or its fake function.

    With `repair` the result is also changed to what they promise.
    """

    def __init__(self, report: Report, repair: bool) -> None:
        super().__init__()
        self.report = report
        self.repair = repair
        self.calls = 0
        self.events = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: "Optional[dict[str, Any]]" = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in OWN:
            return func(*args, **kwargs)
        self.calls += 1
        promised = self._promised(func, args, kwargs)
        if self.repair:
            args, kwargs = _copies(func, args, kwargs)
        before = _contents(func, args, kwargs)
        result, overrun = call_padded(func, args, kwargs)
        pairs = list(zip(promised, tensors(result)))
        self._report(
            func,
            layouts=[found for fake, real in pairs if (found := difference(fake, real, {}))],
            mutated=[name for name, (tensor, sum_) in before.items() if checksum(tensor) != sum_],
            aliases=_aliases(func, args, kwargs, result),
            overrun=overrun,
        )
        return self._as_promised(result, promised) if self.repair else result

    def _promised(self, func: Any, args: Any, kwargs: "dict[str, Any]") -> "list[Any]":
        """The fake results for these inputs; empty if there is no fake function or it fails."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

        def fake(leaf: Any) -> Any:
            return mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf

        try:
            fake_args, fake_kwargs = _pytree.tree_map(fake, (tuple(args), kwargs))
            with mode:
                return tensors(func(*fake_args, **fake_kwargs))
        except Exception as error:
            self.report.event("no_fake", op=str(func), text=str(error)[:1000])
            return []

    def _report(self, func: Any, **broken: Any) -> None:
        if any(broken.values()) and self.events < MOST_EVENTS:
            self.events += 1
            self.report.event("operator", op=str(func), call=self.calls, repaired=self.repair, **broken)

    def _as_promised(self, result: Any, promised: "list[Any]") -> Any:
        """The result with the promised layout, in its own memory."""
        leaves, tree = _pytree.tree_flatten(result)
        fakes = iter(promised)
        kept = [
            as_promised(leaf, next(fakes, None)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        return _pytree.tree_unflatten(kept, tree)


def as_promised(real: torch.Tensor, fake: Any) -> torch.Tensor:
    """The values with the promised shape, stride, dtype and device, cut or padded with zeros to fit.

    A plain copy if nothing differs or the promised sizes depend on data.
    """
    if fake is None or not difference(fake, real, {}) or not _fixed(fake):
        return real.clone()
    size = 1 + sum((length - 1) * step for length, step in zip(fake.shape, fake.stride()))
    memory = torch.zeros(max(size, 0), dtype=fake.dtype, device=real.device)
    made = memory.as_strided(tuple(fake.shape), tuple(fake.stride()))
    if made.dim() == real.dim():
        shared = tuple(slice(0, min(pair)) for pair in zip(made.shape, real.shape))
        made[shared] = real[shared].to(made.dtype)
    elif made.numel() == real.numel():
        made.copy_(real.reshape(made.shape))
    return made.to(fake.device.type)


def _fixed(fake: Any) -> bool:
    return all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))


def _named(func: Any, args: Any, kwargs: "dict[str, Any]") -> "list[tuple[Any, torch.Tensor]]":
    """Tensor arguments with their declarations in the operator's schema; lists of tensors leaf by leaf."""
    schema = func._schema.arguments
    given = [*zip(schema, args), *((one, kwargs[one.name]) for one in schema if one.name in kwargs)]
    return [(declared, tensor) for declared, value in given for tensor in tensors(value)]


def _contents(func: Any, args: Any, kwargs: "dict[str, Any]") -> "dict[str, tuple[torch.Tensor, str]]":
    """Digests of the arguments that the schema declares read-only."""
    return {
        declared.name: (tensor, checksum(tensor))
        for declared, tensor in _named(func, args, kwargs)
        if declared.alias_info is None and tensor.layout is torch.strided
    }


def _aliases(func: Any, args: Any, kwargs: "dict[str, Any]", result: Any) -> "list[str]":
    """Arguments whose memory the result shares although the schema declares no alias."""
    if any(one.alias_info is not None for one in func._schema.returns):
        return []
    made = {tensor.untyped_storage().data_ptr() for tensor in tensors(result) if tensor.numel()}
    return [
        declared.name
        for declared, tensor in _named(func, args, kwargs)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in made
    ]


def _copies(func: Any, args: Any, kwargs: "dict[str, Any]") -> "tuple[Any, dict[str, Any]]":
    """The arguments, with copies of those that the schema declares read-only."""
    kept = {id(tensor) for declared, tensor in _named(func, args, kwargs) if declared.alias_info is not None}

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) and id(leaf) not in kept else leaf

    copied = _pytree.tree_map(copy, (tuple(args), kwargs))
    return copied[0], copied[1]
