"""`bisect`: which decision of the compiler makes a reproduction fail.

The reproduction is compiled again and again in isolated children, side by side, each time with some decisions
switched off. One kind of decision after another is tried as a whole; the kind that makes the failure go away
is then narrowed down to the decisions without which it stays away.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from .. import events
from ..events import DecisionFacts as Decision
from ..protocol import BisectRequest, FailureClass, Workaround
from ..report import Report
from . import decisions
from .minimise import minimise
from .reduce import import_compiler
from .script import SCRIPT
from .trials import Ended, Limits, OutOfTime, in_parallel, is_gone, shown_by

# From the most telling to the least: a decomposition also changes what is fused.
KINDS = ("pass", "lowering", "decomposition")
LISTING = "decisions.jsonl"
MOST_ALONE = 8  # decisions of a kind that are tried one by one

# Runs the reproduction at ORIGINAL with decisions switched off, and as if the workaround stood before it.
RUNNER = """{copied}

if __name__ == "__main__":
    import runpy

    Decisions({off!r}, {listing!r}).install()
    prepare({workaround!r})
    runpy.run_path({original!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Experiment:
    """One compile: `off` as `decisions.Decisions` takes it, `workaround` as `decisions.prepare` does."""

    label: str
    off: Mapping[str, Any] = field(default_factory=dict)
    workaround: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Experiments:
    """Runs experiments. Outcomes: `gone` (no fault is left), `same` failure, `other` (another, or no end)."""

    original: str
    directory: str
    failure: FailureClass
    limits: Limits
    fork: bool
    report: Report
    known: dict[str, str] = field(default_factory=dict)  # by label
    count: int = 0

    def run(self, experiments: Sequence[Experiment], again: bool = False) -> list[str]:
        """The outcome of each experiment. One that was already run is not repeated unless `again`."""
        new = [one for one in experiments if again or one.label not in self.known]
        directories = [self._write(one) for one in new]
        for place, ended in in_parallel(directories, self.limits, self.fork):
            self.known[new[place].label] = self._judge(new[place], ended)
        return [self.known[one.label] for one in experiments]

    def _write(self, experiment: Experiment) -> str:
        directory = os.path.join(self.directory, "experiment-{}".format(self.count))
        self.count += 1
        os.makedirs(directory)
        with open(str(decisions.__file__), encoding="utf-8") as file:
            copied = file.read().partition(decisions.LINE)[2]
        text = RUNNER.format(
            copied="import difflib\nimport json\nfrom typing import Any, Optional\n\n" + copied.strip(),
            off=dict(experiment.off),
            listing=os.path.join(directory, LISTING),
            workaround=dict(experiment.workaround),
            original=self.original,
        )
        with open(os.path.join(directory, SCRIPT), "w", encoding="utf-8") as file:
            file.write(text)
        return directory

    def _judge(self, experiment: Experiment, ended: Ended) -> str:
        same = shown_by(self.failure, ended.status, ended.phase, ended.text)
        gone = is_gone(self.failure, ended.status, ended.text)
        outcome = "gone" if gone else "same" if same else "other"
        tail = "" if outcome != "other" else ended.text[-300:]
        about = ended.seconds, ended.status, ended.phase, ended.directory, tail
        self.report.event(events.Experiment(experiment.label, outcome, *about))
        return outcome


def operate(request: BisectRequest, report: Report) -> None:
    """Events `experiment` for each compile, `decision`, and `bisected` with a `reason` if none was found."""
    import torch

    torch.set_num_threads(1)  # forked children must not inherit a thread pool
    if request["fork"]:
        import_compiler(report)
    until = time.monotonic() + request["budget_s"]
    limits = Limits(until, request["each_s"], request["parallel"])
    failure = FailureClass(**request["failure"])
    experiments = Experiments(
        request["script"], request["directory"], failure, limits, request["fork"], report
    )
    try:
        reason = Search(experiments, request, report).run()
    except OutOfTime:
        reason = "the time is over (budget_s)"
    report.event(events.Bisected(reason, experiments.count))


class Search:
    """The order of the experiments."""

    def __init__(self, experiments: Experiments, request: BisectRequest, report: Report) -> None:
        from torch._inductor import config

        self.experiments = experiments
        self.options = frozenset(config.get_config_copy())  # what this release's compiler has
        self.operators = request["operators"]
        self.report = report
        self.listed: dict[str, dict[str, Decision]] = {kind: {} for kind in KINDS}

    def run(self) -> str:
        """Why nothing was found; empty when a decision was."""
        baseline = Experiment("nothing is switched off")
        if self.experiments.run([baseline]) != ["same"]:
            return "the reproduction did not fail again"
        self._read_listing()
        wave = {kind: self._without(kind, list(keys)) for kind, keys in self.listed.items() if keys}
        outcomes = dict(zip(wave, self.experiments.run(list(wave.values()))))
        for kind in KINDS:
            if outcomes.get(kind) == "other" and self._alone(kind):
                outcomes[kind] = "gone"
        found = [kind for kind in KINDS if outcomes.get(kind) == "gone"]
        for kind in found[:1]:
            self._narrow(kind, also=found[1:])
        if not found:
            return "the failure stays whatever option, pass, decomposition or lowering is switched off"
        if self.experiments.run([baseline], again=True) != ["same"]:
            return "the failure did not come back when everything was switched on again"
        return ""

    def _without(self, kind: str, keys: Sequence[str]) -> Experiment:
        return Experiment("without {}: {}".format(kind, ", ".join(keys)), {kind: list(keys)})

    def _read_listing(self) -> None:
        listing = Path(self.experiments.directory, "experiment-0", LISTING)
        with listing.open(encoding="utf-8") as file:
            for line in file:
                decision = Decision(**json.loads(line))
                # The compiler also traces its own patterns, with operators that the program does not have.
                names = (decision.op, decision.op.rpartition(".")[0])
                if decision.kind == "decomposition" and not set(names) & set(self.operators):
                    continue
                if decision.kind == "lowering" and names[0].startswith("prims."):
                    continue  # these have no eager form to fall back to
                self.listed[decision.kind][decision.key] = decision
        self.report.phase("decisions", str({kind: len(found) for kind, found in self.listed.items()}))

    def _alone(self, kind: str) -> bool:
        """If nothing compiles without a whole kind, switch off single decisions. Whether one helps."""
        keys = list(self.listed[kind])[:MOST_ALONE]
        outcomes = self.experiments.run([self._without(kind, [key]) for key in keys])
        self.listed[kind] = {k: self.listed[kind][k] for k, o in zip(keys, outcomes) if o == "gone"}
        return bool(self.listed[kind])

    def _narrow(self, kind: str, also: list[str]) -> None:
        """Halve the decisions of a kind, one compile each time; a fault that needs several takes more."""

        def first_gone(options: Sequence[Sequence[str]]) -> Optional[int]:
            outcomes = self.experiments.run([self._without(kind, keys) for keys in options])
            return outcomes.index("gone") if "gone" in outcomes else None

        everything = list(self.listed[kind])
        keys = everything
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            keys = half if first_gone([half]) is not None else keys[len(half) :]
        if first_gone([keys]) is None:
            keys = list(minimise(everything, first_gone))
        self._report(kind, keys, also)

    def _report(self, kind: str, keys: list[str], also: list[str]) -> None:
        """Sends the event `decision`, and `workaround` with its outcome."""
        details = [self.listed[kind][key] for key in keys]
        self.report.event(events.Decision(kind, keys, details, also))
        workaround = self._workaround(kind, keys, details)
        if workaround is not None:
            trial = Experiment("with the workaround", {}, workaround)
            outcome = self.experiments.run([trial])[0]
            self.report.event(events.Workaround(outcome, **workaround))

    def _workaround(self, kind: str, keys: list[str], details: list[Decision]) -> Optional[Workaround]:
        """The code that a user can write before the compile; None if torch has no option for it."""
        if kind == "pass":
            if "disabled_passes" not in self.options:
                return None
            names = sorted({key.partition("#")[0].upper() for key in keys})
            return {"configs": {"disabled_passes": ",".join(names)}}
        operators = sorted({detail.op for detail in details})
        return {"fallbacks": operators} if kind == "lowering" else {"decompositions": operators}
