"""Runs an exported program, writes scripts for parts of it, and runs them with compiler decisions off.

A decision is one application of a graph pass, one decomposition, or one lowering of an operator to generated
code. A first run lists the decisions that the compiler makes. The hooks are those of torch's bisector, which
only steers `torch.compile`: `GraphTransformObserver` and `CompilerBisector.disable_subsystem`
(torch/fx/passes/graph_transform_observer.py and torch/_inductor/compiler_bisector.py, 2.8-2.15).
"""

from __future__ import annotations

import difflib
import os
import runpy
import sys
import time
from typing import Any, Mapping, Sequence

import torch

from .. import events
from ..compare import equal
from ..events import Decision
from ..interpret import stack_of
from ..loading import compiled, load, load_with_inputs
from ..process import synchronize
from ..protocol import AttemptRequest, CutRequest, Plan, TrialRequest, Workaround
from ..report import Report
from ..run import call
from .program import Cutter, Recorded, Recorder, Uncuttable, flatten_program
from .script import SCRIPT, Setting, departs, not_finite, write

SUBSYSTEMS = {"decomposition": "decomposition", "lowerings": "lowering"}
MOST_LINES = 40  # reported lines of a graph that a pass changed


class Decisions:
    """Reports each decision of the compiler as an event, and skips those in `off` (keys by kind).

    A key is the name of a pass or node and, if it occurs again, a number: `remove_noop_ops#1`.
    """

    def __init__(self, off: Mapping[str, Sequence[str]], report: Report) -> None:
        self.off = off
        self.report = report
        self.seen: Any = {}
        self.rewrites: Any = []

    def install(self) -> None:
        from torch._inductor import pattern_matcher
        from torch._inductor.compiler_bisector import CompilerBisector
        from torch.fx.passes.graph_transform_observer import GraphTransformObserver

        graph_pass = GraphTransformObserver.apply_graph_pass
        module_pass = GraphTransformObserver.apply_gm_pass
        decisions: Any = self

        def asked(_backend: str, subsystem: str, debug_info: Any = None) -> bool:
            kind = SUBSYSTEMS.get(subsystem)
            return kind is not None and bool(decisions.skips(kind, debug_info()))

        # Pattern passes are only numbered, so remember the names of the handlers that run.
        for entry in (pattern_matcher.GraphPatternEntry, pattern_matcher.LoweringPatternEntry):
            entry.apply = self.named(entry.apply)
        GraphTransformObserver.apply_graph_pass = lambda self, run: decisions.apply(graph_pass, self, run)
        GraphTransformObserver.apply_gm_pass = lambda self, run: decisions.apply(module_pass, self, run)
        CompilerBisector.disable_subsystem = staticmethod(asked)

    def apply(self, apply: Any, observer: Any, run: Any) -> Any:
        """Apply a pass unless it is off. Passes without a subsystem are not optional."""
        if observer.subsystem is None:
            return apply(observer, run)
        key = self.key_of("pass", observer.passname)
        if self.is_off("pass", key):
            return None
        self.rewrites = []
        before = str(observer.gm.graph).splitlines()
        result = apply(observer, run)
        after = str(observer.gm.graph).splitlines()
        if before != after:
            change = difference(before, after)
            self.report.event(Decision("pass", key, rewrites=self.rewrites[:10], change=change))
        return result

    def named(self, apply: Any) -> Any:
        def wrapped(entry: Any, *args: Any, **kwargs: Any) -> Any:
            handler = entry.handler
            self.rewrites.append(getattr(handler, "__name__", type(handler).__name__))
            return apply(entry, *args, **kwargs)

        return wrapped

    def skips(self, kind: str, name: str) -> bool:
        """Whether this lowering or decomposition is off. If it is on, report it with its operator."""
        key = self.key_of(kind, name)
        off = self.is_off(kind, key)
        if not off:
            op = lowered_operator() if kind == "lowering" else operator_name(name)
            self.report.event(Decision(kind, key, op))
        elif kind == "decomposition":
            forget(operator_name(name))
        return off

    def key_of(self, kind: str, name: str) -> str:
        number = self.seen[kind, name] = self.seen.get((kind, name), -1) + 1
        return name + ("#{}".format(number) if number else "")

    def is_off(self, kind: str, key: str) -> bool:
        return key in self.off.get(kind, ())


