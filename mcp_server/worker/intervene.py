"""`intervene`: one failing call made several times in one process, as it is and with changes.

The package and the inputs are read once. A call that ends the process ends the operation: the server then
goes on with the rest of the plan in another process.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import time
from dataclasses import asdict, dataclass
from typing import Any, Iterator, Optional

import torch

from .address_space import limited
from .calling import synchronize, watching
from .current_device import go_to
from .failures import TEXT_LIMIT, Refused
from .imports import import_all
from .inputs import Inputs, arrange, flatten, load_file, read
from .loading import load
from .own_stack import on_stack
from .replay import load_library
from .report import Report
from .smallest_change import Places, Search, elements
from .transforms import apply
from .trial_compare import (
    beside,
    differing,
    expectation,
    facts_of,
    faults,
    input_change,
    text_of,
    with_expectation,
)
from .trial_facts import FIRST_ELEMENTS, CallFacts, Comparison, InputChange, NeededElement, Smallest
from .updates import update_package


def operate(request: dict[str, Any], report: Report) -> None:
    """Make the calls of `plan`, in order; event `intervening` before each and `intervened` after it.

    Request: what `run` takes (`package`, `inputs`), or what `replay` takes (`steps`, the last of which is the
    call); and
    - `plan`: a list of {"label", "key", "changes", "options", "save", "reference"}. A call without a key is
      the call as it is; `changes` alter its inputs (see `transforms`); `options` replace parts of the
      request, and the package is then loaded anew for this call; `save` names a file for its outputs.
      `reference` marks a call that changes nothing but what is at fault: while the call as it is does not
      come back, others of that key are compared with the first of them, and where two of them differ is what
      depends on the fault;
      `smallest` asks for the fewest of the changed elements that are enough (see `smallest_change`);
    - `against`: a file that `save` wrote, of the call as it is in another process;
    - `call_limit_s`: seconds after which a call ends the process, with the stacks of its threads;
    - `expect`: a file with what the outputs are to be; `rtol` and `atol` for it and for what changed;
    - `infinities`: whether infinities in outputs are faults;
    - `fresh`: load the package anew for every call, as one needs that keeps state from call to call.
    `intervened` holds the fields of `CallFacts`. After a CUDA error that lasts, event `poisoned` ends the
    plan.
    """
    import_all(list(request.get("extra_imports", ())), report)
    trial = Trial(request, report)
    for planned in request["plan"]:
        report.event("intervening", label=planned["label"], key=planned.get("key", ""))
        with ended_after(request.get("call_limit_s")):
            facts = trial.make(planned)
        report.event("intervened", **asdict(facts))
        if facts.poisoned:
            report.event("poisoned", label=facts.label)
            return


@dataclass
class Made:
    """A call that came back: outputs, what its changes did to the inputs, and which it changed in place.

    `given` are the leaves as they were before the call, with the changes.
    """

    outputs: list[torch.Tensor]
    changes: list[InputChange]
    mutated: list[int]
    given: list[Any]


@dataclass
class Reference:
    """Outputs to compare with. `key` is the intervention that they serve; those of the call as it is, without
    a key, serve all. `depends` are masks of what the fault decides, where that is known."""

    label: str
    outputs: list[torch.Tensor]
    key: str = ""
    depends: Optional[list[torch.Tensor]] = None


class Trial:
    """The calls of one plan: the loaded package, the inputs, and the outputs to compare with."""

    def __init__(self, request: dict[str, Any], report: Report) -> None:
        self.request = request
        self.report = report
        self.limits = (request.get("rtol"), request.get("atol"))
        self.infinities = bool(request.get("infinities", False))
        self.expected = expectation(str(request["expect"])) if request.get("expect") else None
        self.reference: Optional[Reference] = None
        if request.get("against"):
            self.reference = Reference("before", load_file(str(request["against"])))
        self._loader: Any = None
        self._alive: list[Any] = []  # constants that a user-managed update needs
        self._inputs: dict[str, list[Any]] = {}

    def make(self, planned: dict[str, Any]) -> CallFacts:
        """One call of the plan; what it raises is a fact."""
        label, key = str(planned["label"]), str(planned.get("key", ""))
        phase = _Phase()
        start = time.monotonic()
        try:
            made = self._call(planned, phase)
        except Refused as refused:
            text = "{}: {!r}".format(refused.what, refused.value)
            allowed = "; allowed: {}".format(refused.allowed) if refused.allowed else ""
            return CallFacts(label, key, "refused", error_text=text + allowed, during=phase.name)
        except Exception as error:
            return self._raised(label, key, phase, error, time.monotonic() - start)
        seconds = time.monotonic() - start
        smallest = self._search(planned, made) if planned.get("smallest") else None
        outputs = made.outputs
        beside_it, expected = self._compare(planned, outputs)
        if planned.get("save"):
            torch.save(outputs, str(planned["save"]))
        return CallFacts(
            label,
            key,
            "ok",
            seconds=round(seconds, 4),
            outputs=tuple(facts_of(tensor) for tensor in outputs),
            inputs=tuple(made.changes),
            mutated=tuple(made.mutated),
            beside=beside_it,
            expected=expected,
            smallest=smallest,
        )

    def _call(self, planned: dict[str, Any], phase: "_Phase") -> "Made":
        options = dict(planned.get("options") or {})
        request = {**self.request, **options}
        steps = list(request.get("steps", ()))
        loader = self._loaded(request, steps[:-1], bool(options), phase)
        phase.name = "inputs"
        step = steps[-1] if steps else {}
        given = copy.deepcopy(self._given(request, step, loader))
        flat = apply(list(given), list(planned.get("changes") or ()))
        changes = [input_change(place, *pair) for place, pair in enumerate(zip(given, flat))]
        before = [leaf.clone() for leaf in flat]
        phase.name = "calling"
        outputs = self._run(loader, request, step, flat)
        phase.name = "outputs"
        mutated = [
            place
            for place, (old, now) in enumerate(zip(before, flat))
            if old.shape == now.shape and input_change(place, old, now) is not None
        ]
        return Made(outputs, [change for change in changes if change is not None], mutated, before)

    def _run(
        self, loader: Any, request: dict[str, Any], step: dict[str, Any], flat: list[Any]
    ) -> list[torch.Tensor]:
        """One call on these leaves, as it was captured; copies of its outputs."""
        if step.get("threads"):
            torch.set_num_threads(int(step["threads"]))
        stack = request.get("stack_bytes") or step.get("stack")
        with watching(request, self.report), limited(step.get("headroom")), torch.no_grad():
            for _ in range(2 if request.get("twice") else 1):
                result = on_stack(stack, lambda: loader.run(list(flat)))
            synchronize()
        return [leaf.detach().clone() for leaf in result if isinstance(leaf, torch.Tensor)]

    def _search(self, planned: dict[str, Any], made: "Made") -> Optional[Smallest]:
        """The fewest of the changed elements that are enough; with them, what depends on the fault.

        Only where nothing but values of inputs is changed, and the package keeps no state.
        """
        steps = list(self.request.get("steps", ()))
        history = any(step["do"] == "call" for step in steps[:-1])
        if planned.get("options") or history or self.request.get("fresh") or self._loader is None:
            return None
        step = steps[-1] if steps else {}
        given = self._given(self.request, step, self._loader)
        search = Search(given, made.given, lambda leaves: self._good(step, leaves))
        places = search.run()
        if not places:
            return None
        if self.reference is None:
            self._refer_to(search, places, str(planned.get("key", "")))
        first = [
            NeededElement(number, index, *(text_of(leaves[number][index]) for leaves in (given, made.given)))
            for number, index in elements(places[:FIRST_ELEMENTS], given)
        ]
        changed = sum(change.changed for change in made.changes)
        return Smallest(len(places), changed, search.calls, tuple(first))

    def _good(self, step: dict[str, Any], leaves: list[Any]) -> Optional[list[torch.Tensor]]:
        """The outputs of a call that comes back with nothing at fault in them."""
        try:
            outputs = self._run(self._loader, self.request, step, copy.deepcopy(leaves))
        except Exception:  # whatever it raises, the call fails with these values
            return None
        bad = faults(outputs, self.expected, self.infinities, self.limits)
        return None if any(bool(mask.any()) for mask in bad) else outputs

    def _refer_to(self, search: Search, places: Places, key: str) -> None:
        """Compare with the call in which nothing else is changed, where it comes back in two ways."""
        one, other = search.outputs(places), search.outputs(places, other=True)
        if one is not None and other is not None:
            depends = differing(one, other, self.limits)
            self.reference = Reference("smallest", one, key, depends)

    def _loaded(
        self, request: dict[str, Any], steps: list[dict[str, Any]], other: bool, phase: "_Phase"
    ) -> Any:
        """The package as the plan's calls find it, or loaded for this call alone."""
        history = any(step["do"] == "call" for step in steps)
        if self._loader is not None and not (other or history or request.get("fresh")):
            return self._loader
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
                    loader.run(copy.deepcopy(self._given(request, step, loader)))
        for update in request.get("updates", ()):
            phase.name = "updating_constants"
            self._alive.append(update_package(loader, update, {}, self.report))
        if not other:
            self._loader = loader
        return loader

    def _given(self, request: dict[str, Any], step: dict[str, Any], loader: Any) -> list[Any]:
        """The leaves of the call, read from the file or made from specs the first time."""
        source = str(step.get("file") or request.get("inputs"))
        if source not in self._inputs:
            found = arrange(load_file(source), source) if step.get("file") else read(request)
            again = Inputs(found.args, found.kwargs, found.mapping, found.flat)
            self._inputs[source] = flatten(again, str(loader.get_call_spec()[0]))
        return self._inputs[source]

    def _compare(
        self, planned: dict[str, Any], outputs: list[torch.Tensor]
    ) -> tuple[Optional[Comparison], Optional[Comparison]]:
        """The outputs beside those of the latest call as it is that came back, and beside the expectation."""
        label, key = str(planned["label"]), str(planned.get("key", ""))
        if self.reference is not None and self.reference.key not in ("", key):
            self.reference = None
        expected = None if self.expected is None else with_expectation(self.expected, outputs, self.limits)
        found = self._beside(self.reference, outputs) if self.reference is not None else None
        if not key:
            self.reference = Reference(label, outputs)
        elif planned.get("reference") and self.reference is None:
            self.reference = Reference(label, outputs, key)
        elif planned.get("reference") and self.reference is not None and self.reference.key:
            self.reference.depends = differing(self.reference.outputs, outputs, self.limits)
        return found, expected

    def _beside(self, reference: Reference, outputs: list[torch.Tensor]) -> Comparison:
        old, now = (
            faults(each, self.expected, self.infinities, self.limits) for each in (reference.outputs, outputs)
        )
        if reference.depends is not None:
            old = [bad | more for bad, more in zip(old, reference.depends)]
        has_expectation = self.expected is not None
        return beside(reference.label, reference.outputs, outputs, old, now, self.limits, has_expectation)

    def _raised(self, label: str, key: str, phase: "_Phase", error: Exception, seconds: float) -> CallFacts:
        return CallFacts(
            label,
            key,
            "raised",
            seconds=round(seconds, 4),
            error_type="{}.{}".format(type(error).__module__, type(error).__qualname__),
            error_text=str(error)[:TEXT_LIMIT],
            during=phase.name,
            poisoned=_poisoned(),
        )


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


class _Phase:
    """What is being done, for the report of an error."""

    name = "starting"


def _poisoned() -> bool:
    """Whether every further CUDA call of this process would raise the error of an earlier kernel."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
