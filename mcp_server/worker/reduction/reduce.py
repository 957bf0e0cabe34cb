"""How an exported program fails, the values of its nodes, and a smaller program that fails alike."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, replace
from typing import Collection, Optional, Sequence

import torch

from .. import events
from ..compare import equal
from ..encode import decode
from ..interpret import bind
from ..loading import load, load_with_inputs
from ..process import synchronize
from ..protocol import FailureClass, ReduceRequest
from ..report import Report
from ..run import call
from .decisions import prepare
from .minimise import minimise
from .program import (
    Cut,
    Cutter,
    Plan,
    Program,
    Recorded,
    Recorder,
    flatten_program,
    picks_from,
    shrinkable,
    size_in_bytes,
    stand_ins,
    users_operators,
)
from .script import Setting, departs, not_finite
from .trials import Limits, OutOfTime, Trials

SMALL = 64 << 10  # bytes of real values that a reproduction may hold without asking whether seeded ones do
TINY = 4 << 10  # bytes of values in which nothing is gained by smaller sizes
SIZES = 6  # distinct sizes that are tried
COMPILER = ("codegen.cpp", "codegen.cpp_wrapper_cpu", "compile_fx", "package")


def import_compiler(report: Report) -> None:
    """Import the parts of Inductor that every forked child would import for itself."""
    report.phase("importing_inductor")
    for name in COMPILER:
        importlib.import_module("torch._inductor." + name)


def operate_attempt(request: ReduceRequest, report: Report) -> None:
    """Events `switched` (the `switches` that this torch has), `compiling`, `loading`, `calling`, `timed`
    (median seconds of `timed_calls` more; `steady`: they gave the same), `judged` (`not_finite`, `nan`,
    `departs`), `recorded`.

    A failure ends the work where it happens; the operation `record` then does the rest in a process that is
    not damaged.
    """
    exported, args, kwargs = load_with_inputs(request, report)
    program = flatten_program(exported, args, kwargs)
    report.phase("importing_inductor")
    import torch._inductor

    configs = decode(request.get("inductor_configs") or {})
    switches = request.get("switches") or {}
    if switches:
        from torch._inductor import config

        there = {name: value for name, value in switches.items() if name in config.get_config_copy()}
        configs.update(there)
        report.event(events.Switched(list(there)))
    prepare(request.get("workaround") or {})
    report.phase("compiling")
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(request["package_path"]), inductor_configs=configs
        )
    loader = load({"package": package}, report)
    inputs = [leaf for leaf in program.inputs if isinstance(leaf, torch.Tensor)]
    outputs = call(lambda: loader.run([leaf.clone() for leaf in inputs]), 0, report)
    seconds, steady = [], True
    for _ in range(request.get("timed_calls", 0)):
        start = time.perf_counter()
        again = loader.run([leaf.clone() for leaf in inputs])
        synchronize()
        seconds.append(time.perf_counter() - start)
        steady = steady and equal(outputs, again)
    if seconds:
        report.event(events.Timed(sorted(seconds)[len(seconds) // 2], steady=steady))
    bad = [not_finite(place, output) for place, output in enumerate(outputs)]
    nan = any(o.is_floating_point() and bool(torch.isnan(o.float()).any()) for o in outputs)
    report.phase("evaluating")
    expected = Recorder(program, request["values"], report).record()[-len(outputs) :]
    wanted = [value for value in expected if isinstance(value, torch.Tensor)]
    away = [departs(place, *pair) for place, pair in enumerate(zip(outputs, wanted))]
    report.event(events.Judged(any(bad), nan, any(away)))
    report.phase("recorded")


def operate_record(request: ReduceRequest, report: Report) -> None:
    """Run `exported` on `inputs`; the values go into the directory `values`. Event `recorded` at the end."""
    program = flatten_program(*load_with_inputs(request, report))
    Recorder(program, request["values"], report).record()
    report.phase("recorded")


def operate_reduce(request: ReduceRequest, report: Report) -> None:
    """Reduce `exported` on `inputs` to what still fails like `failure`.

    `attempt` or `record` filled `values` before. The last event `kept` names the best reproduction. Event
    `reduced` at the end, or after `budget_s` (`complete` says which).
    """
    # Forked children must not inherit a thread pool: they would never stop waiting for its threads.
    torch.set_num_threads(1)
    program = flatten_program(*load_with_inputs(request, report))
    # A script that was run for its program may have left threads behind, which a fork would not have.
    tensors = [value for value in program.values.values() if isinstance(value, torch.Tensor)]
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    forks = on_cpu and not request.get("extra_imports") and request.get("made_by") is None
    if forks:
        import_compiler(report)
    recorded = Recorded(request["values"], frozenset(request.get("bad", ())))
    symbols = bind(program.module, list(program.values.values()))

    def make(plan: Plan) -> Cut:
        found = Cutter(program, plan, recorded).cut()
        return replace(found, stand_ins=stand_ins(found, symbols)) if plan.stand_ins else found

    configs, environment = request.get("inductor_configs") or {}, request.get("environment") or {}
    imports = request.get("extra_imports") or request.get("repro_imports") or []
    setting = Setting(request["title"], configs, environment, tuple(imports))
    limits = Limits(time.monotonic() + request["budget_s"], request["each_s"], request["parallel"])
    failure = FailureClass(**request["failure"])
    trials = Trials(program, make, failure, setting, limits, forks, request["directory"], report)
    complete = True
    try:
        Reduction(program, trials, request.get("guess")).run()
    except OutOfTime:
        complete = False
    report.event(events.Reduced(complete, len(program.units), len(trials.tried)))


@dataclass
class Reduction:
    """First fewer nodes, then smaller sizes, then values drawn from a seed."""

    program: Program
    trials: Trials
    guess: Optional[str]

    def run(self) -> None:
        """Raises `OutOfTime`; the event `kept` names what was reached by then."""
        start = self._start()
        if start is None:
            return

        def first_failing(options: Sequence[Sequence[str]]) -> Optional[int]:
            return self.trials.first_failing([replace(start, keep=tuple(keep)) for keep in options])

        plan = replace(start, keep=minimise(start.keep, first_failing))
        failure = self.trials.failure
        if (failure.kind, failure.phase) == ("error", "compiling"):
            plan = self._without_users(plan)
        if not plan.seeded:
            self._seed(self._smaller(plan))

    def _start(self) -> Optional[Plan]:
        """A plan that fails; parts around the suspected node come first: they compile much sooner."""
        units = tuple(self.program.units)
        parts = [Plan(keep) for keep in self._around_guess(units) if len(keep) < len(units)]
        whole = [Plan(units), Plan(units, dynamic=True)] if self.program.ranges else [Plan(units)]
        for plans in (parts[:1], parts[1:], whole):
            found = self.trials.first_failing(plans)
            if found is not None:
                return plans[found]
        return None

    def _around_guess(self, units: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Three candidates: the node, the node with its readers, and the node with all that depends on it."""
        if self.guess not in units:
            return []
        readers = self._readers([self.guess])
        later = set(readers)
        while more := self._readers(later) - later:
            later |= more
        parts = ({self.guess}, {self.guess} | readers, {self.guess} | later)
        return list(dict.fromkeys(tuple(unit for unit in units if unit in part) for part in parts))

    def _readers(self, names: Collection[str]) -> set[str]:
        """The nodes that read the results of these; several results are read through the nodes that pick."""
        users = {user for node in self.program.nodes if node.name in names for user in node.users}
        picked = {user for user in users if picks_from(user) is not None}
        return {user.name for user in users | {reader for node in picked for reader in node.users}}

    def _without_users(self, plan: Plan) -> Plan:
        """Try without the user's values and operator code, or without one of these; no compile needs them."""
        found = self.trials.make(plan)
        options = [replace(plan, seeded=frozenset(found.tensors))]
        if users_operators(found):
            both = replace(options[0], stand_ins=True)
            options = [both, *options, replace(plan, stand_ins=True)]
        number = self.trials.first_failing(options)
        return plan if number is None else options[number]

    def _smaller(self, plan: Plan) -> Plan:
        """Keep a part of each size: halves of halves, as long as they still fail."""
        found = self.trials.make(plan)
        if size_in_bytes(found.tensors) <= TINY:
            return plan
        for size in shrinkable(self.program, found)[:SIZES]:
            start, end = 0, size
            while end - start > 1:
                middle = start + (end - start) // 2
                windows = [(start, middle), (middle, end)]
                others = tuple(pair for pair in plan.windows if pair[0] != size)
                plans = [replace(plan, windows=(*others, (size, window))) for window in windows]
                number = self.trials.first_failing(plans)
                if number is None:
                    break
                plan, (start, end) = plans[number], windows[number]
        return plan

    def _seed(self, plan: Plan) -> Plan:
        """Values from a seed instead of real ones: all at once, else the largest, one after another."""
        tensors = self.trials.make(plan).tensors
        if size_in_bytes(tensors) <= SMALL:
            return plan
        whole = replace(plan, seeded=frozenset(tensors))
        if self.trials.first_failing([whole]) is not None:
            return whole
        for name in sorted(tensors, key=lambda name: -tensors[name].nbytes):
            if size_in_bytes({n: t for n, t in tensors.items() if n not in plan.seeded}) <= SMALL:
                break
            wanted = replace(plan, seeded=plan.seeded | {name})
            if self.trials.first_failing([wanted]) is not None:
                plan = wanted
        return plan
