"""Times a build of an exported program: which part of the compiler takes how long, and for which line.

Torch times its own parts (torch/_dynamo/utils.py `compilation_time_metrics`, 2.8 to 2.15). Those timers nest,
so PARTS names timers that don't contain one another. The test of vector instructions has none: it is timed
around `VecISA.check_build` (torch/_inductor/cpu_vec_isa.py).
"""

from __future__ import annotations

import collections
import time
from typing import Any, Dict, List

import torch

from .encode import decode
from .events import BuildTimed, LinesTraced, TracedLine
from .interpret import FRAME
from .loading import load_exported
from .protocol import CompileRequest
from .report import Report

PARTS = {
    "tracing": ("create_aot_dispatcher_function",),
    "passes over the graph": ("_recursive_joint_graph_passes", "_recursive_post_grad_passes"),
    "lowering": ("GraphLowering.run", "Scheduler.__init__"),
    "generating code": ("Scheduler.codegen",),
    "the C++ compiler": ("AotCodeCompiler.compile",),
}
TUNING = ("_template_autotuning", "_template_precompiling")
MOST_LINES = 3


def operate(request: CompileRequest, report: Report) -> None:
    """Build into `package_path`; events `lines_traced` and, at the end, `build_timed`."""
    program = load_exported(request, report)
    report.event(LinesTraced(_lines(program)))
    configs = decode(request.get("inductor_configs") or {})
    report.phase("importing_inductor")
    from torch._dynamo.utils import compilation_time_metrics
    from torch._inductor import aoti_compile_and_package, cpu_vec_isa

    tests: List[float] = []
    _time_calls(cpu_vec_isa.VecISA, "check_build", tests)
    report.phase("compiling", str(configs))
    compilation_time_metrics.clear()
    begin = time.monotonic()
    with torch.no_grad():
        aoti_compile_and_package(program, package_path=request["package_path"], inductor_configs=configs)
    seconds = time.monotonic() - begin
    times = {name: sum(each) for name, each in compilation_time_metrics.items()}
    tuning = sum(each for name, each in times.items() if name.endswith(TUNING))
    parts = {part: sum(times.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    # Both happen inside of these parts.
    parts["generating code"] = max(parts["generating code"] - sum(tests), 0.0)
    parts["lowering"] = max(parts["lowering"] - tuning, 0.0)
    report.event(BuildTimed(seconds, sum(tests), tuning, parts))


def _lines(program: Any) -> List[TracedLine]:
    """The lines with most nodes. The trace came by as often as the commonest operator of the line."""
    nodes: Dict[Any, Any] = collections.defaultdict(collections.Counter)
    whole = 0
    for node in program.graph.nodes:
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        if node.op == "call_function" and frames:
            file, line, _function, code = frames[-1]
            nodes[(file, int(line), code.strip())][str(node.target)] += 1
            whole += 1
    most = sorted(nodes.items(), key=lambda each: -sum(each[1].values()))[:MOST_LINES]
    return [
        TracedLine(file, line, code, max(targets.values()), sum(targets.values()) / whole)
        for (file, line, code), targets in most
    ]


def _time_calls(owner: Any, name: str, seconds: List[float]) -> None:
    """Add the seconds of each call of a method to a list. A torch without it is left as it is."""
    original = getattr(owner, name, None)
    if original is None:
        return

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.monotonic() - begin)

    setattr(owner, name, timed)
