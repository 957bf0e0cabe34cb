"""`interpret`: the exported program, operator by operator, on the inputs of a call.

Tells which operator raises, which one first makes a value that is not finite, and whose result has another
layout than its fake function promised when the program was exported.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils import _pytree

from .calling import call, synchronize, take_if_used, watching
from .compare import compare_all
from .exported import arguments, load_exported
from .failures import facts
from .imports import import_all
from .loading import load
from .promises import difference
from .report import Report
from .tensors import outputs

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
        flat = _tensors(arguments(program, request))
        got = call(lambda: loader.run(flat), 0, report)
        compare_all(_tensors(result), _tensors(got), (None, None), report)


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
        for promised, real in zip(_tensors(node.meta.get("val")), _tensors(result)):
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


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _finite(value: Any) -> bool:
    return all(
        bool(torch.isfinite(t).all()) for t in _tensors(value) if t.is_floating_point() or t.is_complex()
    )


def _has_nan(value: Any) -> bool:
    return any(bool(torch.isnan(t).any()) for t in _tensors(value))


def _dtype(value: Any) -> str:
    """The dtype of the first result that is not finite."""
    return next((str(t.dtype).replace("torch.", "") for t in _tensors(value) if not _finite(t)), "")


def _is_mask(value: Any) -> bool:
    """Whether minus infinity is all that is not finite, as attention masks hold on purpose."""
    return all(not bool((torch.isnan(t) | (t == float("inf"))).any()) for t in _tensors(value))
