"""The exported program operator by operator, and custom operators against their promises.

`interpret`: the exported program, operator by operator, on the inputs of a call.

Tells which operator raises, which one first makes a value that is not finite, and whose result has another
layout than its fake function promised when the program was exported.

Custom operators that a package calls: their results beside what their fake functions promise.

A package reads an operator's result as the fake function described it when the model was exported, and looks
no further. The proxy executor calls the operator through the dispatcher, where a dispatch mode sees it.
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
from .exported import arguments, load_exported
from .imports import import_all
from .loading import load
from .process import call_padded
from .report import Report, facts
from .tensors import checksum, outputs


def difference(promised: Any, real: torch.Tensor, symbols: dict[Any, int]) -> dict[str, Any]:
    """`promised` and `returned` layouts when they differ, else nothing; steps over size 1 do not count.

    `promised` is a fake tensor; `symbols` has the values of its shape symbols in this call. A result whose
    size only the data tells is not compared.
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
    """A size with this call's values for its symbols; None for one that only the data tells."""
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

    `node_raised` names as `behind` the nodes with values that are not finite from which the integers that the
    operator was given, an index say, come, and as `integers` the least and the greatest of each such tensor.
    `operators`, `repair` say, acts on custom operators.

    With `package` the same call is then made there, and event `compared` holds it against the interpretation.
    Its inputs are read once more: a program may have changed in place what it was given.
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
        flat = _interpret_tensors(arguments(program, request))
        got = call(lambda: loader.run(flat), 0, report)
        compare_all(_interpret_tensors(result), _interpret_tensors(got), (None, None), report)


class Watcher(torch.fx.Interpreter):
    """Runs one node after another and looks at what each returns."""

    def __init__(self, module: Any, leaves: list[Any], report: Report) -> None:
        super().__init__(module)
        self.report = report
        self.count = 0
        self.symbols = bind(module, leaves)
        self.told: dict[str, int] = {}
        self.bad: set[str] = set()

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            result = super().run_node(n)
            synchronize()  # else its kernels' errors are met by who looks at the result
        except Exception as error:
            guard = "guard" in str(n.target)
            around = {"behind": self._behind(n), "integers": self._integers(n)}
            self._tell("guard_failed" if guard else "node_raised", n, **around, **facts(error))
            raise
        if n.op == "call_function":
            self.count += 1
            self._look(n, result)
        elif n.op in ("placeholder", "get_attr") and not _finite(result):
            self.bad.add(n.name)
        return result

    def _behind(self, node: torch.fx.Node) -> list[str]:
        """The nodes with values that are not finite from which the integers that it is given are computed."""
        seen: set[torch.fx.Node] = set()
        left = [one for one in node.all_input_nodes if _holds_integers(one)]
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left.extend(one.all_input_nodes)
        return sorted(one.name for one in seen if one.name in self.bad)

    def _integers(self, node: torch.fx.Node) -> list[list[int]]:
        """The ends of each tensor of integers that it is given; none where a device that failed has them."""
        held = [self.env.get(one) for one in node.all_input_nodes if _holds_integers(one)]
        try:
            return [[int(value.min()), int(value.max())] for value in held if _is_filled(value)]
        except RuntimeError:
            return []

    def _look(self, node: torch.fx.Node, result: Any) -> None:
        if not _finite(result):
            fed = [arg.name for arg in node.all_input_nodes if arg.name in self.bad]
            what = {"nan": _has_nan(result), "dtype": _dtype(result), "masked": _is_mask(result)}
            self._tell("node_non_finite", node, bad_inputs=fed, **what)
            self.bad.add(node.name)
        for promised, real in zip(_interpret_tensors(node.meta.get("val")), _interpret_tensors(result)):
            broken = difference(promised, real, self.symbols)
            if broken and not (str(node.target).startswith("aten.") and _only_strides(broken)):
                self._tell("fake_mismatch", node, **broken)

    def _tell(self, event: str, node: torch.fx.Node, **more: Any) -> None:
        self.told[event] = self.told.get(event, 0) + 1
        if self.told[event] <= MOST_EVENTS:
            stack = stack_of(node)
            self.report.event(event, node=node.name, op=str(node.target), stack=stack, **more)


def bind(module: Any, leaves: list[Any]) -> dict[Any, int]:
    """The value of each shape symbol: fake sizes of the placeholders against the real inputs."""
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
    """Frames of the model's code that made the node, innermost first; torch's own left out."""
    found: list[dict[str, Any]] = [
        {**match.groupdict(), "line": int(match["line"])}
        for match in FRAME.finditer(node.meta.get("stack_trace") or "")
    ]
    return [frame for frame in reversed(found) if "/site-packages/" not in str(frame["file"])]


