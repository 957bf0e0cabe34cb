"""Times a load, a build of an exported program, and a call with and without one change.

`operate_changed` compiles a program after one change of its graph that saves work and keeps its results.

Calls are timed in alternating pairs in one process, because two processes differ by more than most changes
save (seen: medians of 1.2 and 1.6 ms for the same program).

Torch times the parts of its compiler (torch/_dynamo/utils.py `compilation_time_metrics`, 2.8 to 2.15). The
timers nest, so PARTS has timers of which none contains another. The test of vector instructions has no timer:
`VecISA.check_build` (torch/_inductor/cpu_vec_isa.py) is timed here.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import ctypes
import linecache
import math
import operator
import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Callable, Iterator

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.node import map_aggregate, map_arg

from . import events
from .compare import compare_all
from .encode import TORCH
from .inputs import flatten, read
from .interpret import FRAME
from .loading import compiled, load, load_exported
from .process import synchronize
from .protocol import ChangedRequest, CompileRequest, TimingRequest
from .report import Report
from .tensors import only_tensors

LEAST, MOST = 5, 60  # pairs that are timed
WARM = 3  # calls before the first pair
BLOCK_S = 0.02  # shorter calls are timed several at a time
MOST_BUSY = 0.15  # share of all processors; if other processes use more, the clock is unreliable
UNCHANGED = "the same call again"  # timed if no change applies
Change = tuple[str, Any, Callable[[], Any]]  # its name, the setting around the call, and the call


@contextlib.contextmanager
def setting(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    """Change a setting of torch during the body."""
    change(value)
    try:
        yield
    finally:
        change(before)


def operate(request: TimingRequest, report: Report) -> None:
    """Report `launch_time` for each kernel if there are `forwarders`, otherwise `pairs_timed` per change.

    Forwarders work only for the first package that calls them, since other builds use the same kernel names.
    """
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    loader = load(request, report)
    flat = flatten(read(request["inputs"]), loader.get_call_spec()[0])
    as_it_is = partial(outputs_of, loader, flat)
    report.phase("calling", "0")
    expected = [each.clone() for each in only_tensors(as_it_is())]
    for _ in range(WARM):
        as_it_is()
    synchronize()
    if request.get("forwarders"):
        launches(request, as_it_is, report)
        return
    on_cuda = any(each.is_cuda for each in expected)
    changes: list[Change] = []
    for name, package in request.get("others", {}).items():  # first, as the package has signs that they help
        other: TimingRequest = {**request, "package": package}
        again = partial(outputs_of, load(other, report), flat)
        changes.append((name, contextlib.nullcontext, again))
    changes.extend(_settings(as_it_is) if not on_cuda else ())
    changes = changes or [(UNCHANGED, contextlib.nullcontext, as_it_is)]
    # On a busy machine, use processor time, and one thread, since threads that wait for each other add to it.
    busy = not on_cuda and others_share() > MOST_BUSY
    threads = torch.get_num_threads()
    alone = partial(setting, torch.set_num_threads, 1, threads) if busy else contextlib.nullcontext
    for name, around, changed in changes:
        report.phase("timing", name)
        budget = request.get("seconds", 5.0) / len(changes)
        with contextlib.nullcontext() if name.endswith(("thread", "processor")) else alone():
            report.event(pairs(name, around, as_it_is, changed, expected, budget, by_cpu=busy))


def _settings(call: Callable[[], Any]) -> Iterator[Change]:
    """Yield settings of torch that may make a call on the CPU faster."""
    threads, processors = torch.get_num_threads(), os.cpu_count() or 1
    other = 1 if threads > 1 else processors
    if other != threads:
        name = "one thread" if other == 1 else "a thread for each processor"
        yield name, partial(setting, torch.set_num_threads, other, threads), call
    yield "flushed denormals", partial(setting, torch.set_flush_denormal, True, False), call


def outputs_of(loader: Any, flat: list[Any]) -> Any:
    with torch.no_grad():
        return loader.run(list(flat))  # the package takes over the list


def pairs(
    name: str,
    around: Callable[[], Any],
    plain: Callable[[], Any],
    changed: Callable[[], Any],
    expected: list[torch.Tensor],
    budget_s: float,
    *,
    by_cpu: bool,
) -> events.PairsTimed:
    """Time alternating calls, by the clock or in processor time, until the budget is spent."""
    with around():
        same = compare_all(*_in_one_precision(expected, only_tensors(changed()))).equal
        changed()
    often = max(int(BLOCK_S / max(timed(plain, 1).wall, 1e-6)), 1)
    firsts: list[Took] = []
    seconds: list[Took] = []
    others = busy_of_others()
    began = time.monotonic()
    while len(firsts) < LEAST or (len(firsts) < MOST and time.monotonic() - began < budget_s):
        firsts.append(timed(plain, often))
        with around():
            seconds.append(timed(changed, often))
    busy = max((busy_of_others() - others) / (time.monotonic() - began) / (os.cpu_count() or 1), 0.0)
    before, after = ([each.cpu if by_cpu else each.wall for each in both] for both in (firsts, seconds))
    ratios = sorted(first / max(second, 1e-9) for first, second in zip(before, after))
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = statistics.median(before), statistics.median(after)
    return events.PairsTimed(name, *medians, middle, low, high, len(ratios), same, busy, by_cpu)


def _in_one_precision(
    expected: list[torch.Tensor], got: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs, with expected doubles rounded where the changed program gives floats."""
    single = [each.dtype is torch.float32 for each in got]
    wide = [each.dtype is torch.float64 for each in expected]
    rounded = [each.float() if w and s else each for each, w, s in zip(expected, wide, single)]
    return rounded if len(expected) == len(got) else expected, got


