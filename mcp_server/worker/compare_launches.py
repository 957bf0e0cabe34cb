"""Runs a package several times: compared with eager mode launch by launch, or with itself (`repeat`).

`Judge` sees every launch on correct inputs: it replaces the outputs of each launch with eager values.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import torch
from torch.utils import _pytree

from . import events
from .compare import Expected, equal, measure
from .eager_values import PRODUCTS, expectations
from .events import Closeness, JudgedOutputs, LaunchJudged, OfLaunch
from .inputs import flatten, read
from .launch_nodes import ProgramGraph, Stored, overwrite
from .loading import constants_of, load, load_with_inputs, update_package, update_program
from .probes import AFTER, BEFORE, Event, arguments, mapped_files, subscribed, tensor_of, written
from .protocol import CompareLaunchesRequest, LaunchFlow
from .report import Report
from .run import call
from .tensors import checksum, dtype_name, laid_out, only_tensors, unequal

PART = 1 << 22  # elements compared at once; bounds the temporaries
KEPT_BYTES = 2 << 30  # cap for eager values, and for those of each float64 run


def operate(request: CompareLaunchesRequest, report: Report) -> None:
    """Report `output_compared` for outputs, `rerun` and `launch_judged` for tensors that launches write.

    The package runs at least three times, each time in a fresh load: twice unchanged, and once with the unset
    tensors filled, which reveals reads of uninitialised memory. If the unchanged runs differ, it runs filled
    twice: values that now agree came from unset memory. With `flow`, it also runs with `Judge`.
    """
    program, *inputs = load_with_inputs(request, report)
    leaves = _pytree.tree_leaves(inputs)
    nodes, names = request.get("nodes", {}), request.get("constants") or {}
    module = program.module()
    for step in request.get("steps", ()):
        update_program(module, step, report)
    wanted = frozenset(name for names in nodes.values() for name in names)
    expected = expectations(module, leaves, report, wanted, KEPT_BYTES)
    outputs = expected.outputs
    if request.get("eager_outputs"):
        torch.save([one.eager.cpu() for one in outputs], request["eager_outputs"])
    bench = Bench(request, leaves, report)
    constants = ComparedConstants(constants_of(module), dict(names), report)
    made = bench.run("first", marks("first", report, constants=constants))
    first = [*map(checksum, made)]
    report_outputs(made, outputs, report)
    if request.get("flow"):
        graph = ProgramGraph(module, {int(launch): carried for launch, carried in nodes.items()})
        judge = Judge(graph, expected.nodes, graph.own_values(leaves), names, request["flow"], report)
        judge.outputs(bench.run("judged", judge.take), outputs)
    second = [*map(checksum, bench.run("second", marks("second", report)))]
    for kind in ("filled",) if first == second else ("filled", "filled_again"):
        bench.run(kind, marks(kind, report, request.get("unset", {})))


# M_PERTURB sets a byte. glibc fills memory from malloc with its complement, and freed memory with the byte
# itself (malloc.c, alloc_perturb, free_perturb). New float32 values: 3.4e38 (0x7f7f7f7f), 0.75 (0x3f3f3f3f).
M_PERTURB = -6
FILLS = {"first": 0x80, "second": 0x80, "filled": 0xC0}
RELATIVE = 1e-3  # smaller differences may come from threads that sum in another order


def operate_repeat(request: CompareLaunchesRequest, report: Report) -> None:
    """Report `repeated` for the second and third call, compared with the first.

    With `probes`, event `rerun` has the checksum of each tensor that a launch wrote. The second call draws
    other random numbers; the third finds other contents in new memory. If the C library cannot fill memory
    (event `unfilled`), there is no third call.
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
        same = (equal([want], [got], (RELATIVE, RELATIVE * _size(want))) for want, got in zip(first, outputs))
        report.event(events.Repeated(kind, all(same)))
    mallopt(M_PERTURB, 0)


def _size(tensor: torch.Tensor) -> float:
    """The largest finite magnitude. 0 for integers, which must be equal."""
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0


