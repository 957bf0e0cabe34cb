"""What the hook tells of compiles, and of comparisons that the script itself makes."""

from __future__ import annotations

import itertools
import os
import threading
import time
from types import FrameType
from typing import Any, Callable, Optional

import torch

from .callers import callers, frames, raised_in, tell
from .capture_calls import failure
from .capture_checks import compared
from .capture_managed import Managed
from .capture_models import Models, attributes, tensors_of
from .capture_outputs import Returned, looked_at
from .held import keep
from .journal import Journal
from .layout import storage_bytes
from .lease import leave
from .limits import processor_seconds
from .options import encode
from .ranks import identity
from .stopped_at import stopped_at
from .storehouse import Storehouse
from .tensors import leaves

FLAGS = ("TORCH", "PYTORCH", "AOT", "INDUCTOR", "TRITON", "CXX", "CC", "OMP_NUM_THREADS", "CUDA")
TOLD = "aoti_debug_told"  # attribute of an exception that was told as a failed comparison


class Compiles:
    """Numbers the compiles of this process."""

    def __init__(self, journal: Journal, store: Storehouse, returned: Returned, managed: Managed) -> None:
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
        held = [*program.state_dict.values(), *program.constants.values()]
        size = storage_bytes([value for value in held if isinstance(value, torch.Tensor)])
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
        error.__dict__[TOLD] = True  # a reference to it would keep the tensors of its frames alive
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
            modules=self.models.beside(next(self.numbers), callers()),
            **failure(error),
        )

    def failing(self, error: BaseException) -> None:
        """Tell what is near an exception that ends the program: its own check may compare with it."""
        if not self.models.compiled or TOLD in error.__dict__:
            return
        places = raised_in(error)
        self.journal.event(
            "program_failed",
            frames=tell([(frame.f_code, line) for frame, line in places]),
            **self._near(places),
            **failure(error),
        )

    def _near(self, places: list[tuple[FrameType, int]]) -> dict[str, Any]:
        """Modules in these frames, a file of the tensors that they hold, the calls of a check, what it
        compared, and constants that were refilled.
        """
        number, frames = next(self.numbers), [frame for frame, _ in places]
        return {
            "modules": self.models.beside(number, frames),
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
