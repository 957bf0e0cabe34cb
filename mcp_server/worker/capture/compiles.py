"""Journals exports, compiles and packagings, the operators at which a compile stopped, and failed checks.

Comparisons that the program itself makes (`assert_close`, `allclose`, `equal`) show what was expected.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import itertools
import linecache
import os
import shutil
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, Iterator, Sequence

import torch

from ..encode import INSTALLED, OURS, TORCH, TooLarge, callers, encode, frames, is_ours, raised_in
from ..report import Attempt, Encoded, encode_frames, identity
from ..tensors import digests, is_plain, only_tensors, storage_bytes
from .calls import Calls, failure
from .journal import Ending
from .memory import version_of

CALLER = 4  # frames above a hook: `_begin`, `safely`, the wrapper, and the code that called it
REPORTED = "aoti_debug_reported"  # attribute of an exception already journaled as a failed comparison


@dataclass(frozen=True, eq=False)
class Comparison:
    """A failed comparison. `file` has both sides, `calls` returned them, and `code` compared them."""

    file: str | None
    calls: list[int]
    frames: Encoded
    code: CodeType | None


class Comparisons:
    """Remembers the last comparison of this process if it failed, until another one succeeds."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.numbers = itertools.count()
        self.failed: Comparison | None = None

    def asserting(self, actual: Any, expected: Any, *_args: Any, **named: Any) -> Ending:
        """Journal a failed `assert_close` at once, because the program may catch the error."""
        _, error = yield
        self._forget()
        if isinstance(error, AssertionError):
            error.__dict__[REPORTED] = True  # a reference to the error would keep tensors alive
            self.failed = self._kept(actual, expected, named)
            self._tell(error)

    def comparing(self, first: Any = None, second: Any = None, *_args: Any, **named: Any) -> Ending:
        """Hook `torch.allclose` or `torch.equal`. Only the program's own calls count, not torch's.

        A failed comparison is not yet a failure, but the program may end because of it.
        """
        if not is_ours(sys._getframe(CALLER).f_code):
            result, _ = yield
            self._forget()
            if result is False:
                self.failed = self._kept(named.get("input", first), named.get("other", second), named)

    def ending(self, error: BaseException) -> None:
        """Journal the last comparison if it failed in a function of the error's traceback."""
        if self.failed is not None and self.failed.code in [place.f_code for place, _ in raised_in(error)]:
            self._tell(error)
        self.failed = None

    def left(self) -> None:
        """Journal the last comparison if it failed. A `raise SystemExit` after it reaches no hook."""
        self._tell(SystemExit())

    def _kept(self, actual: Any, expected: Any, named: dict[str, Any]) -> Comparison:
        """Keep both sides of a comparison and its tolerance. The actual side is what a call returned."""
        arrays = (
            s if not hasattr(s, "__array_interface__") else torch.as_tensor(s) for s in (actual, expected)
        )
        sides = [[leaf.detach() for leaf in only_tensors(side)] for side in arrays]
        calls_of = self.calls.outputs.calls_of
        if calls_of(sides[1]) and not calls_of(sides[0]):
            sides.reverse()
        calls = calls_of(sides[0] + sides[1])
        places = self.calls.outputs.places_of(sides[0], calls[0]) if len(calls) == 1 else []
        limits = [None if one is None else float(one) for one in map(named.get, ("rtol", "atol"))]
        record = {"actual": sides[0], "expected": sides[1], "places": places, "limits": limits}
        path, _ = self.calls.saved("assertion", next(self.numbers), lambda: self._within(record))
        code = next((frame.f_code for frame in callers()), None)
        return Comparison(path, calls, frames(), code)

    def _within(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record. Raises `TooLarge` if it exceeds the cap on a file."""
        size = storage_bytes(record["actual"] + record["expected"])
        if size > self.calls.store.cap:
            raise TooLarge(f"its {size} bytes are above the cap of {self.calls.store.cap}")
        return record

    def _tell(self, error: BaseException) -> None:
        """Journal the failed comparison, once, with the resulting error."""
        told, self.failed = self.failed, None
        if told is not None:
            self.calls.memory.failed()
            self.calls.journal.event(
                "assertion_failed", file=told.file, calls=told.calls, frames=told.frames, **failure(error)
            )

    def _forget(self) -> None:
        """Drop the last comparison and its file, because it did not end the program."""
        before, self.failed = self.failed, None
        if before is not None and before.file is not None:
            with contextlib.suppress(OSError):
                os.unlink(before.file)


SLOW_EXPORT_S = 20.0
MOST = 4
MODELS = 8  # exported models whose weights are watched
TEXT = 4000  # characters of one stack
NAMES = ("self", "n", "node")  # names of a node's variable in the compiler (torch 2.8-2.15)


def stopped_at(error: BaseException) -> list[dict[str, str]]:
    """List the operators on which the innermost compiler frame works, with their stacks in the model.

    A variable of the frame is a graph node, or an object of Inductor's IR or scheduler made from nodes.
    """
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        nodes: list[Any] = []
        for value in map(frame.f_locals.get, NAMES):
            module = type(value).__module__
            made = getattr(value, "node", None) if module == "torch._inductor.scheduler" else value
            if isinstance(value, torch.fx.Node):
                nodes.append(value)
            elif module in ("torch._inductor.scheduler", "torch._inductor.ir"):
                nodes += getattr(made, "origins", ()) or ()
        calls = [node for node in nodes if isinstance(node, torch.fx.Node) and node.op == "call_function"]
        if calls:
            return [
                {"operator": str(node.target), "stack": str(node.meta.get("stack_trace") or "")[-TEXT:]}
                for node in list(dict.fromkeys(calls))[:MOST]
            ]
    return []


FLAGS = ("TORCH", "PYTORCH", "AOT", "INDUCTOR", "TRITON", "CXX", "CC", "OMP_NUM_THREADS", "CUDA")
# Where GCC and Clang search for headers and libraries in addition to their own directories.
SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH")


class Compiles:
    """Numbers the compiles of this process, and journals them, exports, packagings and failed checks."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.journal = calls.journal
        self.store = calls.store
        self.numbers = itertools.count()
        self.thread = threading.local()
        self.compiles = False  # whether this process has compiled anything
        self.comparisons = Comparisons(calls)
        self.last_export: Any = None  # an instance of `changes.Failing`
        self.export_s = self.built_s = 0.0
        # Each exported model, with its weights at the export and their version counts.
        self.models: deque[tuple[Any, dict[str, tuple[Any, int]]]] = deque(maxlen=MODELS)
        self.told_state = False
        self.last_compile: Any = None  # options and error of a failed compile
        self.unrolled: Any = None  # the last compiled program, if its loops are to be rewritten
        self.fixed: Any = None  # the last compiled program, and the guards that its compile added
        self.kept: set[str] = set()  # packages that existed before this process wrote them

    def compiling(self, how: str, program: Any, *_args: Any, **kwargs: Any) -> Ending:
        """Hook the compiling function `how`. A compile inside a compile is part of the outer one."""
        if getattr(self.thread, "inside", False):
            return
        number = next(self.numbers)
        self._keep_before(path_of(kwargs.get("package_path")))
        configs, exact = encode(kwargs.get("inductor_configs") or kwargs.get("options") or {})
        path, notice = self._exported(program, number)
        exported = isinstance(program, torch.export.ExportedProgram)
        self.journal.event(
            "compiling",
            compile=number,
            how=how,
            empty_cache=own_cache_is_empty(),
            exported=path,
            program=exported,
            notice=notice,
            package_path=path_of(kwargs.get("package_path")),
            configs=configs,
            configs_exact=exact,
            flags={name: value for name, value in os.environ.items() if name.startswith(FLAGS + SEARCHED)},
            torch=torch.__version__,
            libraries=sorted(torch.ops.loaded_libraries),
            frames=frames(),
        )
        self.compiles = self.thread.inside = True
        start = time.monotonic()
        self.unrolled = program if exported and os.environ.get("AOTI_DEBUG_LOOPS") else None
        weights = program.state_dict if exported else {}
        self.calls.held = {name: (weights[name].dtype, now) for name, now in digests(weights).items()}
        guards = guards_of(program) if exported else []
        before = len(guards)
        result, error = yield
        seconds, self.thread.inside = time.monotonic() - start, False
        self._built(seconds)
        if error is None:
            self.fixed = (program, guards[before:]) if guards[before:] else None
            self.journal.event("compiled", compile=number, seconds=seconds, package=path_of(result))
            return
        self.last_compile = (kwargs.get("inductor_configs"), error)
        told, operators = failure(error), stopped_at(error)
        self.journal.event("compile_failed", compile=number, seconds=seconds, stopped_at=operators, **told)

    def _built(self, seconds: float) -> None:
        """Print the stacks later if the program built, since builds do not count against its time limit."""
        after, until = (float(os.environ.get("AOTI_DEBUG_" + name, 0)) for name in ("STACKS_AFTER", "UNTIL"))
        self.built_s += seconds
        unused = max(0.0, float(os.environ.get("AOTI_DEBUG_SPARED", 0)) - self.built_s)
        left = until + 0.2 * after - unused - time.time()
        if after and left > 0:
            faulthandler.dump_traceback_later(left, exit=False)

    def _keep_before(self, path: str | None) -> None:
        """Keep a copy of the user's own build before a package overwrites it; it is restored afterwards."""
        if path is None or path in self.kept:
            return
        self.kept.add(path)
        kept, notice = None, ""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            if os.path.getsize(path) > self.store.cap:
                notice = "larger than is copied"
            else:
                copy = os.path.join(self.store.directory, "before-{}-{}".format(identity(), len(self.kept)))
                kept = shutil.copy2(path, copy)
        self.journal.event("overwriting", path=path, kept=kept, notice=notice)

    def _exported(self, program: Any, number: int) -> tuple[str | None, str]:
        """Save the program before it is compiled, since the compile may never return."""
        if not isinstance(program, torch.export.ExportedProgram):
            return None, "no exported program was given, but a " + type(program).__name__
        tensors = [*program.state_dict.values(), *program.constants.values()]
        size = storage_bytes([value for value in tensors if isinstance(value, torch.Tensor)])
        if size > self.store.cap:
            return None, "its {} bytes of weights are above the cap of {}".format(size, self.store.cap)
        path = os.path.join(self.store.directory, "exported-{}-{}.pt2".format(identity(), number))
        try:
            torch.export.save(program, path)
        except Exception as error:
            return None, "torch.export.save: {}".format(error)[:500]
        return path, ""

    def failing(self, error: BaseException) -> None:
        """Journal the exception that ends the program, which may come from a check in it."""
        places = raised_in(error)
        self.drifted([frame for frame, _ in places])
        if self.compiles and REPORTED not in error.__dict__:
            self._program_failed(error, encode_frames([(frame.f_code, line) for frame, line in places]))
        self.comparisons.ending(error)

    def ended(self, error: BaseException) -> None:
        """Handle the uncaught error that ends the program."""
        self.failing(error)
        shapes = list(self.calls.shapes or ())
        self.attempt(error)
        self._tell_model([*shapes, *refused_shapes(error)], shapes)

    def _tell_model(self, narrow: list[Any], fixed: list[Any]) -> None:
        """Journal what the model loses in the package: sizes outside a range, fixed sizes, and state."""
        self.tell_narrowed(narrow)
        self.tell_fixed(fixed)
        self.tell_state()

    def exiting(self, status: Any = None) -> None:
        """Journal a `sys.exit` with a failure status, which may come from a check."""
        if self.compiles and status:
            self.drifted(callers())
            self._program_failed(SystemExit(status), frames())
            shapes = list(self.calls.shapes or ())
            self._tell_model(shapes, shapes)

    def _program_failed(self, error: BaseException, shown: object) -> None:
        self.calls.memory.failed()
        told = {**self.calls.outputs.kept(), **failure(error)}
        self.journal.event("program_failed", frames=shown, **told)

    def exporting(self, module: Any, *args: Any, **kwargs: Any) -> Ending:
        """Remember an export, so that changes can be tried if it or its compile ends the program."""
        if isinstance(module, torch.nn.Module):
            from .attempts import state_of
            from .changes import Failing

            self.journal.event("exporting")
            begun, began, start = state_of(module, only_python=True), time.process_time(), time.monotonic()
            _, error = yield
            self._built(time.monotonic() - start)
            if error is not None:
                self.journal.event("export_failed", frames=frames(), **failure(error))
            self.journal.event("exported")
            options = dict(kwargs)
            given = args[0] if args else options.pop("args", ())
            more = args[1] if len(args) > 1 else options.pop("kwargs", None)
            sources = tuple(dict.fromkeys(frame.f_code.co_filename for frame in callers()))
            arguments = tuple(given), dict(more or {})
            if error is None:
                arguments = own_copies(arguments, self.store.cap)
            about = {"sources": sources, "begun": begun, "grad": torch.is_grad_enabled()}
            self.last_export = Failing(module, *arguments, options, error, **about)
            self.export_s, self.calls.shapes = time.process_time() - began, {}  # of this process only
            known = {name: (weakref.ref(value), version_of(value)) for name, value in weights_of(module)}
            self.models.append((weakref.ref(module), known))

    def loading_weights(self, module: Any, *_args: Any, **_kwargs: Any) -> Ending:
        """Journal the weights that a non-strict load did not find, and those that it found instead."""
        result, _ = yield
        if missing := getattr(result, "missing_keys", None):
            self.journal.event(
                "partly_loaded",
                missing=len(missing),
                of=len(module.state_dict()),
                names=missing[:MOST],
                unexpected=result.unexpected_keys[:MOST],
                frames=frames(),
            )

    def drifted(self, places: Sequence[FrameType] = ()) -> None:
        """Journal and save the weights that changed after their model was exported.

        Do the same for weights of other models in `places` (frames of a check) that differ from the package.
        """
        models, self.models = [(model(), known) for model, known in reversed(self.models)], deque()
        for model, known in models:
            weights = {n: v for n, v in weights_of(model) if n in known} if model is not None else {}
            changed = [
                n for n, v in weights.items() if v is not known[n][0]() or version_of(v) != known[n][1]
            ]
            self._tell_drift({name: weights[name] for name in changed}, sorted(changed))
        for name, model in [pair for frame in places for pair in frame.f_locals.items()]:
            if isinstance(model, torch.nn.Module) and all(model is not each for each, _ in models):
                weights, held = dict(weights_of(model)), self.calls.held
                alike = {n: weights[n].to(held[n][0]) for n in held if n in weights}
                now = digests(alike) if len(alike) == len(held) else {}
                self._tell_drift(alike, sorted(n for n in now if now[n] != held[n][1]), name, now)

    def _tell_drift(
        self, weights: dict[str, Any], names: list[str], of: str = "", now: dict[str, str] | None = None
    ) -> None:
        """Journal and save weights, whose digests are `now`, with the names of those that changed."""
        if names:
            kept = {name: value.detach() for name, value in weights.items()}
            file, notice = self.calls.saved("weights", next(self.numbers), lambda: kept)
            now = digests(kept) if now is None else now
            held = {name: digest for name, (_, digest) in self.calls.held.items()}
            owners = {digest: name for name, digest in now.items()}
            stale = [name for name in names if name in held and now.get(name) != held[name]]
            taken = {name: owners[held[name]] for name in stale if held[name] in owners}
            about = {"notice": notice, "of": of, "taken": taken}
            self.journal.event("drifted", names=names, file=file, **about)

    def attempt(self, error: BaseException) -> None:
        """If the failed export or compile ends the program, try changes that may make it pass."""
        if self.last_export is None:
            return
        from .attempts import attempts, compile_with  # rarely needed
        from .changes import advice, chain, stop

        failing, inside = self.last_export, set(map(id, chain(error)))
        if failing.error is not None and id(failing.error) in inside:
            failing = replace(failing, build=compile_with({}))
        elif self.last_compile is not None and id(self.last_compile[1]) in inside:
            configs, error = self.last_compile
            failing = replace(failing, error=error, compile=compile_with(configs))
        else:
            return
        self.last_export = None
        tried = attempts(failing, self._trying)
        told = advice(failing, [(each.file, each.reached) for each in tried if each.reached])
        lines = lines_at(failing.lines or [at for at in (stop(failing),) if at and failing.compile])
        self.journal.event("attempted", stage=failing.stage, attempts=tried, frames=lines, advice=told)

    def _trying(self, step: str) -> None:
        self.thread.inside = True  # from now on, the hook compiles, not the program
        self.journal.event("attempting", step=step)

    def tell_narrowed(self, shapes: list[Any]) -> None:
        """If a range excludes sizes of the calls, journal the line that narrowed it, and changes of it."""
        failing = self.last_export
        if failing is None or failing.error is not None or not shapes or self.export_s > SLOW_EXPORT_S:
            return
        from .attempts import attempts, compile_with, narrowed

        wide = narrowed(failing, shapes) if failing.options.get("dynamic_shapes") is not None else None
        if wide is not None:
            wide = replace(wide, build=compile_with({}))
            tried = attempts(wide, self._trying, only_lines=True)
            self.journal.event("attempted", stage="narrowed", attempts=tried, frames=lines_at(wide.lines))

    def tell_fixed(self, shapes: list[Any]) -> None:
        """Journal a size that the compile fixed, if the last call had another one."""
        if self.fixed is None:
            return
        from .shapes import fixed_sizes

        program, guards = self.fixed
        for told, lines in fixed_sizes(program, guards, shapes):
            self.journal.event("attempted", stage="sizes", attempts=[told], frames=lines)

    def tell_state(self, passed: bool = False) -> None:
        """Journal Python state that a call in eager mode changes. A package keeps the state at its export.

        Skip state that changes no output of later calls. If the program `passed`, compile nothing.
        """
        if self.last_export is None or self.last_export.error is not None or self.told_state:
            return
        from .attempts import CALLS, changed_by_a_call, compile_with, in_a_buffer, loses_state, python_state
        from .changes import changing

        # An ending process starts no threads, which a compile would need.
        self.told_state, failing = True, replace(self.last_export, build=None if passed else compile_with({}))
        module = failing.module
        # Most programs that pass have no such state. Do not copy their weights.
        may_change = (changing(module.get_submodule(path), name)[1] for path, name in python_state(module))
        if passed and (self.export_s > SLOW_EXPORT_S or not any(may_change)):
            return
        for path, name in changed_by_a_call(failing):
            owner = module.get_submodule(path)
            kind, place = changing(owner, name)
            fixed = name in owner._parameters
            if not fixed and not loses_state(failing, path, name):
                continue
            told = Attempt(f"state {name}", (FIXED if fixed else STATE).format(name=name), outcome="untried")
            told.reached_code = f"{name} ({kind})"
            told.again, told.sizes = f"other outputs than eager mode in one of {CALLS} calls in turn", CALLS
            self.journal.event("attempting", step=f"trying to keep {name} in a buffer")
            self.journal.paused = True
            try:
                in_a_buffer(failing, path, name, told)
            finally:
                self.journal.paused = False
            stage = "parameter" if fixed else "state"
            self.journal.event("attempted", stage=stage, attempts=[told], frames=lines_at(place))

    def tell_loops(self) -> None:
        """Journal the rewrite of a loop that the export unrolled, and the program exported from it."""
        if self.unrolled is None or self.last_export is None or self.last_export.error is not None:
            return
        from ..timing import lines_traced
        from .attempts import attempts
        from .rewrites import UNROLLED

        lines = [(each.file, each.line) for each in lines_traced(self.unrolled) if each.unrolled]
        if not lines:
            return
        file = os.path.join(self.store.directory, f"rolled-{identity()}.pt2")
        keep = partial(torch.export.save, f=file)
        failing = replace(self.last_export, error=RuntimeError(UNROLLED), lines=lines, keep=keep)
        tried = attempts(failing, self._trying, only_lines=True)
        self.journal.event("attempted", stage="loop", attempts=tried, file=file, frames=lines_at(lines))

    def widen(self) -> None:
        """At the end of the program, export again with a range that includes the sizes of its calls."""
        shapes, self.calls.shapes = self.calls.shapes, None
        if not shapes or self.last_export is None or self.export_s > SLOW_EXPORT_S:
            return
        if self.last_export.error is None and self.last_export.options.get("dynamic_shapes") is not None:
            from .attempts import widened

            tried = widened(self.last_export, list(shapes))
            if tried:
                self.journal.event("attempted", stage="range", attempts=tried)

    def packaging(self, archive: Any, *_args: Any, **_kwargs: Any) -> None:
        """Keep the file that the program's own packaging overwrites. A stream has no path."""
        if not getattr(self.thread, "inside", False):
            self._keep_before(path_of(archive))


def refused_shapes(error: BaseException) -> Iterator[Any]:
    """Yield the shapes of the inputs that a guard of an exported program refused."""
    if "Guard failed" in str(error):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if isinstance(frame.f_locals.get("self"), torch.fx.GraphModule) and "args" in frame.f_locals:
                given = only_tensors((frame.f_locals["args"], frame.f_locals.get("kwargs")))
                yield tuple(tuple(each.shape) for each in given)
                return


def lines_at(places: list[tuple[str, int]]) -> list[Any]:
    return [{"file": f, "line": n, "code": linecache.getline(f, n).strip()} for f, n in places]


def own_cache_is_empty() -> bool:
    """Whether TORCHINDUCTOR_CACHE_DIR is set and empty, so that a build reuses nothing."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return bool(folder) and not any(files for _, _, files in os.walk(str(folder)))


STATE = (
    "keep {name} in a registered buffer of a fixed size that forward changes in place (copy_, index_copy_, "
    "add_), or pass it to forward and return it"
)


FIXED = "register {name} as a buffer, which forward may change: a package cannot return a changed parameter"


def weights_of(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module by name, not detached."""
    for name, value in module.state_dict(keep_vars=True).items():
        if is_plain(value):
            yield name, value


def guards_of(program: Any) -> Any:
    """The guards of an exported program's sizes: the list itself, to which a compile appends."""
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env.guards
    return []


def own_copies(arguments: tuple[Any, Any], cap: int) -> tuple[Any, Any]:
    """Copies of arguments, so that the program's own are freed when they are without the hook."""
    if storage_bytes(only_tensors(arguments)) <= cap:
        with contextlib.suppress(Exception):  # a tensor that has a gradient function cannot be copied
            return copy.deepcopy(arguments)
    return arguments


def path_of(value: Any) -> str | None:
    """Return a path as text. Of a list of generated files, return the first. None for a buffer."""
    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(os.fspath(value))
    return path_of(value[0]) if isinstance(value, list) and value else None


def keep_lines(tracer: Any = None) -> None:
    """Let the stack of a node include the frames of methods and functions that `forward` calls.

    torch keeps only frames named `forward`, so a fault in a helper would appear at the line that calls the
    helper. Releases without this filter are left unchanged.
    """
    tracer = torch.fx.proxy.TracerBase if tracer is None else tracer
    original = getattr(tracer, "_filter_traceback_frames", None)
    if original is None or hasattr(original, "__aoti_debug__"):
        return

    @functools.wraps(original)
    def choose(self: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
        """The frames that torch keeps, and the user's own frames that the first of them called."""
        frames = original(self, summary)
        kept = {id(frame) for frame in frames}
        start = next((i for i, frame in enumerate(summary) if id(frame) in kept), len(summary))
        others = [f for f in summary if f.filename.startswith((OURS, TORCH)) or INSTALLED.search(f.filename)]
        foreign = set(map(id, others)) - kept
        own = [frame for frame in summary[start:] if id(frame) not in foreign]
        return traceback.StackSummary.from_list(own) if frames else frames

    choose.__aoti_debug__ = True  # type: ignore[attr-defined]
    tracer._filter_traceback_frames = choose
