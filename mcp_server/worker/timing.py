"""Times a call unchanged and with one thing changed, a load, and a build of an exported program.

Calls are timed in pairs, in turns, within one process. Other processes and clocks differ by more than most
changes save (seen: medians of 1.2 and 1.6 ms for the same program).

Torch times the parts of its compiler (torch/_dynamo/utils.py `compilation_time_metrics`, 2.8 to 2.15). Those
timers nest, so PARTS names timers that don't contain one another. The test of vector instructions has none:
it is timed around `VecISA.check_build` (torch/_inductor/cpu_vec_isa.py).
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import statistics
import time
from functools import partial
from typing import Any, Callable, Iterator

import torch

from . import events
from .compare import compare_all
from .inputs import flatten, read
from .interpret import FRAME
from .loading import compiled, load, load_exported
from .process import synchronize
from .protocol import CompileRequest, TimingRequest
from .report import Report
from .tensors import only_tensors

LEAST, MOST = 5, 60  # pairs
WARM = 3  # calls before the first pair
BLOCK_S = 0.02  # shorter calls are timed several at a time
UNCHANGED = "the same call again"  # used if no change applies, so that there is a pair to time


@contextlib.contextmanager
def setting(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    """Change a setting of torch for the body."""
    change(value)
    try:
        yield
    finally:
        change(before)


def operate(request: TimingRequest, report: Report) -> None:
    """Event `launch_time` for each symbol of the forwarders, `pairs_timed` for each change that applies."""
    loader = load(request, report)
    flat = flatten(read(request["inputs"]), loader.get_call_spec()[0])

    def as_it_is() -> Any:
        # A package may update its inputs, and takes them over: each call gets its own list.
        with torch.no_grad():
            return loader.run(list(flat))

    report.phase("calling", "0")
    expected = [each.clone() for each in only_tensors(as_it_is())]
    for _ in range(WARM):
        as_it_is()
    synchronize()
    changes: list[tuple[str, Any, Callable[[], Any]]] = [
        (name, contextlib.nullcontext, rebuilt(request, package, flat, report))
        for name, package in request.get("others", {}).items()
    ]  # first, since something in the package speaks for them
    on_cuda = any(each.is_cuda for each in expected)
    if not on_cuda:
        if (threads := torch.get_num_threads()) > 1:
            changes.append(("one thread", partial(setting, torch.set_num_threads, 1, threads), as_it_is))
        flushed = partial(setting, torch.set_flush_denormal, True, False)
        changes.append(("flushed denormals", flushed, as_it_is))
    if on_cuda:
        # The host only puts its launches in a queue, so forwarders would time the host.
        changes = changes or [(UNCHANGED, contextlib.nullcontext, as_it_is)]
    else:
        launches(request, as_it_is, report)
    for name, around, changed in changes:
        report.phase("timing", name)
        budget = request.get("seconds", 5.0) / len(changes)
        report.event(pairs(name, around, as_it_is, changed, expected, budget))


def rebuilt(request: TimingRequest, package: str, flat: list[Any], report: Report) -> Callable[[], Any]:
    """Return a call of another build of the model."""
    changed = request.copy()
    changed["package"] = package
    loader = load(changed, report)

    def call() -> Any:
        with torch.no_grad():
            return loader.run(list(flat))

    return call


def pairs(
    name: str,
    around: Callable[[], Any],
    plain: Callable[[], Any],
    changed: Callable[[], Any],
    expected: list[torch.Tensor],
    budget_s: float,
) -> events.PairsTimed:
    """Return the medians of both, and the quartiles of the ratios of pairs."""
    with around():
        same = compare_all(expected, only_tensors(changed())).equal
        changed()
    often = max(int(BLOCK_S / max(timed(plain, 1), 1e-6)), 1)
    firsts: list[float] = []
    seconds: list[float] = []
    others = busy_of_others()
    began = time.monotonic()
    while len(firsts) < LEAST or (len(firsts) < MOST and time.monotonic() - began < budget_s):
        firsts.append(timed(plain, often))
        with around():
            seconds.append(timed(changed, often))
    ratios = sorted(first / second for first, second in zip(firsts, seconds))
    low, _, high = statistics.quantiles(ratios, n=4)
    middle = statistics.median(ratios)
    medians = statistics.median(firsts), statistics.median(seconds)
    busy = (busy_of_others() - others) / (time.monotonic() - began) / (os.cpu_count() or 1)
    return events.PairsTimed(name, *medians, middle, low, high, len(ratios), same, max(busy, 0.0))


def busy_of_others() -> float:
    """Return processor seconds of all other processes since the machine started; 0 if unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = (int(each) for each in file.readline().split()[1:4])
    except (OSError, ValueError):
        return 0.0
    own = os.times()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def timed(call: Callable[[], Any], often: int) -> float:
    """Return the seconds of one call."""
    begin = time.perf_counter()
    for _ in range(often):
        call()
    synchronize()
    return (time.perf_counter() - begin) / often


