"""How an exported program fails, scripts of parts of it, and how one of these ends with something changed."""

from __future__ import annotations

import os
import runpy
import sys
import time
from dataclasses import replace

from .. import events
from ..compare import equal
from ..encode import decode
from ..interpret import bind, stack_of
from ..loading import load, load_with_inputs
from ..process import synchronize
from ..protocol import AttemptRequest, CutRequest, Plan, TrialRequest
from ..report import Report
from ..run import call
from .decisions import Decisions, prepare
from .program import (
    Cutter,
    Recorded,
    Recorder,
    Uncuttable,
    flatten_program,
    shrinkable,
    size_in_bytes,
    stand_ins,
    users_operators,
)
from .script import SCRIPT, Setting, departs, not_finite, write

MOST_NODES = 50  # of a reproduction that are reported
SINGLE_PASSES = "disabled_passes"  # the option that switches single passes off (2.9 and later)


def operate_attempt(request: AttemptRequest, report: Report) -> None:
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


def operate_record(request: AttemptRequest, report: Report) -> None:
    """Run `exported` on `inputs`; the values go into the directory `values`. Event `recorded` at the end."""
    program = flatten_program(*load_with_inputs(request, report))
    Recorder(program, request["values"], report).record()
    report.phase("recorded")


def operate_cut(request: CutRequest, report: Report) -> None:
    """Write a script for each of the `plans`. Event `cut`, or `uncuttable` for one that gives no program.

    `attempt` or `record` filled `values` before.
    """
    program = flatten_program(*load_with_inputs(request, report))
    recorded = Recorded(request["values"], frozenset(request["bad"]))
    symbols = bind(program.module, list(program.values.values()))
    configs = request.get("inductor_configs") or {}
    imports = request.get("extra_imports") or request["repro_imports"]
    setting = Setting(request["title"], configs, request["environment"], tuple(imports))
    for number, asked in enumerate(request["plans"]):
        plan = Plan(**asked)
        try:
            found = Cutter(program, plan, recorded).cut()
            if plan.stand_ins:
                found = replace(found, stand_ins=stand_ins(found, symbols))
        except Uncuttable as reason:
            report.event(events.Uncuttable(number, str(reason)))
            continue
        directory = os.path.join(request["directory"], str(number))
        os.makedirs(directory)
        write(found, frozenset(plan.seeded), setting, directory)
        nodes = [node for node in program.nodes if node.name in plan.keep]
        report.event(
            events.Cut(
                number=number,
                script=os.path.join(directory, SCRIPT),
                operators=len(nodes),
                nodes=[events.OfNode(n.name, str(n.target), stack_of(n)) for n in nodes[:MOST_NODES]],
                tensors={name: size_in_bytes({name: value}) for name, value in found.tensors.items()},
                sizes=shrinkable(program, found),
                users=bool(users_operators(found)),
            )
        )


def operate_trial(request: TrialRequest, report: Report) -> None:
    """Run a script with decisions of the compiler `off` and a `workaround`. Events `switched` (whether this
    torch switches single passes off), `decision` for each that is taken, `script_ended`.
    """
    from torch._inductor import config

    report.event(events.Switched([name for name in (SINGLE_PASSES,) if name in config.get_config_copy()]))
    if "off" in request:
        Decisions(request["off"], report).install()
    prepare(request.get("workaround") or {})
    sys.argv[:] = [request["script"]]
    status = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    report.event(events.ScriptEnded(status))
