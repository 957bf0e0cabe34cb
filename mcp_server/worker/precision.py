"""`precision`: the fewest launches of a half-precision model that have to run in a wider one.

Chosen launches are computed in float64 from what they read, and take what others of them made unrounded. The
rest runs as it is. Delta debugging finds a smallest choice with which the outputs are right.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Mapping, Optional, Sequence

import torch
from torch.utils import _pytree

from .eager_launches import Replacement
from .eager_values import ExactRecorder, Expected, measure, widened
from .launch_nodes import Known
from .loading import arguments, load
from .protocol import PrecisionFound, PrecisionRequest
from .reduction.minimise import minimise
from .report import Refused, Report
from .tensors import only_tensors

MOST_SECONDS = 120.0


class Widened(Replacement):
    """Launches in float64."""

    kind = ExactRecorder

    def wrong_before(self, launch: int, wanted: Sequence[str]) -> list[int]:  # noqa: ARG002
        """None: a narrow launch is wrong without any fault, and the choice is judged by the outputs."""
        return []

    def _known(self, launch: int, tensors: Mapping[str, torch.Tensor]) -> dict[Known, torch.Tensor]:
        """What the launch reads, widened; what chosen launches made for it as they made it."""
        found = {key: widened(value) for key, value in super()._known(launch, tensors).items()}
        for writer, written in self.plan["sources"].get(str(launch), {}).values():
            value = self.made.get((writer, written))
            if value is not None:
                held = self.plan["stored"][str(writer)][written]
                found[held["node"], held["place"], held["product"]] = value
        return found


class _Spent(Exception):
    """The search has used up its time."""


class PrecisionSearch:
    """Calls with chosen launches in float64, and what their outputs should be."""

    def __init__(self, request: PrecisionRequest, report: Report) -> None:
        self.request, self.report = request, report
        self.wide = Widened(request["plan"], report)
        self.leaves = _pytree.tree_leaves(arguments(self.wide.program, request))
        self.flat = only_tensors(self.leaves)
        module = self.wide.program.module()
        recorder = ExactRecorder(module, frozenset(), 0, report)
        with torch.no_grad():
            exact = recorder.run(*(widened(leaf) for leaf in self.leaves), enable_io_processing=False)
        self.exact = only_tensors(exact)
        self.calls = 0

    def run(self) -> PrecisionFound:
        """Nothing, if the outputs are right as they are; `possible` is false if all launches do not do."""
        numbers = [int(launch) for launch in self.wide.plan["stored"]]
        everything = [number for number in numbers if self.wide.computed(number)]
        if self.right([]):
            return PrecisionFound((), possible=True, calls=self.calls)
        if not self.right(everything):
            return PrecisionFound((), possible=False, calls=self.calls)
        least: Sequence[int] = everything
        deadline = time.monotonic() + MOST_SECONDS

        def first_right(candidates: Sequence[Sequence[int]]) -> Optional[int]:
            nonlocal least
            for number, candidate in enumerate(candidates):
                if time.monotonic() > deadline:
                    raise _Spent
                if self.right(candidate):
                    least = candidate
                    return number
            return None

        try:
            minimise(everything, first_right)
        except _Spent:
            return PrecisionFound(tuple(least), possible=True, calls=self.calls, complete=False)
        return PrecisionFound(tuple(least), possible=True, calls=self.calls)

    def right(self, launches: Sequence[int]) -> bool:
        """Whether the outputs are within a few roundings of float64 with these launches widened."""
        self.calls += 1
        loader = load(self.request, self.report)
        leaves = [widened(leaf) for leaf in self.leaves]
        with torch.no_grad(), self.wide.during(launches, leaves):
            got = only_tensors(loader.run([leaf.clone() for leaf in self.flat]))
        return len(got) == len(self.exact) and all(map(self._within, got, self.exact))

    def _within(self, got: torch.Tensor, exact: torch.Tensor) -> bool:
        if got.shape != exact.shape:
            return False
        factor = self.request.get("factor", 1.0)
        return bool(measure(got, Expected("output", exact, exact, 1.0), factor)["within"])


def operate(request: PrecisionRequest, report: Report) -> None:
    """Event `precision_found` (`PrecisionFound`)."""
    try:
        search = PrecisionSearch(request, report)
    except RuntimeError as error:
        raise Refused("the program cannot be run in float64: {}".format(error), request["plan"]) from None
    report.event("precision_found", **asdict(search.run()))