@dataclass
class Bench:
    """Runs the package, with a subscriber for its launches if it has probes.

    Only one load is alive at a time, so that the weights are in memory once. The library of an old load stays
    mapped, because `find_libraries` opened it, but its weights are freed.
    """

    request: CompareLaunchesRequest
    leaves: list[Any]
    report: Report
    runs: int = 0
    loader: Any = None
    alive: list[Any] = field(default_factory=list)  # constants of updates: the loader keeps no reference

    def run(self, kind: str, take: Callable[[Event], bool]) -> list[torch.Tensor]:
        """The outputs of one call of a fresh load. They may alias weights until the next run."""
        self.loader, self.alive = None, []
        before = mapped_files()
        self.loader = load(self.request, self.report)
        steps = [step for step in self.request.get("steps", ()) if step["do"] == "constants"]
        self.alive = [update_package(self.loader, step, self.report) for step in steps]
        probes = self.request.get("probes", True)
        flat = [leaf.clone() for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        with subscribed(take, self.report, before) if probes else nullcontext():
            result = call(partial(self.loader.run, flat), self.runs, self.report)
        self.runs += 1
        outputs = only_tensors(result)
        self.report.event(events.Outputs(kind, [checksum(tensor) for tensor in outputs]))
        return outputs


def _differing(actual: torch.Tensor, own: torch.Tensor) -> int:
    """Count elements that differ; NaN equals NaN. Compare parts, because masks need memory."""
    rows = max(1, PART // max(1, own[:1].numel())) if own.dim() else 1
    different = 0
    for left, right in zip(actual.split(rows), own.split(rows)) if own.dim() else [(actual, own)]:
        different += int(unequal(left, right.to(left.device)).sum())
    return different


@dataclass
class ComparedConstants:
    """Compares constants of the package and the program (`own`) when a launch first reads them.

    `unseen` maps names in the package to names in the program, for constants not read yet.
    """

    own: dict[str, torch.Tensor]
    unseen: dict[str, str]
    report: Report

    def take(self, event: Event) -> None:
        """Report `constant_differs`. Skip a constant to which Inductor gave another layout."""
        for argument in arguments(event) if event.phase == BEFORE else ():
            name = argument.name.decode()
            tensor = tensor_of(argument) if name in self.unseen else None
            if tensor is None:
                continue
            fqn = self.unseen.pop(name)
            own = self.own.get(fqn)
            # The launch may read a view: compare the whole constant.
            value = laid_out(tensor, own.shape, own.stride(), 0) if own is not None else None
            if own is None or value is None or value.dtype != own.dtype or not own.numel():
                continue
            different = _differing(value, own.detach())
            if different:
                launch, elements = int(event.launch), own.numel()
                self.report.event(events.ConstantDiffers(fqn, launch, elements, different))


def report_outputs(got: list[torch.Tensor], wanted: list[Expected], report: Report) -> None:
    report.event(events.CountedOutputs(len(got), len(wanted)))
    for place, (have, want) in enumerate(zip(got, wanted)):
        found = Closeness()
        if have.shape == want.eager.shape:
            found = measure(have, want)
        layouts = [f"{each.dtype} {list(each.shape)}" for each in (want.eager, have)]
        if layouts[0] != layouts[1]:
            report.event(events.OutputCompared(place, "layout", found, layouts))
        else:
            agreement = "equal" if found.equal else "rounding" if found.within else "differs"
            report.event(events.OutputCompared(place, agreement, found))


def marks(
    kind: str, report: Report, unset: Mapping[str, list[str]] = {}, constants: ComparedConstants | None = None
) -> Callable[[Event], bool]:
    """A subscriber that fills `unset` tensors with NaN, and reports checksums of written ones."""

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
        for place, tensor in written(event):
            report.event(events.Rerun(**vars(place), run=kind, checksum=checksum(tensor)))
        return False

    return take


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether joining neighbouring dimensions makes the shapes equal, and both or neither are floats."""
    if one.is_floating_point() != other.is_floating_point() or one.numel() != other.numel():
        return False
    shapes = [[size for size in each.shape if size != 1] for each in (one, other)]
    short, left = sorted(shapes, key=len)
    for size in short:
        joined = 1
        while left and joined < size:
            joined *= left.pop(0)
        if joined != size:
            return False
    return not left


@dataclass(frozen=True)
class Judged:
    """The value that a tensor should hold, and the result of `measure`, or `why` it is unknown."""

    stored: Stored | None = None
    facts: Closeness | None = None
    why: str = ""


@dataclass
class Judge:
    """Reports `launch_judged` for each tensor that another launch or the caller reads, and makes it correct.

    `own` are inputs and constants by node; `constants` maps names in the package to those in the program.
    """

    graph: ProgramGraph
    expected: Mapping[str, list[Expected]]
    own: Mapping[str, Expected]
    constants: Mapping[str, str]
    flow: Mapping[str, LaunchFlow]
    report: Report
    copies: dict[str, str] = field(default_factory=dict)  # by tensor: the target of the node copied into it

    def take(self, event: Event) -> bool:
        flow = self.flow.get(str(int(event.launch)))
        if flow is None:
            return False
        for place, tensor in written(event):
            readers, maybe = (users.get(place.name, []) for users in (flow["readers"], flow["maybe"]))
            judged = self.judge(event, tensor, readers or maybe)
            if not readers and (judged.stored is None or not maybe):
                continue  # nothing reads this scratch memory of the kernel
            if judged.stored is not None:
                self.copies[place.name] = str(self.graph.by_name[judged.stored.node].target)
                overwrite(tensor, judged.stored.want.eager)
            self.report.event(_reported(place, judged, tensor))
        return False

    def outputs(self, got: Sequence[torch.Tensor], wanted: Sequence[Expected]) -> None:
        """Report `judged_outputs`: whether the outputs are right after all launches had correct inputs."""
        pairs = list(zip(got, wanted))
        shaped = len(got) == len(wanted) and all(have.shape == want.eager.shape for have, want in pairs)
        right = shaped and all(measure(have, want).within for have, want in pairs)
        self.report.event(JudgedOutputs(right))

    def judge(self, event: Event, tensor: torch.Tensor, readers: Sequence[int]) -> Judged:
        """Find the value that the tensor should hold, and measure it, or say why it is unknown."""
        launch = int(event.launch)
        names = [argument.name.decode() for argument in arguments(event)]
        read = {known.get(name, "") for name in names for known in (self.constants, self.copies)}
        candidates = list(self.graph.candidates(launch, self.expected, read))
        shaped = [one for one in candidates if alike(tensor, one.want.eager)]
        taken = [one for one in shaped if self.graph.taken(one, readers)]
        library = self.flow[str(launch)]["library"]
        whole = [one for one in taken if self.graph.whole(one, launch, readers, library=library)]
        found = self._matching(tensor, whole) or self._matching(tensor, taken)
        if found is None and len(whole) == 1:
            return Judged(whole[0], measure(tensor, whole[0].want))
        same_size = [one for one in candidates if one.want.eager.numel() == tensor.numel()]
        copied = self.graph.copied([launch, *readers], self.own, tensor.shape)
        found = found or self._matching(tensor, [*shaped, *same_size, *copied])
        if found is not None:
            return found
        if not self.graph.nodes.get(launch):
            return Judged(why="the package names no node for it")
        if not candidates:
            return Judged(why="no value of its nodes was kept")
        return Judged(why="several nodes fit" if taken else "no node of its shape is what its readers take")

    def _matching(self, tensor: torch.Tensor, candidates: Sequence[Stored]) -> Judged | None:
        """The nearest candidate within the tolerance, or None."""
        measured = [(measure(tensor, one.want), one) for one in candidates]
        within = [pair for pair in measured if pair[0].within]
        best = min(within, key=lambda pair: float(pair[0].excess or 0.0), default=None)
        return None if best is None else Judged(best[1], best[0])


def _reported(place: OfLaunch, judged: Judged, tensor: torch.Tensor) -> LaunchJudged:
    """The judgement of a tensor as an event."""
    stored, measured = judged.stored, judged.facts
    if stored is None or measured is None:
        return LaunchJudged(**vars(place), why=judged.why)
    eager = stored.want.eager
    products = any(word in stored.node for word in PRODUCTS)
    tf32 = products and tensor.is_cuda and tensor.dtype == torch.float32 and measured.within_tf32
    return LaunchJudged(
        **vars(place),
        status="right" if measured.within else "wrong",
        node=stored.node,
        place=stored.place,
        product=stored.product,
        shape=list(eager.shape),
        dtype=dtype_name(eager.dtype),
        sizes=list(tensor.shape),
        strides=list(tensor.stride()),
        offset=tensor.storage_offset(),
        compared=measured,
        tf32=bool(tf32),
    )
