"""Judges every launch on right inputs: after each launch the eager values of what it wrote are copied in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

import torch

from .eager_values import PRODUCTS, Expected, measure
from .launch_nodes import ProgramGraph, Stored, alike, reshaped
from .probes import Event, arguments, written
from .protocol import LaunchFlow
from .report import Report
from .tensors import dtype_name

REPORTED = ("elements", "beyond", "error", "allowed", "first", "values")


@dataclass(frozen=True)
class Judged:
    """What a tensor holds, with the facts of `measure`; or why that is not known."""

    stored: Optional[Stored] = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass
class Judge:
    """Subscriber of one call; event `launch_judged` (`JudgedTensor`) for each tensor that another step reads.

    `own` are the inputs and constants by node, `constants` names those of the package as the program does.
    """

    graph: ProgramGraph
    expected: Mapping[str, list[Expected]]
    own: Mapping[str, Expected]
    constants: Mapping[str, str]
    flow: Mapping[str, LaunchFlow]
    factor: float
    report: Report
    copies: dict[str, str] = field(default_factory=dict)  # by tensor, what it holds

    def take(self, event: Event) -> bool:
        flow = self.flow.get(str(int(event.launch)))
        if flow is None:
            return False
        for place, tensor in written(event):
            readers, maybe = (users.get(place.name, []) for users in (flow["readers"], flow["maybe"]))
            judged = self.judge(event, tensor, readers or maybe)
            if not readers and (judged.stored is None or not maybe):
                continue  # nothing reads it: memory that the kernel works in
            known: dict[str, Any] = {"status": "unjudged", "why": judged.why}
            if judged.stored is not None:
                known.update(_facts(judged.stored, tensor, judged.facts))
                self.copies[place.name] = str(self.graph.by_name[judged.stored.node].target)
                overwrite(tensor, judged.stored.want.eager)
            self.report.event("launch_judged", **place._asdict(), **known)
        return False

    def outputs(self, got: Sequence[torch.Tensor], wanted: Sequence[Expected]) -> None:
        """Event `judged_outputs`: whether the call with right values in place of all wrong ones is right."""
        pairs = list(zip(got, wanted))
        shaped = len(got) == len(wanted) and all(have.shape == want.eager.shape for have, want in pairs)
        right = shaped and all(measure(have, want, self.factor)["within"] for have, want in pairs)
        self.report.event("judged_outputs", right=right)

    def judge(self, event: Event, tensor: torch.Tensor, readers: Sequence[int]) -> Judged:
        """What the tensor holds with the facts of `measure`, else why that is not known."""
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
            return Judged(whole[0], measure(tensor, whole[0].want, self.factor))
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

    def _matching(self, tensor: torch.Tensor, candidates: Sequence[Stored]) -> Optional[Judged]:
        """The nearest of those whose value the tensor has."""
        measured = [Judged(one, measure(tensor, one.want, self.factor)) for one in candidates]
        within = [one for one in measured if one.facts["within"]]
        return min(within, key=lambda one: float(one.facts.get("excess", 0.0)), default=None)


def own_values(graph: ProgramGraph, leaves: Sequence[Any]) -> dict[str, Expected]:
    """The inputs and constants of a program, by node."""
    values = graph.attributes()
    values.update(zip((node.name for node in graph.inputs), leaves))
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    return {name: Expected(name, value.detach(), None, 1.0) for name, value in tensors.items()}


def _facts(stored: Stored, tensor: torch.Tensor, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a `JudgedTensor` that holds a known node."""
    eager = stored.want.eager
    products = any(word in stored.node for word in PRODUCTS)
    tf32 = products and tensor.is_cuda and tensor.dtype == torch.float32 and measured["within_tf32"]
    return {
        "status": "right" if measured["within"] else "wrong",
        "node": stored.node,
        "place": stored.place,
        "product": stored.product,
        "shape": list(eager.shape),
        "dtype": dtype_name(eager.dtype),
        "sizes": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": tensor.storage_offset(),
        "tf32": bool(tf32),
        **{name: measured[name] for name in REPORTED if name in measured},
    }


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy the numbers into the memory of a launch, and wait for that."""
    tensor.copy_(reshaped(value, tensor.shape))
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
