"""What the capture hook costs a call: plain, with the inputs saved only, and with the whole hook.

    python benchmarks/capture_overhead.py [--rows 16,256,2048] [--calls 300] [--json FILE]

Compiles one small model, then calls it with different numbers of rows. The three kinds of call take turns in
one process on one thread, and the median of each one's processor time is printed, so that a busy machine
does not count. Target: the whole hook costs at most 10 % more than calling and saving the inputs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

WORKER = Path(__file__).resolve().parent.parent / "mcp_server" / "worker"
PACKAGE = "capture_hook"
WIDTH, LAYERS = 256, 4

Call = Callable[[torch.Tensor], Any]


def main() -> None:
    """Compile, measure each number of rows, print."""
    asked = _arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        package = _compile(directory)
        calls = {
            "plain": _plain(package),
            "saving": _saving(package, directory),
            "hook": _hooked(package, directory),
        }
        rows = [_measure(calls, int(count), asked.calls) for count in asked.rows.split(",")]
    print(f"{'rows':>6}{'plain':>12}{'saving':>12}{'hook':>12}  beyond saving")
    for row in rows:
        beyond = (row["hook"] - row["saving"]) / row["saving"]
        micro = "".join(f"{row[kind] * 1e6:9.0f} us" for kind in calls)
        print(f"{row['rows']:>6.0f}{micro}  {beyond:.1%} ({(row['hook'] - row['saving']) * 1e6:.0f} us)")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="16,256,2048", help="rows of the input, with commas between")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _compile(directory: Path) -> str:
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers)
    shapes = ({0: torch.export.Dim("rows", min=2, max=65536)},)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(8, WIDTH),), dynamic_shapes=shapes)
        path = str(directory / "model.pt2")
        return str(torch._inductor.aoti_compile_and_package(program, package_path=path))


def _plain(package: str) -> Call:
    model = torch._inductor.aoti_load_package(package)
    return lambda x: model(x)


def _saving(package: str, directory: Path) -> Call:
    """Saves the inputs as the hook does, and keeps those of the last two calls."""
    model, store = torch._inductor.aoti_load_package(package), _store(directory / "saving")
    layout = _module("layout")

    def call(x: torch.Tensor) -> Any:
        path = store.save("inputs", time.monotonic_ns(), layout.pack((x,), {}, store.cap))
        result = model(x)
        store.retire(path, 0, False)
        return result

    return call


def _hooked(package: str, directory: Path) -> Call:
    """A loader whose methods the hook has wrapped, on a class of its own: the others stay as they are."""
    hook = _module("hook").Hook(_fresh(directory / "hook"))
    raw = torch._C._aoti.AOTIModelPackageLoader

    class Loader:
        def __init__(self, path: str) -> None:
            self.inner = raw(path, "model", False, 1, -1)

        def get_constant_fqns(self) -> list[str]:
            return list(self.inner.get_constant_fqns())

        def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return list(self.inner.run(inputs))

        boxed_run = run

    Loader.__name__ = "AOTIModelPackageLoader"
    hook._runner(Loader)
    loader = Loader(package)
    spec = torch.utils._pytree

    class Model:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return loader.run(spec.tree_flatten((args, kwargs))[0])

    _module("around").wrap(hook.journal, Model, "__call__", hook.calls.entering, hook.calls.leaving)
    model = Model()
    return lambda x: model(x)


def _fresh(directory: Path) -> str:
    directory.mkdir()
    return str(directory)


def _store(directory: Path) -> Any:
    return _module("storehouse").Storehouse(_module("journal").Journal(_fresh(directory)))


def _module(name: str) -> Any:
    """A module of the worker, which runs where this project is not installed."""
    if PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, WORKER / "__init__.py", submodule_search_locations=[str(WORKER)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(f"{PACKAGE}.{name}")


def _measure(calls: dict[str, Call], rows: int, count: int) -> dict[str, float]:
    """Median processor seconds of each kind of call."""
    x = torch.randn(rows, WIDTH)
    taken: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(count):
        for kind, call in calls.items():
            start = time.thread_time()
            call(x)
            taken[kind].append(time.thread_time() - start)
    return {"rows": rows, **{kind: statistics.median(times) for kind, times in taken.items()}}


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    main()
