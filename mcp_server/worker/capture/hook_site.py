"""The entry point of the capture hook: copied as `sitecustomize.py` into the first directory of PYTHONPATH.

Python runs it at start. It imports nothing heavy, waits for torch with an import hook, leaves no trace on
`sys.path`, and then runs the `sitecustomize` that would have run without it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "_aoti_debug_worker"
WATCHED = frozenset(
    {
        "torch",
        "torch._inductor",
        "torch.export",
        "torch.testing",
        "numpy.testing",
        "torch.export.pt2_archive._package",
        "torch._inductor.package.package",
    }
)


class Watcher:
    """A finder that finds nothing itself; it makes `attached` run after a watched module is executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in WATCHED:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not Watcher and find is not None else None
            if spec is not None:
                _follow(name, spec.loader)
                return spec
        return None


def _follow(name: str, loader: Any) -> None:
    """Let this loader object call `attached` after `exec_module`. Do not change its type."""
    execute: Any = getattr(loader, "exec_module", None)

    def exec_module(module: Any) -> None:
        if name == "torch":
            _execute_torch(execute, module)
        else:
            execute(module)
        attached(name)

    if execute is not None and hasattr(loader, "__dict__"):
        loader.exec_module = exec_module


def _execute_torch(execute: Any, module: Any) -> None:
    """Import torch. Meanwhile a marker file exists, because the journal begins only afterwards."""
    from contextlib import suppress  # late, because torch imports it anyway

    mark = os.path.join(os.environ["AOTI_DEBUG_CAPTURE"], "importing-{}".format(os.getpid()))
    with suppress(OSError), open(mark, "w"):
        pass
    try:
        execute(module)
    finally:
        with suppress(OSError):
            os.unlink(mark)


def attached(name: str) -> None:
    """Let the hook wrap the functions of module `name`. No error here may reach the program."""
    import importlib

    try:
        if PACKAGE not in sys.modules:
            spec = PathFinder.find_spec("main", [os.environ["AOTI_DEBUG_HOOK"]])
            _execute(spec, "_aoti_debug_main").register_as_package()
        importlib.import_module(PACKAGE + ".capture.hook").attach(name)
    except Exception as error:
        sys.stderr.write("aoti-debug: no capture in {}: {!r}\n".format(name, error))


def _execute(spec: Any, name: str) -> Any:
    """Execute a spec as a module. `importlib.util` has this function, but imports a dozen modules."""
    from importlib import _bootstrap

    module = _bootstrap.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def read_changed(file: str, changed: str) -> None:
    """Make Python run the text of `changed` as `file`, a script or module, and give its lines to Triton."""
    import linecache
    from importlib.machinery import ModuleSpec, SourceFileLoader

    with open(changed, encoding="utf-8") as text:
        lines = text.readlines()
    real, own = os.path.realpath(file), SourceFileLoader.get_code
    for name in (file, real):
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)  # None: never stale

    def get_code(self: Any, fullname: str) -> Any:
        if os.path.realpath(self.path) != real:
            return own(self, fullname)
        if fullname == "__main__":
            sys.path[0] = os.path.dirname(real)  # as Python does for a script
        return compile("".join(lines), self.path, "exec", dont_inherit=True)

    class Script:
        @staticmethod
        def find_spec(name: str, _target: Any = None) -> Any:
            spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file)
            spec.has_location = True
            return spec if name == "__main__" else None

    def importer(path: str) -> Any:
        # Python asks for an importer of the script's path. If there is one, Python runs the importer's
        # `__main__`.
        if os.path.realpath(path) != real:
            raise ImportError(path)
        return Script

    loader: Any = SourceFileLoader
    loader.get_code = get_code
    sys.path_hooks.insert(0, importer)


def start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    if os.environ.get("AOTI_DEBUG_CHANGED"):
        read_changed(*os.environ["AOTI_DEBUG_CHANGED"].split(os.pathsep))
    if os.environ.get("AOTI_DEBUG_CAPTURE"):
        # Print every thread's Python stack late or on request, even if the GIL is held.
        after, request = os.environ.get("AOTI_DEBUG_STACKS_AFTER"), os.environ.get("AOTI_DEBUG_STACKS_SIGNAL")
        if after or request:
            import faulthandler

            if after:
                import time

                spared = float(os.environ.get("AOTI_DEBUG_SPARED", "0"))
                os.environ.setdefault("AOTI_DEBUG_UNTIL", str(time.time() + 0.8 * float(after) + spared))
                faulthandler.dump_traceback_later(float(after), exit=False)
            if request:
                faulthandler.register(int(request))
        sys.meta_path.insert(0, Watcher)
        for name in WATCHED & set(sys.modules):
            attached(name)
    # Run the `sitecustomize` that this file shadows, under its own name.
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and os.path.dirname(spec.origin or "") != here:
        _execute(spec, "sitecustomize")


if __name__ == "sitecustomize":
    start()
