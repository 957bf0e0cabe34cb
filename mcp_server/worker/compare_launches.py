"""Runs a package several times: launch by launch against eager mode, or as it is (`repeat`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Mapping, Optional

import torch
from torch.utils import _pytree

from . import events
from .compare import compare
from .eager_values import Expected, expectations, measure
from .inputs import flatten, read
from .launch_nodes import Judge, ProgramGraph
from .loading import constants_of, load, load_with_inputs, update_package, update_program
from .probes import AFTER, BEFORE, Event, arguments, find_libraries, mapped_files, tensor_of, written
from .protocol import CompareLaunchesRequest
from .report import Refused, Report
from .run import call
from .tensors import checksum, laid_out, only_tensors, unequal

PART = 1 << 22  # elements compared at once; bounds the temporaries
KEPT_BYTES = 2 << 30  # of eager values, and as much again of float64 ones


def operate(request: CompareLaunchesRequest, report: Report) -> None:
    """Events: `output` for each output, `rerun` and `launch_judged` for each tensor that a launch writes.

    The package runs at least three times, each time in a fresh load: twice unchanged, and once with the unset
    tensors filled, which shows reads of uninitialised memory. If the unchanged runs differ, it runs filled
    once more: what no longer differs came from that memory. With `flow` it also runs with right values copied
    in after each launch (`Judge`).
    """
    program, *inputs = load_with_inputs(request, report)
    leaves = _pytree.tree_leaves(inputs)
    nodes, names = request.get("nodes", {}), request.get("constants") or {}
    module = program.module()
    for step in request.get("steps", ()):
        update_program(module, step, report)
    wanted = frozenset(name for names in nodes.values() for name in names)
    expected, outputs = expectations(module, leaves, wanted, KEPT_BYTES, report)
    if request.get("eager_outputs"):
        torch.save([one.eager.cpu() for one in outputs], request["eager_outputs"])
    bench, factor = Bench(request, leaves, report), request.get("factor", 1.0)
    constants = ComparedConstants(constants_of(module), dict(names), report)
    made = bench.run("first", marks("first", report, constants=constants))
    first = [*map(checksum, made)]
    report_outputs(made, outputs, factor, report)
    if request.get("flow"):
        graph = ProgramGraph(module, {int(launch): carried for launch, carried in nodes.items()})
        judge = Judge(graph, expected, graph.own_values(leaves), names, request["flow"], factor, report)
        judge.outputs(bench.run("judged", judge.take), outputs)
    second = [*map(checksum, bench.run("second", marks("second", report)))]
    for kind in ("filled",) if first == second else ("filled", "filled_again"):
        bench.run(kind, marks(kind, report, request.get("unset", {})))


# glibc fills what malloc gives out with the complement of this byte, what free takes back with the byte
# itself (malloc.c, alloc_perturb and free_perturb). 0x7f7f7f7f is 3.4e38 as float32, 0x3f3f3f3f is 0.75.
M_PERTURB = -6
FILLS = {"first": 0x80, "second": 0x80, "filled": 0xC0}
RELATIVE = 1e-3  # threads may sum in another order, which is no different result


def operate_repeat(request: CompareLaunchesRequest, report: Report) -> None:
    """Event `repeated` (`run`, `equal`) for the second and the last call, compared with the first.

    With `probes` the package is instrumented, and event `rerun` has the checksum of each tensor that a launch
    wrote. Random numbers differ in the second call; the contents of new memory differ in the last one. If the
    C library cannot fill memory (event `unfilled`), there is no last call.
    """
    request.setdefault("probes", False)
    in_spec = load(request, report).get_call_spec()[0]
    report.phase("reading_inputs")
    bench = Bench(request, flatten(read(request.get("inputs")), in_spec), report)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda _option, _byte: 0)
    first: list[torch.Tensor] = []
    for kind, byte in FILLS.items():
        if not mallopt(M_PERTURB, byte) and kind == "filled":
            report.phase("unfilled")
            break
        outputs = [tensor.clone() for tensor in bench.run(kind, marks(kind, report))]
        if kind == "first":
            first = outputs
            continue
        pairs = [compare(want, got, (RELATIVE, RELATIVE * _size(want))) for want, got in zip(first, outputs)]
        report.event(events.Repeated(kind, all(pair.equal for pair in pairs)))
    mallopt(M_PERTURB, 0)


def _size(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 for integers, which must be equal."""
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0


