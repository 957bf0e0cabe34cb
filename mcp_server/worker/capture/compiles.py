"""What the hook tells of exports, compiles and packagings, and where a compile stopped."""

from __future__ import annotations

import functools
import itertools
import os
import re
import threading
import time
import traceback
from types import FrameType
from typing import Any, Callable, Iterator, Optional

import torch

from ..encode import OURS, TORCH, callers, encode, encode_frames, frames, raised_in
from ..lease import leave
from ..process import processor_seconds
from ..report import identity
from ..tensors import leaves, storage_bytes
from .calls import failure
from .checks import Models, Returned, attributes, compared, keep, looked_at, tensors_of
from .journal import CaptureStore, Journal
from .memory import Managed

MOST = 4
TEXT = 4000  # characters of one stack
NAMES = ("self", "n", "node")  # of what a function of the compiler works on (torch 2.8-2.15)


def stopped_at(error: BaseException) -> list[dict[str, str]]:
    """The operators of the innermost frame that works on some, each with the lines of the model behind it."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = {id(node): node for node in _nodes(frame)}
        if found:
            return [
                {"operator": str(node.target), "stack": str(node.meta.get("stack_trace") or "")[-TEXT:]}
                for node in list(found.values())[:MOST]
            ]
    return []


def _nodes(frame: FrameType) -> Iterator[Any]:
    for name in NAMES:
        yield from _behind(frame.f_locals.get(name))


def _behind(value: Any) -> Iterator[Any]:
    """The calls of operators that it is, or was made of: a node of a graph, of Inductor's IR or schedule."""
    if isinstance(value, torch.fx.Node):
        origins: Any = [value]
    elif type(value).__module__ == "torch._inductor.scheduler":
        origins = getattr(getattr(value, "node", None), "origins", ())
    elif type(value).__module__ == "torch._inductor.ir":
        origins = getattr(value, "origins", ())
    else:
        origins = ()
    yield from (
        node for node in origins or () if isinstance(node, torch.fx.Node) and node.op == "call_function"
    )


FLAGS = ("TORCH", "PYTORCH", "AOT", "INDUCTOR", "TRITON", "CXX", "CC", "OMP_NUM_THREADS", "CUDA")
REPORTED = "aoti_debug_reported"  # attribute of an exception that was told as a failed comparison


class Compiles:
    """Numbers the compiles of this process."""

    def __init__(self, journal: Journal, store: CaptureStore, returned: Returned, managed: Managed) -> None:
        self.journal = journal
        self.store = store
        self.returned = returned
        self.managed = managed
        self.numbers = itertools.count()
        self.thread = threading.local()
        self.models = Models(store)

    def compiling(self, how: str) -> Callable[..., Optional[tuple[int, float]]]:
        """The `before` of one compiling function. A compile inside a compile is part of the outer one."""

        def begin(program: Any, *_args: Any, **kwargs: Any) -> Optional[tuple[int, float]]:
            if self.inside():
                return None
            leave()
            number = next(self.numbers)
            configs, exact = encode(kwargs.get("inductor_configs") or kwargs.get("options") or {})
            path, notice = self._exported(program, number)
            exported = isinstance(program, torch.export.ExportedProgram)
            self.journal.event(
                "compiling",
                compile=number,
                digests=self.models.compiling(state_of(program)),
                how=how,
                exported=path,
                program=exported,
                notice=notice,
                package_path=path_of(kwargs.get("package_path")),
                configs=configs,
                configs_exact=exact,
                flags={name: value for name, value in os.environ.items() if name.startswith(FLAGS)},
                torch=torch.__version__,
                libraries=sorted(torch.ops.loaded_libraries),
                processor_s=processor_seconds(),
                frames=frames(),
            )
            self.thread.depth = 1
            return number, time.monotonic()

        return begin

    def _exported(self, program: Any, number: int) -> tuple[Optional[str], str]:
        """Save the program before it is compiled, since compiling may not come back."""
        if not isinstance(program, torch.export.ExportedProgram):
            return None, "no exported program was given, but a " + type(program).__name__
        tensors = [*program.state_dict.values(), *program.constants.values()]
        size = storage_bytes([value for value in tensors if isinstance(value, torch.Tensor)])
        if size > self.store.cap:
            return None, "its {} bytes of weights are above the cap of {}".format(size, self.store.cap)
        path = self.journal.path("exported-{}-{}.pt2".format(identity(), number))
        try:
            torch.export.save(program, path)
        except Exception as error:
            return None, "torch.export.save: {}".format(error)[:500]
        return path, ""

    def compiled(self, state: tuple[int, float], result: Any, error: Optional[BaseException]) -> None:
        self.thread.depth = 0
        seconds = time.monotonic() - state[1]
        if error is not None:
            told = {**failure(error), "stopped_at": stopped_at(error)}
            self.journal.event("compile_failed", compile=state[0], seconds=seconds, **told)
        else:
            self.journal.event("compiled", compile=state[0], seconds=seconds, package=path_of(result))

    def inside(self) -> bool:
        """Whether this thread is within a compile."""
        return bool(getattr(self.thread, "depth", 0))

    def asserting(self, actual: Any, expected: Any, *_args: Any, **_kwargs: Any) -> tuple[Any, Any]:
        return actual, expected

    def asserted(self, state: tuple[Any, Any], _result: Any, error: Optional[BaseException]) -> None:
        """Tell a failed comparison and keep both sides: the expected one is the script's own reference."""
        if not isinstance(error, AssertionError):
            return
        error.__dict__[REPORTED] = True  # a reference to it would keep the tensors of its frames alive
        tensors = [[leaf for _, leaf in leaves(side) if isinstance(leaf, torch.Tensor)] for side in state]
        path = None
        if storage_bytes(tensors[0] + tensors[1]) <= self.store.cap:
            record = {
                "actual": [t.detach() for t in tensors[0]],
                "expected": [t.detach() for t in tensors[1]],
            }
            path = self.store.save("assertion", next(self.numbers), record)
        self.journal.event(
            "assertion_failed",
            file=path,
            calls=self.returned.calls(tensors[0] + tensors[1]),
            refilled=self.managed.refilled_by_now(),
            frames=frames(),
            modules=self.models.near(next(self.numbers), callers()),
            **failure(error),
        )

    def failing(self, error: BaseException) -> None:
        """Tell what is near an exception that ends the program: its own check may compare with it."""
        if not self.models.compiled or REPORTED in error.__dict__:
            return
        places = raised_in(error)
        self.journal.event(
            "program_failed",
            frames=encode_frames([(frame.f_code, line) for frame, line in places]),
            **self._near(places),
            **failure(error),
        )

    def _near(self, places: list[tuple[FrameType, int]]) -> dict[str, Any]:
        """Modules in these frames, a file of the tensors that they hold, the calls of a check, what it
        compared, and constants that were refilled.
        """
        number, frames = next(self.numbers), [frame for frame, _ in places]
        return {
            "modules": self.models.near(number, frames),
            "file": keep(self.store, number, frames),
            "refilled": self.managed.refilled_by_now(),
            "compared": compared(places),
            "calls": self.returned.calls(looked_at(places)),
        }

    def exiting(self, status: Any = None) -> None:
        """Tell the modules near a `sys.exit` with a status of failure: a check of the program's own, too."""
        if not self.models.compiled or not status:
            return
        self.journal.event(
            "program_failed",
            frames=frames(),
            **self._near([(frame, frame.f_lineno) for frame in callers()]),
            **failure(SystemExit(status)),
        )

    def exporting(self, module: Any, *_args: Any, **_kwargs: Any) -> None:
        """Tell the plain attributes of a module that is exported: the program holds their values."""
        if isinstance(module, torch.nn.Module):
            self.journal.event(
                "exporting", type=type(module).__name__, attributes=attributes(module), frames=frames()
            )