def others_share(seconds: float = 0.5) -> float:
    """The share of all processors that other processes use now."""
    before = busy_of_others()
    time.sleep(seconds)
    return (busy_of_others() - before) / seconds / (os.cpu_count() or 1)


def busy_of_others() -> float:
    """Processor seconds of all other processes since the machine started. 0 if unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = (int(each) for each in file.readline().split()[1:4])
    except (OSError, ValueError):
        return 0.0
    own = os.times()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - own.user - own.system


@dataclass(frozen=True)
class Took:
    """The seconds of a call: by the clock, and in processor time of all threads."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any], often: int) -> Took:
    """The mean seconds of one call."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(often):
        call()
    synchronize()
    return Took((time.perf_counter() - begin) / often, (time.process_time() - cpu) / often)


def launches(request: TimingRequest, call: Callable[[], Any], report: Report) -> None:
    """Time each kernel and operator of the package. The forwarders were loaded before the package."""
    library = ctypes.CDLL(request["forwarders"])
    count = ctypes.c_int.in_dll(library, "aoti_debug_count").value
    times = (ctypes.c_longlong * count).in_dll(library, "aoti_debug_ns")
    calls = (ctypes.c_longlong * count).in_dll(library, "aoti_debug_calls")
    names = (ctypes.c_char_p * count).in_dll(library, "aoti_debug_names")
    is_on = ctypes.c_int.in_dll(library, "aoti_debug_on")
    rounds = max(min(int(0.5 / max(timed(call, 1).wall, 1e-6)), 200), 3)
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
    """Report `loaded_in`: how long `load_package` takes, which also probes the machine.

    With `weights`, the package has none, and the weights are mapped from this file.
    """
    report.phase("loading", request["package"])
    from torch._inductor.package import load_package

    begin, cpu = time.perf_counter(), sum(os.times()[:4])
    model: Any = load_package(request["package"], request.get("model_name", "model"))
    if request.get("weights"):
        weights = torch.load(request["weights"], mmap=True, weights_only=True)
        known = set(model.loader.get_constant_fqns())
        given = {name: value for name, value in weights.items() if name in known}
        model.loader.load_constants(given, False, True, True)
    report.event(events.LoadedIn(time.perf_counter() - begin, sum(os.times()[:4]) - cpu))


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
    """Build `package_path`. Report `lines_traced` before and `build_timed` after it."""
    program = load_exported(request, report)
    report.event(events.LinesTraced(lines_traced(program)))
    from torch._dynamo.utils import compilation_time_metrics
    from torch._inductor import cpu_vec_isa

    tests: list[float] = []
    _time_calls(cpu_vec_isa.VecISA, "check_build", tests)
    compilation_time_metrics.clear()
    cpu = sum(os.times()[:4])
    _, seconds = compiled(program, request, report)
    cpu = sum(os.times()[:4]) - cpu
    times = {name: sum(each) for name, each in compilation_time_metrics.items()}
    tuning = sum(each for name, each in times.items() if name.endswith(TUNING))
    parts = {part: sum(times.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    # These parts include the tests and the tuning, which are reported separately.
    parts["generating code"] = max(parts["generating code"] - sum(tests), 0.0)
    parts["lowering"] = max(parts["lowering"] - tuning, 0.0)
    report.event(events.BuildTimed(seconds, cpu, sum(tests), tuning, parts))


def lines_traced(program: Any) -> list[events.TracedLine]:
    """The lines and loops with the most nodes, and how often each was traced.

    A line may use an operator several times, so the median of the counts of its operators decides. A loop
    counts only if its passes use the same modules, because a loop over layers runs different code.
    """
    nodes: dict[Any, Any] = collections.defaultdict(collections.Counter)
    modules: dict[Any, set[str]] = collections.defaultdict(set)
    whole, weights = 0, {each.arg.name for each in program.graph_signature.input_specs if each.target}
    for node in program.graph.nodes:
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        if node.op == "call_function" and frames:
            own = _own(frames)  # the user's line that calls a layer, not the line in the layer
            file, line, _function, code = own[-1]
            loops = ((loop_around(frame[0], int(frame[1])), frame[1]) for frame in reversed(own))
            loop, at = next(filter(operator.itemgetter(0), loops), (None, ""))
            # Compare weights and line, as a pass may use an operator several times.
            called = f"{node.target} {[each.name for each in node.all_input_nodes if each.name in weights]}"
            if loop is not None:
                nodes[loop][f"{at} {called}"] += 1
                path = list((node.meta.get("nn_module_stack") or {"": ("",)}).values())[-1][0]
                modules[loop].add(path.partition("@")[0])
            if loop is None or loop[:2] != (file, int(line)):
                nodes[(file, int(line), code.strip())][called] += 1
            whole += 1
    found = []
    for (file, line, code), targets in nodes.items():
        times = statistics.median_low(targets.values())
        # One pass may use most operators several times: their counts then have a common divisor.
        passes = math.gcd(*(count for count in targets.values() if 4 * count >= times))
        if MOST_MODULES * len(modules[file, line, code]) <= times:
            times = passes if 4 * passes >= times else times
            found.append(events.TracedLine(file, line, code, times, sum(targets.values()) / whole))
    return sorted(found, key=lambda each: -each.share)[:MOST_LINES]


def _own(frames: list[Any]) -> list[Any]:
    """Drop frames in torch, unless there are no others."""
    return [frame for frame in frames if not frame[0].startswith(TORCH)] or frames


MOST_MODULES = 8  # a loop with fewer passes for each module that they use does not count


@lru_cache(maxsize=None)
def _loops_in(file: str) -> list[Any]:
    """The loops of a file, the innermost first."""
    with contextlib.suppress(SyntaxError):
        nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
        return [each for each in nodes if isinstance(each, (ast.For, ast.While))][::-1]
    return []


def loop_around(file: str, line: int) -> tuple[str, int, str] | None:
    """File, line and text of the innermost loop around a line, or None."""
    found = (each for each in _loops_in(file) if each.lineno < line <= (each.end_lineno or 0))
    return next(((file, each.lineno, linecache.getline(file, each.lineno).strip()) for each in found), None)


def _time_calls(owner: Any, name: str, seconds: list[float]) -> None:
    """Append the seconds of each call of a method to a list, if this torch has the method."""
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


MOST_BYTES = 1 << 30  # limit of all precomputed values together, in bytes
PLACES = 4096  # elements; smaller values are computed in each call, which is cheap
WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def operate_changed(request: ChangedRequest, report: Report) -> None:
    """Change a program and compile it; event `program_changed`, empty if there is nothing to change.

    With `weights_file`, only write the weights to this file, and compile the program unchanged.
    """
    program = load_exported(request, report)
    if request.get("weights_file"):
        held = {**program.state_dict, **program.constants}
        tensors = {name: value.detach() for name, value in held.items() if isinstance(value, torch.Tensor)}
        torch.save(tensors, request["weights_file"])
        compiled(program, request, report)
        return
    with torch.no_grad():
        program, nodes = CHANGES[request["change"]](program)
    report.event(events.ProgramChanged(list(map(str, nodes)), _lines_of(nodes)))
    if nodes:
        compiled(program, request, report)


def precomputed(program: Any) -> tuple[Any, list[Any]]:
    """Compute the values that depend on no input once, and keep them as buffers, as `__init__` could."""
    weights = weights_of(program)
    fixed: dict[Any, int] = {}  # by node without input: elements of the largest value up to it
    for node in program.graph.nodes:
        inner = node.all_input_nodes
        if node.op == "placeholder" and node.name in weights:
            fixed[node] = 0
        elif is_pure(node) and all(each in fixed for each in inner):
            sizes = (each.numel() for each in only_tensors(node.meta.get("val")))
            fixed[node] = max([*sizes, *(fixed[each] for each in inner)], default=0)
    values: dict[Any, Any] = {node: weights[node.name] for node in fixed if node.op == "placeholder"}
    room = MOST_BYTES
    kept: list[Any] = []
    for node in [each for each in fixed if ends_here(each, fixed) and fixed[each] > PLACES]:
        value = value_of(node, values)
        if value.nbytes <= room and not (is_view(node) and value.is_contiguous()):
            room -= value.nbytes
            kept.append(node)
    for node in [each for each in program.graph.nodes if is_assertion(each, fixed)]:
        program.graph.erase_node(node)
    for number, node in enumerate(kept):
        keep(program, node, values[node].clone(), "precomputed_{}".format(number))
    return _cleaned(program), kept


def weights_of(program: Any) -> dict[str, torch.Tensor]:
    """The weights that the program does not change, by placeholder."""
    state, signature = {**program.constants, **program.state_dict}, program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    return {
        spec.arg.name: state[spec.target].detach()
        for spec in signature.input_specs
        if spec.kind in WEIGHTS and spec.target not in written
    }


def is_pure(node: Any) -> bool:
    """Whether the node has no side effects and gives the same values for the same arguments."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return node.op == "call_function" and node.target is operator.getitem
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    own = node.target.namespace in ("aten", "prims")
    return own and not seeded and not schema.is_mutable and bool(only_tensors(node.meta.get("val")))


