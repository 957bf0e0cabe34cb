"""`intervene`: makes a failing call several times in one process, unchanged and with changes.

The package and the inputs are read once. If a call ends the process, the server continues the plan in another
one. If a change cures the call, delta debugging finds the elements that must change.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Iterator, Sequence, cast

import torch

from .compare import compare_calls, differing, faults, faults_of_part, input_change, text_of, wide
from .events import FIRST_ELEMENTS, CallFacts, Comparison, InputChange, NeededElement, Smallest
from .inputs import apply, flatten, load_file
from .launch_nodes import Replacement
from .loading import given_constants, load_captured, update_package
from .process import on_stack, synchronize
from .protocol import InterveneRequest, PlannedCall, Step
from .reduction import minimise_while
from .report import Refused, Report, facts
from .run import as_captured, expectation, inputs_of, run_check, watching
from .tensors import describe, first_non_finite, only_tensors, unequal, unravel


def operate(request: InterveneRequest, report: Report) -> None:
    """Make the calls of the plan, in order; event `intervening` before each and `intervened` after it.

    If the unchanged call fails, calls with a key are compared with the first reference call of that key.
    Outputs that differ between two reference calls depend on the fault. After a CUDA error that stays, event
    `poisoned` ends the plan.
    """
    trial = Trial(request, report)
    for planned in request["plan"]:
        report.phase("intervening", planned["label"])
        found = trial.make(planned)
        report.event(found)
        if planned.get("smallest") and found.ended == "ok":
            found = trial.refined(planned, found)
            report.event(found)
        if found.poisoned:
            report.phase("poisoned", found.label)
            return


@dataclass
class Made:
    """A call that returned. `leaves` are its changed inputs, as they were before the call."""

    outputs: list[torch.Tensor]
    changes: tuple[InputChange, ...]
    mutated: tuple[int, ...]
    leaves: list[Any]


@dataclass
class Caller:
    """Makes the calls of one plan, keeping the package and the inputs between calls."""

    request: InterveneRequest
    report: Report
    loader: Any = None
    phase: str = "starting"  # for the report of an error
    _alive: list[Any] = field(default_factory=list)  # constants that a user-managed update needs
    _inputs: dict[str, list[Any]] = field(default_factory=dict)
    _replacement: Replacement | None = None

    def make(self, planned: PlannedCall) -> Made:
        """Make a call of the plan with its changes and options. If the last step is an update, only apply it.

        Raise what the call raises.
        """
        self.phase = "starting"
        options = planned.get("options") or {}
        request = cast(InterveneRequest, {**self.request, **options})
        steps = request.get("steps", [])
        step = steps[-1] if steps else Step()
        updates = step.get("do") == "constants"
        loader = self._loaded(request, other=bool(options) or updates)
        if updates:
            self.phase = "updating_constants"
            self._alive.append(update_package(loader, step, self.report, request))
            return Made([], (), (), [])
        self.phase = "inputs"
        original = copy.deepcopy(self.leaves_of(request, step, loader))
        flat = apply(original, planned.get("changes") or ())
        changes = (input_change(place, *pair) for place, pair in enumerate(zip(original, flat)))
        made = Made([], tuple(change for change in changes if change), (), [leaf.clone() for leaf in flat])
        self.phase = "calling"
        made.outputs = self.run(loader, request, step, flat)
        self.phase = "outputs"
        made.mutated = tuple(
            place
            for place, (old, now) in enumerate(zip(made.leaves, flat))
            if old.shape == now.shape and input_change(place, old, now) is not None
        )
        return made

    def run(self, loader: Any, request: InterveneRequest, step: Step, flat: list[Any]) -> list[torch.Tensor]:
        """Make one call on these leaves, as captured. Return copies of its outputs."""
        stack, limit = request.get("stack_bytes") or step.get("stack"), request.get("call_limit_s")
        asked = request.get("eager")
        eager: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if asked is not None:  # some launches run in eager mode
            if self._replacement is None or self._replacement.file != asked["plan"]:
                self._replacement = Replacement(asked["plan"], self.report)
            eager = self._replacement.during(asked["launches"], flat)
        call, edit = loader.run, request.get("edit")
        if edit is not None:
            from .decompiled import Program, launches_by  # imported late: few calls need a program

            if edit["launches"]:
                eager = launches_by(edit, flat, self.report)
            else:
                call = Program(edit).call
        watch = watching(request.get("operators"), self.report)
        with as_captured(step), watch, torch.no_grad(), ended_after(limit), eager:
            result = on_stack(stack, partial(call, list(flat)))
            synchronize()
        return [leaf.detach().clone() for leaf in only_tensors(result)]

    def _loaded(self, request: InterveneRequest, other: bool) -> Any:
        """Return the package after its earlier steps. Load it again for `other` options or earlier calls."""
        before = request.get("steps", [])[:-1]
        history = any(step["do"] == "call" for step in before)
        if self.loader is not None and not (other or history or request.get("fresh")):
            return self.loader
        self.phase = "loading"
        loader = load_captured(request, self.report, weights=not request.get("steps"))
        for step in before:
            if step["do"] == "constants":
                self.phase = "updating_constants"
                self._alive.append(update_package(loader, step, self.report, request))
            else:
                self.phase = "earlier call"
                with torch.no_grad():
                    loader.run(copy.deepcopy(self.leaves_of(request, step, loader)))
        for step in request.get("updates", ()):
            self.phase = "updating_constants"
            self._alive.append(update_package(loader, step, self.report))
        if not other:
            self.loader = loader
        return loader

    def leaves_of(self, request: InterveneRequest, step: Step, loader: Any) -> list[Any]:
        """Return the inputs of the call. Only the first time, read them from the file or make them."""
        source = step.get("file") or str(request.get("inputs"))
        if source not in self._inputs:
            self._inputs[source] = flatten(inputs_of(step, request), loader.get_call_spec()[0])
        return self._inputs[source]


@contextlib.contextmanager
def ended_after(seconds: float | None) -> Iterator[None]:
    """End the process with status 1 if the body takes longer, even in native code."""
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@dataclass
class Reference:
    """Outputs to compare with. `key`: their intervention. `depends`: masks of elements the fault changes."""

    label: str
    outputs: list[torch.Tensor]
    key: str = ""
    depends: list[torch.Tensor] | None = None


class Trial:
    """The calls of one plan: the loaded package, the inputs, and the outputs to compare with."""

    def __init__(self, request: InterveneRequest, report: Report) -> None:
        self.request = request
        self.limits = (request.get("rtol"), request.get("atol"))
        self.expected = expectation(request.get("expect"))
        if self.expected is not None and self.limits == (None, None):
            self.limits = self.expected.limits
        self.reference: Reference | None = None
        if request.get("against"):
            self.reference = Reference("before", load_file(request["against"]))
        self.caller = Caller(request, report)
        self._made: Made | None = None

    def make(self, planned: PlannedCall) -> CallFacts:
        """Make one call of the plan. Return its facts, even if it raises."""
        label, key = planned["label"], planned.get("key", "")
        start = time.monotonic()
        try:
            planned = self._chosen(planned)
            made = self._made = self.caller.make(planned)
        except Refused as refused:
            text = "{}: {!r}".format(refused.what, refused.value)
            allowed = "; allowed: {}".format(refused.allowed) if refused.allowed else ""
            return CallFacts(label, key, "refused", error_text=text + allowed, during=self.caller.phase)
        except Exception as error:
            seconds, phase, known = round(time.monotonic() - start, 4), self.caller.phase, facts(error)
            kind, text = known["type"], known["text"]
            return CallFacts(label, key, "raised", seconds, kind, text, phase, _poisoned())
        seconds = round(time.monotonic() - start, 4)
        compared, expected = self._compare(planned, made.outputs), None
        if self.expected is not None:
            wanted = self.expected.among(made.outputs)
            expected = compare_calls("expectation", wanted, made.outputs, self.limits)
        if planned.get("save"):
            torch.save(made.outputs, planned["save"])
        return CallFacts(
            label,
            key,
            "ok",
            seconds=seconds,
            outputs=tuple(map(describe, made.outputs)),
            inputs=made.changes,
            mutated=made.mutated,
            compared=compared,
            expected=expected,
            check=run_check(self.request["check"], made.outputs) if self.request.get("check") else None,
            constants=tuple((planned.get("options") or {}).get("exchanged", ())),
        )

    def _chosen(self, planned: PlannedCall) -> PlannedCall:
        """The call with the first alternative that makes it right, or with the last that was tried."""
        deadline = time.monotonic() + MOST_SECONDS
        for options in (planned.get("options") or {}).get("alternatives", ()):
            planned = {**planned, "options": options}
            if self._right(planned) or time.monotonic() > deadline:
                break
        return planned

    def _right(self, planned: PlannedCall) -> bool:
        try:
            outputs = self.caller.make(planned).outputs
        except Exception:  # the call fails with these options
            return False
        return not any(bool(mask.any()) for mask in self._faults(outputs))

    def refined(self, planned: PlannedCall, found: CallFacts) -> CallFacts:
        """The facts of the last call, with the fewest changed elements or constants that cure it.

        Report `found` before this, since a call of the search may end the process. If the unchanged call
        failed, compare the outputs with those of a call in which only these elements change.
        """
        options = planned.get("options") or {}
        if options.get("updates"):
            return self._given(planned, found)
        if options.get("omitted"):
            return self._omitted(planned, found)
        made, search = self._made, self._search(planned)
        if made is None or search is None or not (places := search.run()):
            return found
        if self.reference is None:
            # Set these elements to one value, then to another: outputs that differ depend on the fault.
            one, two = search.outputs(places), search.outputs(places, other=True)
            if one is not None and two is not None:
                self.reference = Reference("smallest", one, found.key, differing(one, two, self.limits))
        if self.reference is not None:
            found = replace(found, compared=self._compare_with(self.reference, made.outputs))
        first = []
        for number, place in places[:FIRST_ELEMENTS]:
            old, new = (leaves[number].reshape(-1)[place] for leaves in (search.original, search.changed))
            index = tuple(unravel(place, tuple(search.original[number].shape)))
            first.append(NeededElement(index, text_of(old), text_of(new), number))
        changed = sum(change.changed for change in found.inputs)
        return replace(found, smallest=Smallest(len(places), changed, search.calls, tuple(first)))

    def _given(self, planned: PlannedCall, found: CallFacts) -> CallFacts:
        """The facts with the fewest constants that cure the call if an update gives them."""
        update = cast(InterveneRequest, planned.get("options") or {})["updates"][0]
        known = set(self.caller.loader.get_constant_fqns()) if self.caller.loader is not None else set()
        given = update.get("names") or given_constants(update)
        names = [name for name in given if name in known]
        enough = self._fewest(planned, names, lambda part: {"updates": [{**update, "names": list(part)}]})
        return replace(found, constants=enough, unknown=tuple(sorted(set(given) - known)) if known else ())

    def _omitted(self, planned: PlannedCall, found: CallFacts) -> CallFacts:
        """The facts with the fewest constants that cure the call if an update omits them."""
        omitted = (planned.get("options") or {})["omitted"]
        names = self._fewest(planned, omitted, lambda part: {"omitted": list(part)})
        given: dict[str, torch.Tensor] = {}
        for step in self.request.get("steps", []) if names else ():
            if step["do"] == "constants":
                given.update(load_file(step["file"]))
        bad = [first_non_finite(given[name]) if name in given else None for name in names]
        places = tuple(tuple(element.index) if element is not None else () for element in bad)
        return replace(found, constants=names, bad_places=places)

    def _fewest(
        self, planned: PlannedCall, names: Sequence[str], options: Callable[[Sequence[str]], Any]
    ) -> tuple[str, ...]:
        """The fewest of `names` with which the call is right. Empty if not even all suffice."""
        deadline = time.monotonic() + MOST_SECONDS

        def cures(part: Sequence[str]) -> bool:
            with_part = {**planned, "options": {**(planned.get("options") or {}), **options(part)}}
            return self._right(cast(PlannedCall, with_part))

        if not names or not cures(names):
            return ()
        return minimise_while(names, cures, lambda: time.monotonic() > deadline)[0]

    def _search(self, planned: PlannedCall) -> Search | None:
        """A search for the fewest changed elements.

        None if the call has options, a check or earlier calls, or if the unchanged call failed on a GPU.
        """
        caller, made, steps = self.caller, self._made, self.request.get("steps", [])
        stateful = self.request.get("fresh") or any(step["do"] == "call" for step in steps[:-1])
        if made is None or self.request.get("check") or planned.get("options") or stateful or not made.leaves:
            return None
        if self.reference is None and any(leaf.is_cuda for leaf in made.leaves):
            return None
        step = steps[-1] if steps else Step()

        def good(leaves: list[Any]) -> list[torch.Tensor] | None:
            """The outputs of the call. None if it fails or an output has a faulty element."""
            try:
                outputs = caller.run(caller.loader, self.request, step, copy.deepcopy(leaves))
            except Exception:  # the call fails with these values
                return None
            return None if any(bool(mask.any()) for mask in self._faults(outputs)) else outputs

        return Search(caller.leaves_of(self.request, step, caller.loader), made.leaves, good)

    def _faults(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        expected = self.expected.among(outputs) if self.expected is not None else None
        return faults(outputs, expected, self.request.get("infinities", False), self.limits)

    def _compare(self, planned: PlannedCall, outputs: list[torch.Tensor]) -> Comparison | None:
        """Compare with the reference, then update the reference."""
        label, key = planned["label"], planned.get("key", "")
        if self.reference is not None and self.reference.key not in ("", key):
            self.reference = None
        reference = self.reference
        found = self._compare_with(reference, outputs) if reference is not None else None
        if not key:
            self.reference = Reference(label, outputs)
        elif planned.get("reference") and reference is None:
            self.reference = Reference(label, outputs, key)
        elif planned.get("reference") and reference is not None and reference.key:
            reference.depends = differing(reference.outputs, outputs, self.limits)
        return found

    def _compare_with(self, reference: Reference, outputs: list[torch.Tensor]) -> Comparison:
        before, after = self._faults(reference.outputs), self._faults(outputs)
        if reference.depends is not None:
            before = [bad | more for bad, more in zip(before, reference.depends)]
        masks, expects = (before, after), self.expected is not None
        found = compare_calls(reference.label, reference.outputs, outputs, self.limits, masks, expects)
        if not found.layout:
            return found
        return replace(found, part=faults_of_part(reference.outputs, before, outputs, self.limits))


def _poisoned() -> bool:
    """Whether every later CUDA call of this process would raise the error of an earlier kernel."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


