"""`reduce`: shrinks an exported program while it fails in the same way."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Collection, Optional, Sequence

import torch

from ..imports import import_all
from ..interpret import bind, stack_of
from ..protocol import ReduceRequest
from ..report import Report
from .cut import Cut, Plan, Recorded, cut, shrinkable, size_in_bytes, stand_ins, users_operators
from .record import Program, load_program, maker
from .script import Setting
from .trials import FailureClass, Limits, OutOfTime, Trials, minimise, windows

SMALL = 64 << 10  # bytes of real values that a reproduction may carry without asking whether made ones do
TINY = 4 << 10  # bytes of values in which nothing is gained by smaller sizes
MOST_TOLD = 50  # nodes of a reproduction
SIZES = 6  # distinct sizes that are tried


def operate(request: ReduceRequest, report: Report) -> None:
    """Reduce `exported` on `inputs` to what still fails like `failure`.

    `values` is the directory that `attempt` or `record` filled, `bad` and `guess` are what it saw: nodes
    whose value is not finite, and the node to suspect. Reproductions lie in `directory`; the last event
    `held` names the best one. Event `reduced` at the end, or after `budget_s` (`complete` tells which).
    """
    # Forked children must not inherit a thread pool: they would wait for its threads for ever.
    torch.set_num_threads(1)
    imports = list(request.get("extra_imports", ()))
    import_all(imports, report)
    program = load_program(request, report)
    # A script that was run for its program may have left threads behind, which a fork would not have.
    alone = not imports and request.get("made_by") is None
    forks = alone and not any(_on_device(value) for value in program.values.values())
    if forks:
        _import_compiler(report)
    reduction = Reduction(program, _trials(program, request, report, forks), request.get("guess"))
    complete = True
    try:
        reduction.run()
    except OutOfTime:
        complete = False
    trials = reduction.trials
    report.event("reduced", complete=complete, units=len(program.units), tried=len(trials.tried))


def _trials(program: Program, request: ReduceRequest, report: Report, forks: bool) -> Trials:
    recorded = Recorded(str(request["values"]), frozenset(request.get("bad", ())))

    symbols = bind(program.module, list(program.values.values()))

    def make(plan: Plan) -> Cut:
        found = cut(program, plan, recorded)
        return replace(found, stand_ins=stand_ins(found, symbols)) if plan.stand_ins else found

    def describe(plan: Plan) -> dict[str, Any]:
        nodes = [node for node in program.nodes if node.name in plan.keep]
        told = [{"node": n.name, "op": str(n.target), "stack": stack_of(n)} for n in nodes[:MOST_TOLD]]
        return {"operators": len(nodes), "nodes": told, "dynamic": plan.dynamic}

    setting = Setting(
        str(request["title"]),
        dict(request.get("inductor_configs") or {}),
        dict(request.get("environment") or {}),
        tuple(request.get("extra_imports") or request.get("repro_imports") or ()),
    )
    until = time.monotonic() + float(request["budget_s"])
    limits = Limits(until, float(request["each_s"]), int(request["side_by_side"]))
    failure = FailureClass.of(request["failure"])
    return Trials(make, describe, failure, setting, limits, forks, str(request["directory"]), report)


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _import_compiler(report: Report) -> None:
    """What every child would import for itself."""
    report.event("importing_inductor")
    import torch._inductor.codegen.cpp
    import torch._inductor.codegen.cpp_wrapper_cpu
    import torch._inductor.compile_fx
    import torch._inductor.package  # noqa: F401


class Reduction:
    """First fewer nodes, then smaller sizes, then values made from a seed.

    What fails before it is called needs neither the user's values nor what the user's operators do.
    """

    def __init__(self, program: Program, trials: Trials, guess: Optional[str]) -> None:
        self.program = program
        self.trials = trials
        self.guess = guess

    def run(self) -> None:
        """Raises `OutOfTime`; what was reached by then is in `trials.held`."""
        plan = self._start()
        if plan is None:
            return
        plan = self._fewer_nodes(plan)
        if self.trials.failure.in_compile:
            plan = self._alone(plan)
        if not plan.made:
            self._made(self._smaller(plan))

    def _alone(self, plan: Plan) -> Plan:
        """Nothing of the user's: no values, and no code of operators; or one of the two."""
        found = self.trials.make(plan)
        without = [replace(plan, made=frozenset(found.tensors))]
        if users_operators(found):
            both = replace(without[0], stand_ins=True)
            without = [both, *without, replace(plan, stand_ins=True)]
        number = self.trials.first_failing(without)
        return plan if number is None else without[number]

    def _start(self) -> Optional[Plan]:
        """A plan that fails: around the suspected node, else all; with symbolic sizes only if need be.

        In rounds, since a part is compiled much sooner than the whole.
        """
        units = tuple(self.program.units)
        parts = [Plan(keep) for keep in self._around_guess(units) if len(keep) < len(units)]
        whole = [Plan(units), Plan(units, dynamic=True)] if self.program.ranges else [Plan(units)]
        for plans in (parts[:1], parts[1:], whole):
            found = self.trials.first_failing(plans)
            if found is not None:
                return plans[found]
        return None

    def _around_guess(self, units: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The suspected node alone, with those that read what it gives, and with all that comes of it."""
        if self.guess not in units:
            return []
        readers = self._readers([self.guess])
        later = set(readers)
        while more := self._readers(later) - later:
            later |= more
        parts = ({self.guess}, {self.guess} | readers, {self.guess} | later)
        return list(dict.fromkeys(tuple(unit for unit in units if unit in part) for part in parts))

    def _readers(self, names: Collection[str]) -> set[str]:
        """The nodes that read what these give, and for one with several results what is picked of them."""
        sources = [node for node in self.program.nodes if node.name in names]
        users = {user for node in sources for user in node.users}
        picked = {user for user in users if maker(user) is not None}
        return {user.name for user in users | {reader for node in picked for reader in node.users}}

    def _fewer_nodes(self, plan: Plan) -> Plan:
        def first_failing(options: Sequence[Sequence[str]]) -> Optional[int]:
            return self.trials.first_failing([replace(plan, keep=tuple(keep)) for keep in options])

        return replace(plan, keep=minimise(plan.keep, first_failing))

    def _smaller(self, plan: Plan) -> Plan:
        """Keep a part of each size: halves of halves, as long as they still fail."""
        if size_in_bytes(self.trials.make(plan).tensors) <= TINY:
            return plan
        for size in shrinkable(self.program, self.trials.make(plan))[:SIZES]:
            start, end = 0, size
            while end - start > 1:
                options = [(start + a, start + b) for a, b in windows(end - start)]
                plans = [_with_window(plan, size, window) for window in options]
                found = self.trials.first_failing(plans)
                if found is None:
                    break
                plan, (start, end) = plans[found], options[found]
        return plan

    def _made(self, plan: Plan) -> Plan:
        """Values from a seed instead of real ones: all at once, else the largest, one after another."""
        tensors = self.trials.make(plan).tensors
        if size_in_bytes(tensors) <= SMALL:
            return plan
        whole = replace(plan, made=frozenset(tensors))
        if self.trials.first_failing([whole]) is not None:
            return whole
        for name in sorted(tensors, key=lambda name: -tensors[name].nbytes):
            left = {n: t for n, t in tensors.items() if n not in plan.made}
            if size_in_bytes(left) <= SMALL:
                break
            wanted = replace(plan, made=plan.made | {name})
            if self.trials.first_failing([wanted]) is not None:
                plan = wanted
        return plan


def _with_window(plan: Plan, size: int, window: tuple[int, int]) -> Plan:
    others = tuple(pair for pair in plan.windows if pair[0] != size)
    return replace(plan, windows=(*others, (size, window)))