def state_of(program: Any) -> dict[str, torch.Tensor]:
    """What a program that is compiled has of parameters and buffers."""
    if isinstance(program, torch.export.ExportedProgram):
        return dict(program.state_dict)
    return tensors_of(program) if isinstance(program, torch.nn.Module) else {}


def path_of(value: Any) -> Optional[str]:
    """A path as text; a list of generated files by its first; a buffer has none."""
    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(os.fspath(value))
    return path_of(value[0]) if isinstance(value, list) and value else None


_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python\d")


def keep_lines(tracer: Any = None) -> None:
    """From now on the stack of a node has the frames of methods and functions that `forward` calls, too.

    torch keeps frames that are named `forward`, so that a fault in a helper would be told at the line that
    calls it. Releases that have no such filter are left alone.
    """
    tracer = torch.fx.proxy.TracerBase if tracer is None else tracer
    chosen = getattr(tracer, "_filter_traceback_frames", None)
    if chosen is None or hasattr(chosen, "__aoti_debug__"):
        return

    @functools.wraps(chosen)
    def choose(self: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
        frames = chosen(self, summary)
        return with_own(frames, summary) if frames else frames

    choose.__aoti_debug__ = True  # type: ignore[attr-defined]
    tracer._filter_traceback_frames = choose


def with_own(frames: traceback.StackSummary, summary: traceback.StackSummary) -> traceback.StackSummary:
    """The chosen frames with those of the user's own files that the first of them called, outermost first."""
    chosen = {id(frame) for frame in frames}
    start = next((i for i, frame in enumerate(summary) if id(frame) in chosen), len(summary))
    return traceback.StackSummary.from_list(
        [frame for frame in summary[start:] if id(frame) in chosen or _own(frame.filename)]
    )


def _own(file: str) -> bool:
    return not file.startswith((OURS, TORCH)) and not _INSTALLED.search(file)


class Packagings:
    """`inside` says whether a compile is under way, which packages its own files and has told of them."""

    def __init__(self, journal: Journal, inside: Callable[[], bool]) -> None:
        self.journal = journal
        self.inside = inside

    def packaging(self, archive: Any, aoti_files: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Tell the first file of each model, by its name; a package written to a stream has no path."""
        package = path_of(archive)
        if package is None or self.inside():
            return
        files = aoti_files if isinstance(aoti_files, dict) else {"model": aoti_files}
        named = {str(name): path_of(value) for name, value in files.items()}
        told = {name: path for name, path in named.items() if path is not None}
        self.journal.event("packaging", package=package, files=told, frames=frames())