MOST_CALLS = 200
MOST_SECONDS = 10.0
MOST_ELEMENTS = 100_000

Places = list[tuple[int, int]]  # input, flat index of the element in row-major order


@dataclass
class Search:
    """Finds the fewest changed elements that cure `call`, which returns None if it fails."""

    original: list[Any]
    changed: list[Any]
    call: Callable[[list[Any]], list[torch.Tensor] | None]
    calls: int = 0

    def run(self) -> Places:
        """The fewest places found to cure the call. Empty if all together do not."""
        deadline = time.monotonic() + MOST_SECONDS
        places = self._differing()
        if not places or self.outputs(places) is None:
            return []

        def cures(part: Sequence[tuple[int, int]]) -> bool:
            return self.outputs(part) is not None

        def spent() -> bool:
            return self.calls >= MOST_CALLS or time.monotonic() > deadline

        return list(minimise_while(places, cures, spent)[0])

    def _differing(self) -> Places:
        """The changed elements. Empty if a layout changed or there are over `MOST_ELEMENTS`."""
        found: Places = []
        for number, (old, now) in enumerate(zip(self.original, self.changed)):
            layouts = ((each.shape, each.dtype, each.device, each.stride()) for each in (old, now))
            if len(set(layouts)) > 1:
                return []
            places = unequal(wide(old), wide(now)).reshape(-1).nonzero().reshape(-1)[: MOST_ELEMENTS + 1]
            found += [(number, int(place)) for place in places]
        return found if len(found) <= MOST_ELEMENTS else []

    def outputs(self, places: Sequence[tuple[int, int]], other: bool = False) -> list[torch.Tensor] | None:
        """Make the call with only these elements changed. With `other`, set them to another valid value."""
        self.calls += 1
        leaves = list(self.original)
        for number in {number for number, _ in places}:
            flat, after = leaves[number].reshape(-1).clone(), self.changed[number].reshape(-1)
            at = torch.tensor([place for of, place in places if of == number], device=flat.device)
            values = after[at]
            if other:  # take a value of the unchanged elements, different from the one set by the change
                kept = flat[flat == after].unique()
                choices = [(kept[kept != value], value) for value in values]
                values = torch.stack([kept[0] if kept.numel() else value for kept, value in choices])
            flat[at] = values
            leaves[number] = flat.view(leaves[number].shape)
        return self.call(leaves)
