"""The capture hook: which functions of torch are watched, by module.

All ways of loading and calling end in the classes of `torch._C._aoti` (2.8-2.15), so these are wrapped.
`AOTICompiledModel.__call__` is also wrapped, because only it sees the tree and non-tensor arguments, and so
is `load_package`, because packages that it rejects never reach a loader.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import subprocess
import sys
import threading
from functools import partial
from typing import Any, Callable

from .calls import Calls
from .compiles import Compiles, keep_lines
from .journal import CaptureStore, Journal, safely, wrap
from .streams import waits

DEVICES = ("Cpu", "Cuda", "Xpu", "Mps")
RUNNERS = ("AOTIModelPackageLoader", *("AOTIModelContainerRunner" + device for device in DEVICES))
NUMPY = ("assert_allclose", "assert_array_almost_equal", "assert_array_equal")
COMPILES = ("aoti_compile_and_package", "aot_compile")
CONSTANT_METHODS = ("load_constants", "update_constant_buffer", "update_constant_buffer_from_cpu")


class Hook:
    """The hook of a process; `attach` is called after each watched module has been executed."""

    def __init__(self, directory: str) -> None:
        self.journal = Journal(directory)
        self.calls = Calls(self.journal, CaptureStore(self.journal))
        self.compiles = Compiles(self.calls)
        self.wrap = partial(wrap, self.journal)
        self.wrap(sys, "exit", self.compiles.exiting)
        self.wrap(subprocess.Popen, "__init__", self.calls.starting)
        calls, compiles = self.calls, self.compiles
        model = ("AOTICompiledModel", "__call__", calls.entering)
        # By module: the owner of the function ("" for the module itself), the function, and its hook.
        self.watched: dict[str, list[tuple[str, str, Callable[..., Any]]]] = {
            "torch": [("", name, compiles.comparisons.comparing) for name in ("allclose", "equal")],
            "torch._inductor": [("", name, partial(compiles.compiling, name)) for name in COMPILES],
            "torch.export": [("", "export", compiles.exporting)],
            "torch.testing": [("", "assert_close", compiles.comparisons.asserting)],
            "numpy.testing": [("", name, compiles.comparisons.asserting) for name in NUMPY],
            "torch.export.pt2_archive._package": [model],
            "torch._inductor.package.package": [
                *(model, ("", "package_aoti", compiles.packaging), ("", "load_package", calls.opening))
            ],
        }
        atexit.register(self._exit)
        os.register_at_fork(after_in_child=self._forked)
        printed = sys.excepthook

        def look(kind: Any, error: BaseException, trace: Any) -> None:
            """Handle an uncaught exception before it is printed as usual."""
            faulthandler.cancel_dump_traceback_later()  # what the hook does now is not a hang
            safely(self.journal, self.compiles.ended, error)
            printed(kind, error, trace)

        sys.excepthook = look

    def _forked(self) -> None:
        """Reset in a forked child: a thread of the parent may hold the lock. The files are the parent's."""
        self.journal.lock = threading.Lock()
        self.calls.store.forget()

    def _exit(self) -> None:
        """Journal the orderly end of a process that has a journal. A crash leaves no `exit`."""
        if self.journal.pid == os.getpid():
            safely(self.journal, self.compiles.drifted)  # `raise SystemExit` reaches no other hook
            safely(self.journal, self.compiles.comparisons.left)
            self.journal.event("exit")
            # These come last, because their calls in eager mode may crash.
            safely(self.journal, self.compiles.widen)
            safely(self.journal, self.compiles.tell_state, True)
            safely(self.journal, self.compiles.tell_loops)

    def attach(self, name: str, module: Any) -> None:
        """Wrap the watched functions of the module that was just executed."""
        if name == "torch":
            self._torch(module)
        elif name == "torch.export":
            safely(self.journal, keep_lines)
        for owner, function, hook in self.watched[name]:
            self.wrap(getattr(module, owner, None) if owner else module, function, hook)

    def _torch(self, torch: Any) -> None:
        calls, streams = self.calls, self.calls.memory.streams
        for owner in (getattr(torch._C._aoti, name) for name in RUNNERS if hasattr(torch._C._aoti, name)):
            self.wrap(owner, "__init__", calls.loading)
            for method in ("run", "boxed_run"):
                self.wrap(owner, method, calls.calling)
            for method in CONSTANT_METHODS:
                self.wrap(owner, method, partial(calls.updating, method))

        def entered(*_args: Any, **_kwargs: Any) -> None:
            """Start recording stream waits, since a second stream exists."""
            streams.several = True
            for owner, name, before in waits(torch, streams.pending_uses):
                self.wrap(owner, name, before)

        self.wrap(torch.nn.Module, "load_state_dict", self.compiles.loading_weights)
        self.wrap(torch.cuda.StreamContext, "__init__", entered)
        self.wrap(torch.cuda.CUDAGraph, "replay", streams.replaying)


_hook: list[Hook] = []
_lock = threading.Lock()


def attach(name: str) -> None:
    """Wrap the functions of a module when both the module and torch are imported."""
    torch = sys.modules.get("torch")
    # While torch is being imported, the hook's own imports would break the import.
    importing = bool(getattr(getattr(torch, "__spec__", None), "_initializing", False))
    if not hasattr(torch, "_C") or (name != "torch" and importing):
        return
    with _lock:
        if not _hook:
            _hook.append(Hook(os.environ["AOTI_DEBUG_CAPTURE"]))
            if not faulthandler.is_enabled():  # let a crash show its line
                faulthandler.enable(2)
    for watched in _hook[0].watched if name == "torch" else (name,):
        if watched in sys.modules:
            _hook[0].attach(watched, sys.modules[watched])