def ends_here(node: Any, fixed: dict[Any, int]) -> bool:
    """Whether a node that depends on an input uses this one, which depends on no input."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    users = (user for user in node.users if user.op != "output" and not is_assertion(user, fixed))
    return any(user not in fixed for user in users)


def is_assertion(node: Any, fixed: dict[Any, int]) -> bool:
    """Whether the node only checks a value that depends on no input."""
    name = getattr(node.target, "_opname", "")
    return bool(name.startswith("_assert")) and all(each in fixed for each in node.all_input_nodes)


def is_view(node: Any) -> bool:
    """Whether the node and all before it are views or placeholders."""
    schema = getattr(node.target, "_schema", None)
    if node.op == "placeholder":
        return True
    looks = schema is not None and any(each.alias_info is not None for each in schema.arguments)
    return looks and all(is_view(each) for each in node.all_input_nodes)


def value_of(node: Any, values: dict[Any, Any]) -> Any:
    if node not in values:
        for each in node.all_input_nodes:
            value_of(each, values)
        args, kwargs = map_arg((node.args, node.kwargs), values.get)
        values[node] = node.target(*args, **kwargs)
    return values[node]


def keep(program: Any, node: Any, value: torch.Tensor, name: str) -> None:
    """Replace a node with a new buffer of the program."""
    specs = program.graph_signature.input_specs
    place = next((n for n, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT), len(specs))
    after = [each for each in program.graph.nodes if each.op == "placeholder"][place - 1 : place]
    with program.graph.inserting_after(*after) if after else program.graph.inserting_before():
        new = program.graph.placeholder(name)
    new.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(new)
    specs.insert(place, InputSpec(InputKind.BUFFER, TensorArgument(name), name, persistent=True))
    program.state_dict[name] = value


def in_float32(program: Any) -> tuple[Any, list[Any]]:
    """Use single precision for double weights and conversions, unless an input is double."""
    nodes = list(program.graph.nodes)
    given = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind not in WEIGHTS}
    wide = [n for n in nodes if n.op == "placeholder" and _is_double(n)]
    if any(node.name in given for node in wide):
        return program, []
    for held in (program.state_dict, program.constants):
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
                new, is_parameter = value.detach().float(), isinstance(value, torch.nn.Parameter)
                held[name] = torch.nn.Parameter(new, requires_grad=False) if is_parameter else new
    without_dtype_checks(program)  # these would assert that values are double
    changed = [each for each in program.graph.nodes if each.op == "call_function" and _is_double(each)]
    single = {torch.float64: torch.float32}
    for node in changed:
        args, kwargs = map_aggregate((node.args, node.kwargs), lambda each: single.get(each, each))
        node.args, node.kwargs = args, kwargs
    return program, changed


def without_dtype_checks(program: Any) -> None:
    """Drop the assertions on the dtypes of values."""
    for node in list(program.graph.nodes):
        if getattr(node.target, "_opname", "") == "_assert_tensor_metadata":
            program.graph.erase_node(node)


def _is_double(node: Any) -> bool:
    return any(each.dtype is torch.float64 for each in only_tensors(node.meta.get("val")))


def inlined(program: Any) -> tuple[Any, list[Any]]:
    """Put the Python code of custom operators into the program, so that the compiler can fuse it."""
    table, nodes = {}, []
    for node in program.graph.nodes:
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        made = torch._library.custom_ops._maybe_get_opdef(name) if "::" in name else None
        if made is not None:
            table[node.target] = made._init_fn
            nodes.append(node)
    return (program.run_decompositions(table) if table else program), nodes


def ranked(program: Any) -> tuple[Any, list[Any]]:
    """Replace a sort with `topk` where the program uses only its first or last values."""
    changed: list[Any] = []
    for node in list(program.graph.nodes):
        if getattr(node.target, "_opname", "") != "sort" or len(node.meta["val"][0].shape) == 0:
            continue
        given = {argument.name: argument.default_value for argument in node.target._schema.arguments}
        given.update(zip(given, node.args), **node.kwargs)
        shape = node.meta["val"][0].shape
        dim, length = given["dim"] % len(shape) - len(shape), shape[given["dim"]]
        parts = {_cut_by(use) or (0, 0, 0) for pick in node.users for use in pick.users}
        is_last = parts == {(dim, -1, sys.maxsize)}
        most = 1 if is_last else max((end for *_, end in parts), default=0)
        known = isinstance(length, int) and (is_last or all(part[:2] == (dim, 0) for part in parts))
        if known and 0 < 4 * most <= length:
            largest = bool(given["descending"]) is not is_last
            with program.graph.inserting_before(node):
                args = (given["self"], most, given["dim"], largest, True)
                new = program.graph.call_function(torch.ops.aten.topk.default, args)
            _put_in_place(node, new, changed)
    return _cleaned(program), changed


def _put_in_place(node: Any, new: Any, changed: list[Any]) -> None:
    """Replace a node with a new one, and add the old one to `changed`."""
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    changed.append(node)


def _cleaned(program: Any) -> Any:
    """A changed program without unused nodes."""
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def looked_up(program: Any) -> tuple[Any, list[Any]]:
    """Replace the product of a one-hot matrix and a second matrix with a lookup of rows in the second."""
    changed: list[Any] = []
    without_dtype_checks(program)
    for node in list(program.graph.nodes):
        is_product = getattr(node.target, "_opname", "") in ("matmul", "mm")
        index = _chosen_rows(node.args[0]) if is_product and node.args[1].meta["val"].dim() == 2 else None
        if index is None:
            continue
        with program.graph.inserting_before(node):
            if _before_casts(node.args[0]).target._opname == "scatter":
                index = program.graph.call_function(torch.ops.aten.squeeze.dim, (index, -1))
            new = program.graph.call_function(torch.ops.aten.embedding.default, (node.args[1], index))
        _put_in_place(node, new, changed)
    return _cleaned(program), changed


def _before_casts(node: Any) -> Any:
    while getattr(node.target, "_opname", "") in ("to", "_to_copy"):
        node = node.args[0]
    return node


def _chosen_rows(node: Any) -> Any:
    """The node of the indices, if a node is a one-hot matrix. None otherwise."""
    node = _before_casts(node)
    name, rank = getattr(node.target, "_opname", ""), len(node.meta["val"].shape)
    if name == "one_hot":
        return node.args[0]
    zeros = name == "scatter" and getattr(node.args[0].target, "_opname", "") == "zeros"
    last = zeros and node.args[1] % rank == rank - 1 and node.args[2].meta["val"].shape[-1] == 1
    return node.args[2] if last and node.args[3] == 1 else None


PRODUCTS = ("linear", "mm", "matmul", "bmm", "addmm")
ROWWISE = (*PRODUCTS, "layer_norm", "softmax", "log_softmax", "dropout", "clone", "to", "slice")
SLICE = torch.ops.aten.slice.Tensor


def cut_early(program: Any) -> tuple[Any, list[Any]]:
    """Compute only the rows of a product that the program uses: move `[:, -1]` in front of the product."""
    without_dtype_checks(program)
    moved, waiting = [], list(program.graph.nodes)
    while waiting:
        node = waiting.pop()
        parts = {_cut_by(use) for use in node.users}
        part = parts.pop() if len(parts) == 1 else None
        rows = _rows_of(node, part[0]) if part is not None and is_pure(node) else []
        if part is None or not rows:
            continue
        moved.append(node)
        with program.graph.inserting_before(node):
            cut = {each: _called(program, SLICE, each, *part) for each in rows}
            args = [cut.get(each, each) if isinstance(each, torch.fx.Node) else each for each in node.args]
            new = _called(program, node.target, *args, **node.kwargs)
            new.meta["stack_trace"] = node.meta.get("stack_trace")
            for use in list(node.users):
                is_one = use.target._opname == "select"
                use.replace_all_uses_with(_called(program, use.target, new, part[0], 0) if is_one else new)
                program.graph.erase_node(use)
        program.graph.erase_node(node)
        waiting += rows
    products = [each for each in moved if each.target._opname in PRODUCTS]
    return _cleaned(program), products[:1]  # the last product, where the user would move the slice


def _called(program: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """Add a call to the graph, with its fake result."""
    node = program.graph.call_function(target, args, kwargs)
    given, named = map_arg((args, kwargs), lambda each: each.meta["val"])
    node.meta["val"] = target(*given, **named)
    return node


def _cut_by(use: Any) -> tuple[int, int, int] | None:
    """Return (negative dimension, first, end) of a select, or a slice that keeps at most half. Else None."""
    name, args = getattr(use.target, "_opname", ""), use.args
    if name not in ("select", "slice") or len(args) < 3 or not isinstance(args[2], int):
        return None
    dim = args[1] % len(args[0].meta["val"].shape) - len(args[0].meta["val"].shape)
    if name == "select":
        return dim, args[2], args[2] + 1 or sys.maxsize
    taken, whole = (each.meta["val"].shape[dim] for each in (use, args[0]))
    known = len(args) == 4 and isinstance(taken, int) and isinstance(whole, int)
    return (dim, args[2], args[3]) if known and 2 * taken <= whole else None


def _rows_of(node: Any, dim: int) -> list[Any]:
    """List the arguments of which row `i` along `dim` suffices for row `i` of the result."""
    name, shape = getattr(node.target, "_opname", ""), node.meta["val"].shape
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        nodes = (each for each in node.args if isinstance(each, torch.fx.Node))
        found = [(each, getattr(each.meta["val"], "shape", ())) for each in nodes]
        return [each for each, own in found if len(own) >= -dim and str(own[dim]) == str(shape[dim])]
    first = node.args[name == "addmm"] if name in ROWWISE else None
    if first is None or len(first.meta["val"].shape) != len(shape):
        return []
    if name in ("softmax", "log_softmax", "slice"):
        return [first] if node.args[1] % len(shape) != dim % len(shape) else []
    mixed = len(node.args[1]) if name == "layer_norm" else int(name in PRODUCTS)  # last dimensions, mixed
    return [] if dim >= -mixed or (dim < -2 and name in ("matmul", "bmm")) else [first]


CHANGES: dict[str, Callable[[Any], tuple[Any, list[Any]]]] = {
    "precomputed": precomputed,
    "float32": in_float32,
    "inlined": inlined,
    "topk": ranked,
    "looked_up": looked_up,
    "cut_early": cut_early,
}


def _lines_of(nodes: list[Any]) -> list[events.TracedLine]:
    """The lines of the model that created the nodes, each once."""
    lines = []
    for node in nodes:
        frames = _own(FRAME.findall(node.meta.get("stack_trace") or ""))
        lines += [(file, int(line), code.strip()) for file, line, _function, code in frames[-1:]]
    return [events.TracedLine(*each, lines.count(each), 0.0) for each in dict.fromkeys(lines)]
