"""`beside`: compares an instrumented package with eager mode, launch by launch, constants included."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch.utils import _pytree

from .calling import call
from .compare import Expected, expectations, measure
from .eager_values import tensors
from .exported import arguments, load_exported
from .imports import import_all
from .loading import constants_of, load, update_package, update_program
from .probes import AFTER, BEFORE, ROLES, Event, find_libraries, mapped_files, tensor_of
from .probes import arguments as probe_arguments
from .report import Refused, Report
from .tensors import checksum

PART = 1 << 22  # elements compared at once; bounds the temporaries


class Constants:
    """Event `constant_differs` at the first launch of a constant that differs from the program's.

    `names` maps the package's names of constants to the program's. A constant that Inductor laid out
    differently is not compared.
    """

    def __init__(self, module: Any, names: "dict[str, str]", report: Report) -> None:
        self.own = constants_of(module)
        self.names = names
        self.report = report
        self.seen: "set[str]" = set()

    def check(self, event: Event) -> None:
        if event.phase != BEFORE:
            return
        for argument in probe_arguments(event):
            name = argument.name.decode()
            tensor = tensor_of(argument) if name in self.names and name not in self.seen else None
            if tensor is not None:
                self.seen.add(name)
                self._compare(self.names[name], tensor, int(event.launch))

    def _compare(self, name: str, tensor: torch.Tensor, launch: int) -> None:
        own = self.own.get(name)
        actual = _whole(tensor, own) if own is not None else None
        if own is None or actual is None:
            return
        different = _differing(actual, own.detach())
        if different:
            self.report.event(
                "constant_differs",
                name=name,
                launch=launch,
                elements=actual.numel(),
                different=different,
            )


def _differing(actual: torch.Tensor, own: torch.Tensor) -> int:
    """How many elements differ; NaN equals NaN. In parts, since the masks of a large weight are large."""
    rows = max(1, PART // max(1, own[:1].numel())) if own.dim() else 1
    pairs = zip(actual.split(rows), own.split(rows)) if own.dim() else [(actual, own)]
    return sum(_differing_part(left, right.to(left.device)) for left, right in pairs)


def _differing_part(actual: torch.Tensor, own: torch.Tensor) -> int:
    return int(((actual != own) & ~(actual.isnan() & own.isnan())).sum())


def _whole(tensor: torch.Tensor, own: torch.Tensor) -> "Optional[torch.Tensor]":
    """`tensor`, which may be a view of the constant, with the layout of `own`; None if it does not fit."""
    span = 1 + sum((size - 1) * step for size, step in zip(own.shape, own.stride()))
    room = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
    if tensor.dtype != own.dtype or room < span or not own.numel():
        return None
    return tensor.as_strided(own.shape, own.stride(), 0)


KEPT_BYTES = 2 << 30  # of eager values, and as much again of float64 ones
CLOSEST = 3  # nodes to report for a tensor


def operate(request: dict[str, Any], report: Report) -> None:
    """Event `beside` for each tensor that a launch writes, `output` for each output, `rerun` for repeats.

    Request: `package` (instrumented unless `probes` is false), `exported`, `inputs`, `factor` of the
    tolerance; `nodes`: {launch: names of nodes that it may compute}, by default every node is tried; `unset`:
    {launch: names of tensors that nothing writes before it}; `steps`: captured updates of constants, applied
    to both sides; `constants`: {name in the package: name in the program}.

    The package runs four times, each time in a fresh load: for the comparison, twice unchanged, and once with
    the unset tensors filled, which shows reads of uninitialised memory. If the unchanged runs differ, it runs
    a fifth time, filled again: what no longer differs came from that memory.
    """
    import_all(list(request.get("extra_imports", ())), report)
    program = load_exported(request, report)
    report.event("reading_inputs")
    leaves = _pytree.tree_leaves(arguments(program, request))
    nodes = {int(launch): names for launch, names in (request.get("nodes") or {}).items()}
    wanted = frozenset(name for names in nodes.values() for name in names) if nodes else None
    module = program.module()
    for step in updates(request):
        update_program(module, step, report)
    expected, outputs = expectations(module, leaves, wanted, KEPT_BYTES, report)
    bench = Bench(request, leaves, report)
    constants = Constants(module, dict(request.get("constants") or {}), report)
    comparison = Comparison(expected, nodes, float(request.get("factor", 1.0)), constants, report)
    _outputs(bench.run("compared", comparison.take), outputs, comparison)
    marks = [bench.mark(kind) for kind in ("first", "second")]
    unset = {int(launch): frozenset(names) for launch, names in (request.get("unset") or {}).items()}
    for kind in ("filled",) if marks[0] == marks[1] else ("filled", "filled_again"):
        bench.mark(kind, unset)


def updates(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in request.get("steps", ()) if step["do"] == "constants"]


class Bench:
    """Runs the package, with a subscriber for its launches if it has probes.

    Only one load is alive at a time, to have the weights in memory once. The library of an old load stays
    mapped because `find_libraries` opened it; its weights are freed.
    """

    def __init__(self, request: dict[str, Any], leaves: list[Any], report: Report) -> None:
        self.request = request
        self.leaves = leaves
        self.report = report
        self.runs = 0
        self.loader: Any = None
        self.alive: list[Any] = []  # constants that the caller of an update owns

    def mark(self, kind: str, unset: Optional[dict[int, frozenset[str]]] = None) -> list[Any]:
        """Checksums of the outputs of one call, which also reports a checksum of every tensor written."""
        return [checksum(tensor) for tensor in self.run(kind, Marks(kind, self.report, unset).take)]

    def run(self, kind: str, take: Callable[[Event], bool]) -> list[torch.Tensor]:
        """The outputs of one call of a fresh load, since a package may keep state from call to call.

        They may alias the weights, which the next run frees.
        """
        self.loader, self.alive = None, []
        before = mapped_files()
        self.loader = loader = load(self.request, self.report)
        self.alive = [update_package(loader, step, {}, self.report) for step in updates(self.request)]
        libraries = find_libraries(before) if self.request.get("probes", True) else []
        if self.request.get("probes", True) and not libraries:
            raise Refused("the package is not instrumented", self.request["package"])
        for library in libraries:
            library.subscribe(take)
        flat = [leaf.clone() for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        result = call(lambda: loader.run(flat), self.runs, self.report)
        self.runs += 1
        for library in libraries:
            library.unsubscribe()
            if library.failure:
                self.report.event("observer_failed", text=library.failure[-4000:])
        outputs = tensors(result)
        self.report.event("outputs", run=kind, checksums=[checksum(tensor) for tensor in outputs])
        return outputs


class Comparison:
    """Compares the tensors that each launch writes with the eager values of its nodes."""

    def __init__(
        self,
        expected: dict[str, list[Expected]],
        nodes: dict[int, list[str]],
        factor: float,
        constants: Constants,
        report: Report,
    ) -> None:
        self.expected = expected
        self.nodes = nodes
        self.factor = factor
        self.constants = constants
        self.report = report

    def take(self, event: Event) -> bool:
        self.constants.check(event)
        for facts, tensor in written(event):
            self.report.event("beside", **facts, **self.compare(tensor, self._candidates(int(event.launch))))
        return False

    def compare(self, tensor: torch.Tensor, candidates: list[Expected]) -> dict[str, Any]:
        """The closest candidates of the same shape, best first; of another shape only one that fits."""
        alike = [one for one in candidates if _squeezed(one.eager) == _squeezed(tensor)]
        found = sorted((self._measured(tensor, one) for one in alike), key=_distance)
        if not (found and found[0]["within"]):
            others = [one for one in candidates if one not in alike and one.eager.numel() == tensor.numel()]
            fitting = [facts for one in others if (facts := self._measured(tensor, one))["within"]]
            found = fitting[:1] + found
        shape = list(tensor.shape)
        dtype = str(tensor.dtype).replace("torch.", "")
        return {"shape": shape, "dtype": dtype, "device": tensor.device.type, "closest": found[:CLOSEST]}

    def _candidates(self, launch: int) -> list[Expected]:
        names = self.nodes.get(launch, ()) if self.nodes else self.expected
        return [one for name in names for one in self.expected.get(name, ())]

    def _measured(self, tensor: torch.Tensor, one: Expected) -> dict[str, Any]:
        return measure(tensor, one, self.factor)


class Marks:
    """Reports checksums of the tensors written. Fills the `unset` tensors before their first launch."""

    def __init__(self, kind: str, report: Report, unset: Optional[dict[int, frozenset[str]]] = None) -> None:
        self.kind = kind
        self.report = report
        self.unset = unset or {}

    def take(self, event: Event) -> bool:
        if event.phase != AFTER:
            self._fill(event)
        for facts, tensor in written(event):
            self.report.event("rerun", run=self.kind, **facts, checksum=checksum(tensor))
        return False

    def _fill(self, event: Event) -> None:
        names = self.unset.get(int(event.launch), frozenset())
        for argument in probe_arguments(event):
            tensor = tensor_of(argument) if argument.name.decode() in names else None
            if tensor is not None and tensor.is_floating_point():
                tensor.fill_(float("nan"))
                self.report.event("filled", launch=int(event.launch), name=argument.name.decode())


def written(event: Event) -> "list[tuple[dict[str, Any], torch.Tensor]]":
    """The tensors that a launch wrote, each with its position. Empty before the launch."""
    found = []
    for argument in probe_arguments(event) if event.phase == AFTER else ():
        tensor = tensor_of(argument) if ROLES.get(argument.role) != "read" else None
        if tensor is not None and tensor.layout is torch.strided:
            _synchronize(tensor)
            facts = {
                "launch": int(event.launch),
                "sequence": int(event.sequence),
                "kernel": event.kernel.decode(),
                "name": argument.name.decode(),
            }
            found.append((facts, tensor))
    return found


def _outputs(got: list[torch.Tensor], wanted: list[Expected], comparison: Comparison) -> None:
    """Compare the outputs of the whole program."""
    report = comparison.report
    report.event("counted_outputs", package=len(got), eager=len(wanted))
    for place, (have, want) in enumerate(zip(got, wanted)):
        shapes = [list(want.eager.shape), list(have.shape)]
        facts = {"index": place, "shapes": shapes, "dtypes": [str(want.eager.dtype), str(have.dtype)]}
        if have.shape == want.eager.shape:
            facts.update(measure(have, want, comparison.factor))
        report.event("output", **facts)


def _distance(facts: dict[str, Any]) -> float:
    return float(facts.get("excess", facts["error"]))


def _squeezed(tensor: torch.Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
