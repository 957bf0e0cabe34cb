"""`intervene`: makes one failing call several times in one process, unchanged and with changes.

The package and the inputs are read once. If a call ends the process, the server continues the plan in another
process.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

import torch

from .imports import import_all
from .inputs import load_file
from .outputs_check import run_check
from .report import TEXT_LIMIT, Refused, Report
from .trial_call import Caller, Made, Phase
from .trial_compare import (
    Places,
    Search,
    compare_calls,
    compare_with_expectation,
    differing,
    elements,
    expectation,
    facts_of,
    faults,
    text_of,
)
from .trial_facts import FIRST_ELEMENTS, CallFacts, Comparison, NeededElement, Smallest


def operate(request: dict[str, Any], report: Report) -> None:
    """Make the calls of `plan`, in order; event `intervening` before each and `intervened` after it.

    Request: what `run` takes (`package`, `inputs`), or what `replay` takes (`steps`, the last of which is the
    call); and
    - `plan`: a list of {"label", "key", "changes", "options", "save", "reference"}. A call without a key is
      the original one; `changes` alter its inputs (`inputs.CHANGES`); `options` replace parts of the request,
      and the package is then loaded again for this call; `save` names a file for its outputs.
      `reference` marks a call that changes only what is at fault. If the original call fails, other calls
      of that key are compared with the first reference; where two references differ, the output depends on
      the fault. `smallest` asks for the fewest changed elements that cure the call (`trial_compare.Search`);
    - `against`: a file that `save` wrote for the original call in another process;
    - `call_limit_s`: seconds after which a call ends the process, with the stacks of its threads;
    - `expect`: a file with the expected outputs; `rtol` and `atol` for every comparison;
    - `check`: words of a command that ends with status 0 for good outputs (see `outputs_check`);
    - `infinities`: whether infinities in outputs are faults;
    - `fresh`: load the package again for every call, for packages that keep state from call to call.
    `intervened` has the fields of `CallFacts`. After a lasting CUDA error, event `poisoned` ends the plan.
    """
    import_all(list(request.get("extra_imports", ())), report)
    trial = Trial(request, report)
    for planned in request["plan"]:
        report.event("intervening", label=planned["label"], key=planned.get("key", ""))
        facts = trial.make(planned)
        report.event("intervened", **asdict(facts))
        if planned.get("smallest") and facts.ended == "ok":
            facts = trial.refined(planned, facts)
            report.event("intervened", **asdict(facts))
        if facts.poisoned:
            report.event("poisoned", label=facts.label)
            return


@dataclass
class Reference:
    """Outputs to compare with, for the intervention `key`; those of the original call (no key) serve all.
    `depends` are masks of the elements that depend on the fault, if known."""

    label: str
    outputs: list[torch.Tensor]
    key: str = ""
    depends: Optional[list[torch.Tensor]] = None


class Trial:
    """The calls of one plan: the loaded package, the inputs, and the outputs to compare with."""

    def __init__(self, request: dict[str, Any], report: Report) -> None:
        self.limits = (request.get("rtol"), request.get("atol"))
        self.infinities = bool(request.get("infinities", False))
        self.expected = expectation(str(request["expect"])) if request.get("expect") else None
        self.check = [str(word) for word in request.get("check") or ()]
        self.reference: Optional[Reference] = None
        if request.get("against"):
            self.reference = Reference("before", load_file(str(request["against"])))
        self.caller = Caller(request, report)
        self._made: Optional[Made] = None

    def make(self, planned: dict[str, Any]) -> CallFacts:
        """Make one call of the plan. An exception becomes part of the facts."""
        label, key = str(planned["label"]), str(planned.get("key", ""))
        phase = Phase()
        start = time.monotonic()
        try:
            made = self.caller.make(planned, phase)
        except Refused as refused:
            text = "{}: {!r}".format(refused.what, refused.value)
            allowed = "; allowed: {}".format(refused.allowed) if refused.allowed else ""
            return CallFacts(label, key, "refused", error_text=text + allowed, during=phase.name)
        except Exception as error:
            return self._raised(label, key, phase, error, time.monotonic() - start)
        seconds = time.monotonic() - start
        self._made, outputs = made, made.outputs
        compared, expected = self._compare(planned, outputs)
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
            beside=compared,
            expected=expected,
            check=run_check(self.check, outputs) if self.check else None,
        )

    def refined(self, planned: dict[str, Any], facts: CallFacts) -> CallFacts:
        """The facts of the last call, with the fewest changed elements that cure it.

        Call this after reporting the facts, since a call of the search may end the process. If the original
        call failed, outputs are compared with those of the call with only these elements changed.
        """
        search = self._search(planned)
        places = search.run() if search is not None else []
        if search is None or self._made is None or not places:
            return facts
        if self.reference is None:
            self.reference = self._fewest(search, places, facts.key)
        if self.reference is not None:
            facts = replace(facts, beside=self._compare_with_reference(self.reference, self._made.outputs))
        first = [
            NeededElement(
                number, index, *(text_of(of[number][index]) for of in (search.original, search.changed))
            )
            for number, index in elements(places[:FIRST_ELEMENTS], search.original)
        ]
        changed = sum(change.changed for change in facts.inputs)
        return replace(facts, smallest=Smallest(len(places), changed, search.calls, tuple(first)))

    def _search(self, planned: dict[str, Any]) -> Optional[Search]:
        """None where more than values of inputs is changed, where the package keeps state from call to call,
        where a failing call would leave a CUDA context of no use, and where a command judges the outputs.
        """
        made = self._made
        if made is None or self.check or planned.get("options") or not self.caller.keeps_nothing:
            return None
        if self.reference is None and any(leaf.is_cuda for leaf in made.given):
            return None
        given = self.caller.given(self.caller.request, self.caller.step, self.caller.loader)
        return Search(given, made.given, self._good)

    def _good(self, leaves: list[Any]) -> Optional[list[torch.Tensor]]:
        """The outputs of a call that returns without faulty elements, else None."""
        try:
            outputs = self.caller.again(leaves)
        except Exception:  # any exception: the call fails with these values
            return None
        bad = faults(outputs, self.expected, self.infinities, self.limits)
        return None if any(bool(mask.any()) for mask in bad) else outputs

    def _fewest(self, search: Search, places: Places, key: str) -> Optional[Reference]:
        """A reference from two calls with only these places changed, to two values; None if one fails."""
        one, other = search.outputs(places), search.outputs(places, other=True)
        if one is None or other is None:
            return None
        return Reference("smallest", one, key, differing(one, other, self.limits))

    def _compare(
        self, planned: dict[str, Any], outputs: list[torch.Tensor]
    ) -> tuple[Optional[Comparison], Optional[Comparison]]:
        """Compare with the reference and with the expectation, then update the reference."""
        label, key = str(planned["label"]), str(planned.get("key", ""))
        if self.reference is not None and self.reference.key not in ("", key):
            self.reference = None
        expected = (
            None if self.expected is None else compare_with_expectation(self.expected, outputs, self.limits)
        )
        found = self._compare_with_reference(self.reference, outputs) if self.reference is not None else None
        if not key:
            self.reference = Reference(label, outputs)
        elif planned.get("reference") and self.reference is None:
            self.reference = Reference(label, outputs, key)
        elif planned.get("reference") and self.reference is not None and self.reference.key:
            self.reference.depends = differing(self.reference.outputs, outputs, self.limits)
        return found, expected

    def _compare_with_reference(self, reference: Reference, outputs: list[torch.Tensor]) -> Comparison:
        old, now = (
            faults(each, self.expected, self.infinities, self.limits) for each in (reference.outputs, outputs)
        )
        if reference.depends is not None:
            old = [bad | more for bad, more in zip(old, reference.depends)]
        has_expectation = self.expected is not None
        return compare_calls(
            reference.label, reference.outputs, outputs, old, now, self.limits, has_expectation
        )

    def _raised(self, label: str, key: str, phase: Phase, error: Exception, seconds: float) -> CallFacts:
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