def _only_strides(broken: dict[str, Any]) -> bool:
    """torch's own operators may choose their strides."""
    return all(broken["promised"][what] == broken["returned"][what] for what in ("shape", "dtype", "device"))


def _holds_integers(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def _is_filled(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _interpret_tensors(value: Any) -> list[Any]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _finite(value: Any) -> bool:
    return all(
        bool(torch.isfinite(t).all())
        for t in _interpret_tensors(value)
        if t.is_floating_point() or t.is_complex()
    )


def _has_nan(value: Any) -> bool:
    return any(bool(torch.isnan(t).any()) for t in _interpret_tensors(value))


def _dtype(value: Any) -> str:
    """The dtype of the first result that is not finite."""
    return next((str(t.dtype).replace("torch.", "") for t in _interpret_tensors(value) if not _finite(t)), "")


def _is_mask(value: Any) -> bool:
    """Whether minus infinity is all that is not finite, as attention masks hold on purpose."""
    return all(not bool((torch.isnan(t) | (t == float("inf"))).any()) for t in _interpret_tensors(value))


# Operators of torch itself: their fake functions are not the user's, and what they return is theirs.
OWN = frozenset(
    {"aten", "prims", "prim", "inductor", "quantized", "_c10d_functional", "c10d", "higher_order"}
)


class Operators(TorchDispatchMode):
    """Event `operator` for each call of a custom operator that breaks a promise.

    `repair` keeps the promises too, so that the package gets what it counts on.
    """

    def __init__(self, report: Report, repair: bool) -> None:
        super().__init__()
        self.report = report
        self.repair = repair
        self.calls = 0
        self.told = 0

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
        pairs = list(zip(promised, _operators_tensors(result)))
        self._tell(
            func,
            layouts=[found for fake, real in pairs if (found := difference(fake, real, {}))],
            mutated=[name for name, (tensor, sum_) in before.items() if checksum(tensor) != sum_],
            aliases=_aliases(func, args, kwargs, result),
            overrun=overrun,
        )
        return self._kept(result, promised) if self.repair else result

    def _promised(self, func: Any, args: Any, kwargs: "dict[str, Any]") -> "list[Any]":
        """What the fake function says for these very inputs; nothing where it fails or there is none."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

        def fake(leaf: Any) -> Any:
            return mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf

        try:
            given = _pytree.tree_map(fake, (tuple(args), kwargs))
            with mode:
                return _operators_tensors(func(*given[0], **given[1]))
        except Exception as error:
            self.report.event("no_fake", op=str(func), text=str(error)[:1000])
            return []

    def _tell(self, func: Any, **broken: Any) -> None:
        if any(broken.values()) and self.told < MOST_EVENTS:
            self.told += 1
            self.report.event("operator", op=str(func), call=self.calls, repaired=self.repair, **broken)

    def _kept(self, result: Any, promised: "list[Any]") -> Any:
        """The result laid out as promised, in memory of its own."""
        leaves, tree = _pytree.tree_flatten(result)
        fakes = iter(promised)
        kept = [
            as_promised(leaf, next(fakes, None)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        return _pytree.tree_unflatten(kept, tree)


def as_promised(real: torch.Tensor, fake: Any) -> torch.Tensor:
    """The values in the promised shape, stride, dtype and device: cut where too large, zeros where too small.

    Only a copy where nothing differs, or where the promised sizes depend on data.
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
    return [(declared, tensor) for declared, value in given for tensor in _operators_tensors(value)]


def _contents(func: Any, args: Any, kwargs: "dict[str, Any]") -> "dict[str, tuple[torch.Tensor, str]]":
    """Digests of the arguments that the operator declares not to write."""
    return {
        declared.name: (tensor, checksum(tensor))
        for declared, tensor in _named(func, args, kwargs)
        if declared.alias_info is None and tensor.layout is torch.strided
    }


def _aliases(func: Any, args: Any, kwargs: "dict[str, Any]", result: Any) -> "list[str]":
    """Arguments whose memory the result shares, though the operator declares a result of its own."""
    if any(one.alias_info is not None for one in func._schema.returns):
        return []
    made = {tensor.untyped_storage().data_ptr() for tensor in _operators_tensors(result) if tensor.numel()}
    return [
        declared.name
        for declared, tensor in _named(func, args, kwargs)
        if tensor.numel() and tensor.untyped_storage().data_ptr() in made
    ]


def _copies(func: Any, args: Any, kwargs: "dict[str, Any]") -> "tuple[Any, dict[str, Any]]":
    """The arguments, with copies for those that the operator declares not to write."""
    kept = {id(tensor) for declared, tensor in _named(func, args, kwargs) if declared.alias_info is not None}

    def copy(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) and id(leaf) not in kept else leaf

    copied = _pytree.tree_map(copy, (tuple(args), kwargs))
    return copied[0], copied[1]


def _operators_tensors(value: Any) -> "list[Any]":
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
