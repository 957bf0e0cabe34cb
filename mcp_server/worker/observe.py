"""`observe`: run an instrumented package and tell what its launches read and wrote."""

from __future__ import annotations

from typing import Any

import torch

from . import run
from .calling import capturing, synchronize
from .failures import Refused
from .handoff import received
from .probes import (
    AFTER,
    INTEGER,
    REAL,
    ROLES,
    Argument,
    Event,
    arguments,
    find_libraries,
    mapped_files,
    tensor_of,
)
from .report import Report
from .saver import Saver
from .selection import Selection
from .tensors import layout, statistics
from .values import MASK, first_non_finite, first_outside

MAX_EVENTS = 100_000
SAVE_BYTES = 4 << 30  # of all tensors saved in one observation


def operate(request: "dict[str, Any]", report: Report) -> None:
    """Like `run`, with an event `argument` for each argument asked for, and `non_finite` where values go bad.

    Request: what `run` takes, the choices of `Selection`, and
    - `statistics` (default true): counts of nan, inf and zero, min, max, mean, checksum;
    - `bounds`: `[{"name": variable or parameter, "launch": n?, "low": 0, "high": 32}]` for index tensors;
    - `save`: a directory for the tensors as safetensors files, `save_bytes` the cap of all of them;
    - `stop_at_first_bad`: end the run at the first bad value but minus infinity; `max_events`;
    - `handoff`: a file that will name the package (see `handoff`); one without probes is only run.
    """
    if request.get("handoff"):
        request = received(request, report)
        if not request["probes"]:
            run.operate(request, report)
            return
    before = mapped_files()
    observer = Observer(request, report)

    def attach() -> None:
        libraries = find_libraries(before)
        if not libraries:
            raise Refused(
                "the package is not instrumented", request["package"], "a package with launch probes"
            )
        for library in libraries:
            library.subscribe(observer.take, observer.selection.mask())
        observer.libraries = libraries
        report.event("attached", libraries=len(libraries))

    try:
        run.operate(request, report, attach)
    finally:
        observer.close()


class Observer:
    """Receives the events of all libraries of one observation."""

    def __init__(self, request: "dict[str, Any]", report: Report) -> None:
        self.selection = Selection(request)
        self.report = report
        self.libraries: "list[Any]" = []
        self._statistics = bool(request.get("statistics", True))
        self._bounds = list(request.get("bounds") or ())
        self._saver = Saver(request.get("save"), int(request.get("save_bytes", SAVE_BYTES)))
        self._stop = bool(request.get("stop_at_first_bad", False))
        self._events_left = int(request.get("max_events", MAX_EVENTS))
        self._bad_inputs: "dict[tuple[int, int, int], list[str]]" = {}
        self._left_out = 0

    def take(self, event: Event) -> bool:
        """Look at one launch in one phase; true stops the run."""
        kernel = event.kernel.decode()
        if not self.selection.takes_kernel(kernel) or capturing():
            return False
        phase = "after" if event.phase == AFTER else "before"
        if phase not in self.selection.phases:
            return False
        bad = False
        synchronize()
        for argument in arguments(event):
            bad = self._argument(event, kernel, phase, argument) or bad
        return bad and self._stop

    def _argument(self, event: Event, kernel: str, phase: str, argument: Argument) -> bool:
        """Tell of one argument; whether its values are wrong for sure: minus infinity may be a mask."""
        name, parameter = argument.name.decode(), argument.parameter.decode()
        role = ROLES.get(argument.role, "unknown")
        if not self.selection.takes(event.launch, phase, name, parameter, role):
            return False
        facts = {"name": name, "parameter": parameter, "role": role}
        if argument.kind in (INTEGER, REAL):
            value = argument.integer if argument.kind == INTEGER else argument.real
            self._tell(event, kernel, phase, {**facts, "value": value})
            return False
        tensor = tensor_of(argument)
        if tensor is None:
            return False
        return self._tensor(event, kernel, phase, facts, tensor)

    def _tensor(
        self, event: Event, kernel: str, phase: str, facts: "dict[str, Any]", tensor: torch.Tensor
    ) -> bool:
        found = {**facts, **layout(tensor), "pointer": _pointer(tensor)}
        if self._statistics:
            found.update(statistics(tensor))
            any_bad = found.get("nan") or found.get("inf")
            found["non_finite"] = first_non_finite(tensor) if any_bad else None
        found["outside"] = self._outside(event.launch, facts, tensor)
        found["saved"] = self._saver.save(_where(event, kernel), phase, found, tensor)
        self._tell(event, kernel, phase, found)
        if found.get("non_finite"):
            self._judge(event, kernel, phase, found)
        bad = found.get("non_finite")
        return bool(found["outside"]) or (bad is not None and bad["value"] != MASK)

    def _judge(self, event: Event, kernel: str, phase: str, found: "dict[str, Any]") -> None:
        """Bad inputs are remembered; a bad output is told together with whether the inputs were good."""
        key = (event.runner or 0, event.run, event.sequence)
        if phase == "before":
            self._bad_inputs.setdefault(key, []).append(found["name"])
            return
        self.report.event(
            "non_finite",
            **_where(event, kernel),
            name=found["name"],
            first=found["non_finite"],
            inputs_looked_at="before" in self.selection.phases,
            bad_inputs=self._bad_inputs.get(key, []),
        )

    def _outside(self, launch: int, facts: "dict[str, Any]", tensor: torch.Tensor) -> Any:
        """The first element beyond a bound that the request knows for this argument."""
        for bound in self._bounds:
            named = bound["name"] in (facts["name"], facts["parameter"])
            if named and bound.get("launch", launch) == launch:
                return first_outside(tensor, int(bound["low"]), int(bound["high"]))
        return None

    def _tell(self, event: Event, kernel: str, phase: str, facts: "dict[str, Any]") -> None:
        if self._events_left <= 0:
            self._left_out += 1
            return
        self._events_left -= 1
        self.report.event("argument", phase=phase, **_where(event, kernel), **facts)

    def close(self) -> None:
        """Detach, and tell what went wrong here and not in the workload."""
        for library in self.libraries:
            library.unsubscribe()
            if library.failure:
                self.report.event("observer_failed", text=library.failure[-4000:])
        if self._left_out:
            self.report.event("left_out", arguments=self._left_out)
        self._saver.close(self.report)


def _where(event: Event, kernel: str) -> "dict[str, Any]":
    return {
        "launch": event.launch,
        "sequence": event.sequence,
        "run": event.run,
        "kernel": kernel,
        "runner": event.runner,
    }


def _countable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_meta


def _pointer(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if _countable(tensor) else 0
