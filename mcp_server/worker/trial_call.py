"""One call of a plan: the package loaded, its inputs read, changed and given to it."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
from dataclasses import dataclass
from typing import Any, ContextManager, Iterator, Optional

import torch

from .calling import synchronize, take_if_used, watching
from .inputs import Inputs, apply, arrange, flatten, load_file, read
from .loading import load, update_package
from .process import go_to, limited, on_stack
from .report import Report
from .run import load_library
from .trial_compare import input_change
from .trial_facts import InputChange


class Phase:
    """What is being done, for the report of an error."""

    name = "starting"


@dataclass
class Made:
    """A call that came back: outputs, what its changes did to the inputs, and which it changed in place.

    `given` are the leaves as they were before the call, with the changes.
    """

    outputs: list[torch.Tensor]
    changes: list[InputChange]
    mutated: list[int]
    given: list[Any]


class Caller:
    """Makes the calls of one plan. The package and the inputs are kept from one to the next."""

    def __init__(self, request: dict[str, Any], report: Report) -> None:
        self.request = request
        self.report = report
        self.loader: Any = None
        self._alive: list[Any] = []  # constants that a user-managed update needs
        self._inputs: dict[str, list[Any]] = {}

    @property
    def keeps_nothing(self) -> bool:
        """Whether each call finds the package as the first one did, without a load of its own."""
        steps = list(self.request.get("steps", ()))
        return not self.request.get("fresh") and all(step["do"] != "call" for step in steps[:-1])

    @property
    def step(self) -> dict[str, Any]:
        """The captured call, which is the last of the steps; nothing of a package with inputs."""
        steps = list(self.request.get("steps", ()))
        return dict(steps[-1]) if steps else {}

    def again(self, leaves: list[Any]) -> list[torch.Tensor]:
        """The call as it is, on copies of these leaves."""
        return self.run(self.loader, self.request, self.step, copy.deepcopy(leaves))

    def in_time(self) -> ContextManager[None]:
        """Ends the process when a call takes longer than the request allows."""
        return ended_after(self.request.get("call_limit_s"))

    def make(self, planned: dict[str, Any], phase: Phase) -> Made:
        """The call of a plan, with its changes and options. Raises what the call raises."""
        options = dict(planned.get("options") or {})
        request = {**self.request, **options}
        steps = list(request.get("steps", ()))
        loader = self._loaded(request, steps[:-1], bool(options), phase)
        phase.name = "inputs"
        step = steps[-1] if steps else {}
        given = copy.deepcopy(self.given(request, step, loader))
        flat = apply(list(given), list(planned.get("changes") or ()))
        changes = [input_change(place, *pair) for place, pair in enumerate(zip(given, flat))]
        before = [leaf.clone() for leaf in flat]
        phase.name = "calling"
        outputs = self.run(loader, request, step, flat)
        phase.name = "outputs"
        mutated = [
            place
            for place, (old, now) in enumerate(zip(before, flat))
            if old.shape == now.shape and input_change(place, old, now) is not None
        ]
        return Made(outputs, [change for change in changes if change is not None], mutated, before)

    def run(
        self, loader: Any, request: dict[str, Any], step: dict[str, Any], flat: list[Any]
    ) -> list[torch.Tensor]:
        """One call on these leaves, as it was captured; copies of its outputs."""
        if step.get("threads"):
            torch.set_num_threads(int(step["threads"]))
        stack = request.get("stack_bytes") or step.get("stack")
        take_if_used()
        with watching(request, self.report), limited(step.get("headroom")), torch.no_grad(), self.in_time():
            for _ in range(2 if request.get("twice") else 1):
                result = on_stack(stack, lambda: loader.run(list(flat)))
            synchronize()
        return [leaf.detach().clone() for leaf in result if isinstance(leaf, torch.Tensor)]

    def _loaded(self, request: dict[str, Any], steps: list[dict[str, Any]], other: bool, phase: Phase) -> Any:
        """The package as the plan's calls find it, or loaded for this call alone."""
        history = any(step["do"] == "call" for step in steps)
        if self.loader is not None and not (other or history or request.get("fresh")):
            return self.loader
        phase.name = "loading"
        library = bool(request.get("library"))
        loader = (
            load_library(request, self.report)
            if library
            else load(request, self.report, weights=not request.get("steps"))
        )
        go_to(request.get("current_device"))
        for step in steps:
            if step["do"] == "constants":
                phase.name = "updating_constants"
                cast, copied = dict(request.get("cast", {})), list(request.get("copied", ()))
                self._alive.append(update_package(loader, step, cast, self.report, copied))
            else:
                phase.name = "earlier call"
                with torch.no_grad():
                    loader.run(copy.deepcopy(self.given(request, step, loader)))
        for update in request.get("updates", ()):
            phase.name = "updating_constants"
            self._alive.append(update_package(loader, update, {}, self.report))
        if not other:
            self.loader = loader
        return loader

    def given(self, request: dict[str, Any], step: dict[str, Any], loader: Any) -> list[Any]:
        """The leaves of the call, read from the file or made from specs the first time."""
        source = str(step.get("file") or request.get("inputs"))
        if source not in self._inputs:
            found = arrange(load_file(source), source) if step.get("file") else read(request)
            again = Inputs(found.args, found.kwargs, found.mapping, found.flat)
            self._inputs[source] = flatten(again, str(loader.get_call_spec()[0]))
        return self._inputs[source]


@contextlib.contextmanager
def ended_after(seconds: Optional[float]) -> Iterator[None]:
    """The process ends with status 1 when this takes longer, whatever native code it is in."""
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