@dataclass
class Bench:
    """Runs the package, with a subscriber for its launches if it has probes.

    Only one load is alive at a time, to have the weights in memory once. The library of an old load stays
    mapped because `find_libraries` opened it; its weights are freed.
    """

    request: CompareLaunchesRequest
    leaves: list[Any]
    report: Report
    runs: int = 0
    loader: Any = None
    alive: list[Any] = field(default_factory=list)  # constants that the caller of an update owns

    def run(self, kind: str, take: Callable[[Event], bool]) -> list[torch.Tensor]:
        """The outputs of one call of a fresh load; they may alias the weights, which the next run frees."""
        self.loader, self.alive = None, []
        before = mapped_files()
        self.loader = load(self.request, self.report)
        steps = [step for step in self.request.get("steps", ()) if step["do"] == "constants"]
        self.alive = [update_package(self.loader, step, self.report) for step in steps]
        probes = self.request.get("probes", True)
        libraries = find_libraries(before) if probes else []
        if probes and not libraries:
            raise Refused("the package is not instrumented", self.request["package"])
        for library in libraries:
            library.subscribe(take)
        flat = [leaf.clone() for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        result = call(partial(self.loader.run, flat), self.runs, self.report)
        self.runs += 1
        for library in libraries:
            library.unsubscribe(self.report)
        outputs = only_tensors(result)
        self.report.event(events.Outputs(kind, [checksum(tensor) for tensor in outputs]))
        return outputs


def _differing(actual: torch.Tensor, own: torch.Tensor) -> int:
    """How many elements differ; NaN equals NaN. In parts, since the masks of a large weight are large."""
    rows = max(1, PART // max(1, own[:1].numel())) if own.dim() else 1
    different = 0
    for left, right in zip(actual.split(rows), own.split(rows)) if own.dim() else [(actual, own)]:
        different += int(unequal(left, right.to(left.device)).sum())
    return different


@dataclass
class ComparedConstants:
    """Compares constants of the package with those of the program (`own`) where a launch first reads them.

    `unseen` maps the package's names to the program's, until a launch reads them.
    """

    own: dict[str, torch.Tensor]
    unseen: dict[str, str]
    report: Report

    def take(self, event: Event) -> None:
        """Event `constant_differs`, except for a constant that Inductor laid out differently."""
        for argument in arguments(event) if event.phase == BEFORE else ():
            name = argument.name.decode()
            tensor = tensor_of(argument) if name in self.unseen else None
            if tensor is None:
                continue
            fqn = self.unseen.pop(name)
            own = self.own.get(fqn)
            # The launch may read a view of the constant.
            value = laid_out(tensor, own.shape, own.stride(), 0) if own is not None else None
            if own is None or value is None or value.dtype != own.dtype or not own.numel():
                continue
            different = _differing(value, own.detach())
            if different:
                launch, elements = int(event.launch), own.numel()
                self.report.event(events.ConstantDiffers(fqn, launch, elements, different))


def report_outputs(got: list[torch.Tensor], wanted: list[Expected], factor: float, report: Report) -> None:
    report.event(events.CountedOutputs(len(got), len(wanted)))
    for place, (have, want) in enumerate(zip(got, wanted)):
        alike = have.shape == want.eager.shape
        shapes = [list(want.eager.shape), list(have.shape)]
        dtypes = [str(want.eager.dtype), str(have.dtype)]
        report.event(events.Output(place, shapes, dtypes, measure(have, want, factor) if alike else None))


def marks(
    kind: str,
    report: Report,
    unset: Mapping[str, list[str]] = {},
    constants: Optional[ComparedConstants] = None,
) -> Callable[[Event], bool]:
    """Reports checksums of the tensors written. Fills the `unset` tensors before their first launch."""

    def take(event: Event) -> bool:
        if constants is not None:
            constants.take(event)
        names = unset.get(str(event.launch), []) if event.phase != AFTER else []
        for argument in arguments(event) if names else ():
            name = argument.name.decode()
            tensor = tensor_of(argument) if name in names else None
            if tensor is not None and tensor.is_floating_point():
                tensor.fill_(float("nan"))
                report.phase("filled", name)
        for facts, tensor in written(event):
            report.event(events.Rerun(*facts, kind, checksum(tensor)))
        return False

    return take