def launches(request: TimingRequest, call: Callable[[], Any], report: Report) -> None:
    """Time each kernel and operator of the package, if forwarders are loaded before it."""
    path = request.get("forwarders")
    if not path:
        return
    library = ctypes.CDLL(path)
    count = ctypes.c_int.in_dll(library, "aoti_debug_count").value
    times = (ctypes.c_longlong * count).in_dll(library, "aoti_debug_ns")
    calls = (ctypes.c_longlong * count).in_dll(library, "aoti_debug_calls")
    names = (ctypes.c_char_p * count).in_dll(library, "aoti_debug_names")
    is_on = ctypes.c_int.in_dll(library, "aoti_debug_on")
    rounds = max(min(int(0.5 / max(timed(call, 1), 1e-6)), 200), 3)
    is_on.value = 1
    begin = time.perf_counter()
    for _ in range(rounds):
        call()
    whole = (time.perf_counter() - begin) / rounds
    is_on.value = 0
    for number in range(count):
        if calls[number]:
            name = (names[number] or b"").decode()
            seconds = times[number] / rounds / 1e9
            report.event(events.LaunchTime(name, seconds, calls[number] / rounds, whole))


def operate_load(request: TimingRequest, report: Report) -> None:
    """Event `loaded_in`: how long the usual loading function takes, which looks at the machine as well."""
    report.phase("loading", request["package"])
    from torch._inductor.package import load_package

    begin = time.perf_counter()
    load_package(request["package"], request.get("model_name", "model"))
    report.event(events.LoadedIn(time.perf_counter() - begin))


PARTS = {
    "tracing": ("create_aot_dispatcher_function",),
    "passes over the graph": ("_recursive_joint_graph_passes", "_recursive_post_grad_passes"),
    "lowering": ("GraphLowering.run", "Scheduler.__init__"),
    "generating code": ("Scheduler.codegen",),
    "the C++ compiler": ("AotCodeCompiler.compile",),
}
TUNING = ("_template_autotuning", "_template_precompiling")
MOST_LINES = 3


def operate_build(request: CompileRequest, report: Report) -> None:
    """Build into `package_path`; events `lines_traced` and, at the end, `build_timed`."""
    program = load_exported(request, report)
    report.event(events.LinesTraced(_lines_traced(program)))
    from torch._dynamo.utils import compilation_time_metrics
    from torch._inductor import cpu_vec_isa

    tests: list[float] = []
    _time_calls(cpu_vec_isa.VecISA, "check_build", tests)
    compilation_time_metrics.clear()
    _, seconds = compiled(program, request, report)
    times = {name: sum(each) for name, each in compilation_time_metrics.items()}
    tuning = sum(each for name, each in times.items() if name.endswith(TUNING))
    parts = {part: sum(times.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    # Both happen inside of these parts.
    parts["generating code"] = max(parts["generating code"] - sum(tests), 0.0)
    parts["lowering"] = max(parts["lowering"] - tuning, 0.0)
    report.event(events.BuildTimed(seconds, sum(tests), tuning, parts))


def _lines_traced(program: Any) -> list[events.TracedLine]:
    """Return the lines with most nodes. A line's most common operator shows how often it was traced."""
    nodes: dict[Any, Any] = collections.defaultdict(collections.Counter)
    whole = 0
    for node in program.graph.nodes:
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        if node.op == "call_function" and frames:
            file, line, _function, code = frames[-1]
            nodes[(file, int(line), code.strip())][str(node.target)] += 1
            whole += 1
    most = sorted(nodes.items(), key=lambda each: -sum(each[1].values()))[:MOST_LINES]
    return [
        events.TracedLine(file, line, code, max(targets.values()), sum(targets.values()) / whole)
        for (file, line, code), targets in most
    ]


def _time_calls(owner: Any, name: str, seconds: list[float]) -> None:
    """Add the seconds of each call of a method to a list. A torch without the method stays unchanged."""
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
