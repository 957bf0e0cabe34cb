"""The capture hook: which functions of torch are watched, per module.

All ways of loading and calling end in the classes of `torch._C._aoti` (2.8-2.15), so those are wrapped;
`AOTICompiledModel.__call__` is wrapped too: it alone sees the tree and the arguments that are no tensors, and
`load_package`: what it refuses itself never gets to a loader.
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
CONSTANT_METHODS = ("load_constants", "update_constant_buffer", "update_constant_buffer_from_cpu")


class Hook:
    """One per process; `attach` is called after each watched module was executed."""

    def __init__(self, directory: str) -> None:
        self.journal = Journal(directory)
        self.calls = Calls(self.journal, CaptureStore(self.journal))
        self.compiles = Compiles(self.calls)
        self.wrap = partial(wrap, self.journal)
        self.wrap(sys, "exit", self.compiles.exiting)
        self.wrap(subprocess.Popen, "__init__", self.calls.starting)
        atexit.register(self._exit)
        os.register_at_fork(after_in_child=self._forked)
        printed = sys.excepthook

        def look(kind: Any, error: BaseException, trace: Any) -> None:
            """Look at an exception that nobody caught before it is printed as usual."""
            safely(self.journal, self.compiles.ended, error)
            printed(kind, error, trace)

        sys.excepthook = look

    def _forked(self) -> None:
        """A thread of the parent may have locked its journal, and its files are not ours to delete."""
        self.journal.lock = threading.Lock()
        self.calls.store.forget()

    def _exit(self) -> None:
        """Journal an orderly end, to tell it from a crash, in processes that did something."""
        if self.journal.pid == os.getpid():
            self.journal.event("exit")

    def torch(self, torch: Any) -> None:
        calls, streams = self.calls, self.calls.memory.streams
        for owner in (getattr(torch._C._aoti, name) for name in RUNNERS if hasattr(torch._C._aoti, name)):
            self.wrap(owner, "__init__", calls.loading)
            for method in ("run", "boxed_run"):
                self.wrap(owner, method, calls.calling)
            for method in CONSTANT_METHODS:
                self.wrap(owner, method, partial(calls.updating, method))

        def entered(*_args: Any, **_kwargs: Any) -> None:
            """A second stream exists: start recording stream waits."""
            streams.several = True
            for owner, name, before in waits(torch, streams.pending_uses):
                self.wrap(owner, name, before)

        for name in ("allclose", "equal"):
            self.wrap(torch, name, self.compiles.comparisons.comparing)
        self.wrap(torch.cuda.StreamContext, "__init__", entered)
        self.wrap(torch.cuda.CUDAGraph, "replay", streams.replaying)

    def inductor(self, module: Any) -> None:
        for name in ("aoti_compile_and_package", "aot_compile"):
            self.wrap(module, name, partial(self.compiles.compiling, name))

    def compiled_model(self, module: Any) -> None:
        owner = getattr(module, "AOTICompiledModel", None)
        if owner is not None:
            self.wrap(owner, "__call__", self.calls.entering)

    def package(self, module: Any) -> None:
        self.compiled_model(module)
        self.wrap(module, "package_aoti", self.compiles.packaging)
        self.wrap(module, "load_package", self.calls.opening)

    def export(self, module: Any) -> None:
        safely(self.journal, keep_lines)
        self.wrap(module, "export", self.compiles.exporting)

    def testing(self, module: Any) -> None:
        self.wrap(module, "assert_close", self.compiles.comparisons.asserting)


_hook: list[Hook] = []
_lock = threading.Lock()

ATTACH: dict[str, Callable[[Hook, Any], None]] = {
    "torch": Hook.torch,
    "torch._inductor": Hook.inductor,
    "torch.export": Hook.export,
    "torch.testing": Hook.testing,
    "torch.export.pt2_archive._package": Hook.compiled_model,
    "torch._inductor.package.package": Hook.package,
}


def attach(name: str) -> None:
    """Wrap what the just executed module `name` has; what came before torch was complete waits for it."""
    torch = sys.modules.get("torch")
    # While torch is still being imported, the hook's own imports would break that.
    importing = bool(getattr(getattr(torch, "__spec__", None), "_initializing", False))
    if not hasattr(torch, "_C") or (name != "torch" and importing):
        return
    with _lock:
        if not _hook:
            _hook.append(Hook(os.environ["AOTI_DEBUG_CAPTURE"]))
            if not faulthandler.is_enabled():  # a crash between calls then shows its line, too
                faulthandler.enable(2)
    for watched in ATTACH if name == "torch" else (name,):
        if watched in sys.modules:
            ATTACH[watched](_hook[0], sys.modules[watched])