def lowered_operator() -> str:
    """The operator that is being lowered, such as `aten.sin.default`."""
    from torch._inductor.virtualized import V

    node = getattr(V, "current_node", None) or getattr(V.graph, "current_node", None)
    return str(getattr(node, "target", ""))


def operator_name(text: str) -> str:
    """`aten.addmm.default` for the text `<OpOverload(op='aten.addmm', overload='default')>`."""
    parts = text.split("'")
    return "{}.{}".format(parts[1], parts[3]) if len(parts) > 3 else text


def difference(before: Any, after: Any) -> Any:
    """The lines that a pass removed from the graph and added to it, up to a limit."""
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    changed = [line[:200] for line in lines if line[:2] not in ("--", "++", "@@")]
    return changed[:MOST_LINES]


def prepare(workaround: Workaround) -> None:
    """Make the settings of a workaround, as a user would before the compile."""
    from torch._inductor import decomposition, lowering

    for name in workaround.get("decompositions", ()):
        forget(name)
    for name in workaround.get("fallbacks", ()):
        decomposition.decompositions.pop(operator(torch.ops, name), None)
        lowering.make_fallback(operator(torch.ops, name), warn=False, override_decomp=True)
    compile_package = torch._inductor.aoti_compile_and_package
    added = workaround.get("configs") or {}

    def with_configs(*args: Any, inductor_configs: Any = None, **kwargs: Any) -> Any:
        return compile_package(*args, inductor_configs={**(inductor_configs or {}), **added}, **kwargs)

    torch._inductor.aoti_compile_and_package = with_configs


def forget(name: str) -> None:
    """Remove a decomposition from the compiler's tables. Its operator then stays in the graph."""
    from torch._inductor import decomposition

    for table in (decomposition.decompositions, decomposition.select_decomp_table()):
        table.pop(operator(torch.ops, name), None)


def operator(ops: Any, name: str) -> Any:
    """Look up a name such as `aten.sin.default` under `torch.ops`."""
    for part in name.split("."):
        ops = getattr(ops, part)
    return ops


MOST_NODES = 50  # nodes of a reproduction that are reported
SINGLE_PASSES = "disabled_passes"  # the option that switches single passes off (2.9 and later)


def operate_attempt(request: AttemptRequest, report: Report) -> None:
    """Compile, load and call the program, repeat the call, and compare the outputs with eager mode.

    Events: `switched`, `compiling`, `loading`, `calling`, `timed`, `judged`, `recorded`. A failure ends the
    operation; `record` then records the values in a new process.
    """
    exported, args, kwargs = load_with_inputs(request, report)
    program = flatten_program(exported, args, kwargs)
    from torch._inductor import config

    switches = request.get("switches") or {}
    there = {name: value for name, value in switches.items() if name in config.get_config_copy()}
    if switches:
        report.event(events.Switched(list(there)))
    prepare(request.get("workaround") or {})
    package, _ = compiled(exported, request, report, there)
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
    """Run the program in eager mode, and save the values of its nodes to the directory `values`."""
    program = flatten_program(*load_with_inputs(request, report))
    Recorder(program, request["values"], report).record()
    report.phase("recorded")


def operate_cut(request: CutRequest, report: Report) -> None:
    """Write a script for each of the `plans`. Report `cut`, or `uncuttable` if a plan gives no program.

    `attempt` or `record` has filled `values` before.
    """
    program = flatten_program(*load_with_inputs(request, report))
    recorded = Recorded(request["values"], frozenset(request["bad"]))
    configs = request.get("inductor_configs") or {}
    imports = request.get("extra_imports") or request["repro_imports"]
    setting = Setting(request["title"], configs, request["environment"], tuple(imports))
    for number, asked in enumerate(request["plans"]):
        plan = Plan(**asked)
        try:
            found = Cutter(program, plan, recorded).cut()
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
                tensors={name: value.numel() * value.element_size() for name, value in found.tensors.items()},
            )
        )


def operate_trial(request: TrialRequest, report: Report) -> None:
    """Run a script with the decisions in `off` switched off and a `workaround`.

    Events: `switched` (whether this torch can disable single passes), `decision`, `script_ended`.
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
