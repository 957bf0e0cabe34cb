"""How the wrapper reader scales: time and memory from 100 to 10,000 launches, and queries afterwards.

Limits at 10,000 launches (30 MB): 3 s to read, 500 MB of memory, 0.05 s for a query; time per launch may
not grow by more than half from 1,000 to 10,000 launches. For comparison, the greps by which a person finds
out what `ks0` is in a failed assertion, on the same file; they leave the reading of what they print to the
person. Run: `python benchmarks/wrapper_scale.py`.

Measured on two busy cores of a Xeon (processor time; the greps by the clock):

    launches     file    read   memory
         100   0.3 MB  0.02 s    36 MB
       1,000   2.8 MB  0.20 s    46 MB
      10,000  28.4 MB  2.12 s   139 MB

At 10,000 launches a query for a launch or kernel takes 0.1 ms, an assertion 3 ms, a symbol 17 ms, a buffer
38 ms; the greps 248 ms, each time again, and they join nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mcp_server.package import query  # noqa: E402
from mcp_server.package.archive import Package  # noqa: E402
from mcp_server.package.members import FLAT_MODEL, DirectoryContainer, flat_model  # noqa: E402
from mcp_server.package.view import PackageView  # noqa: E402
from mcp_server.package.wrapper import read_wrapper  # noqa: E402
from tests.package.made_wrapper import make_wrapper  # noqa: E402

SIZES = (100, 1_000, 10_000)
LIMIT_S, LIMIT_MB, LIMIT_QUERY_S, LIMIT_GROWTH = 3.0, 500, 0.05, 1.5


def timed(work: Callable[[], object]) -> float:
    """Processor seconds of one call: the machine may be busy with other things."""
    start = time.process_time()
    work()
    return time.process_time() - start


def memory_mb() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def view_of(text: str, directory: Path) -> PackageView:
    """A package that has only a wrapper."""
    (directory / "made.wrapper.cpp").write_text(text, encoding="utf-8")
    (directory / "made.wrapper.so").write_bytes(b"")
    container = DirectoryContainer(directory, recursive=False)
    models = flat_model(container)
    return PackageView(Package(directory, container, tuple(models), models[FLAT_MODEL]))


def queries(view: PackageView, launches: int) -> dict[str, float]:
    """Seconds of each kind of query, the second time that it is asked: what it needs is kept."""
    kernel = f"triton_poi_fused_add_mul_{launches // 2 + 1}"
    asked: dict[str, Callable[[], object]] = {
        "launch": lambda: query.launch_facts(view, [launches // 2]),
        "kernel": lambda: query.kernel_fact(view, kernel),
        "buffer": lambda: query.buffer_fact(view, f"buf{launches // 2}"),
        "symbol": lambda: query.symbol_fact(view, "s77"),
        "assertion": lambda: query.assertion_facts(view, "0 <= tmp4 < ks0", None, None, kernel),
    }
    for ask in asked.values():
        ask()
    return {name: timed(ask) for name, ask in asked.items()}


def grep_recipe(file: Path, kernel: str) -> float:
    """Wall seconds of finding a check, its kernel's call, the symbol and the input by hand."""
    patterns = ["0 <= tmp4 < ks0", f"call_{kernel}(", "int64_t s77 =", "inputs_info_["]
    start = time.perf_counter()
    for pattern in patterns:
        subprocess.run(["grep", "-nF", pattern, str(file)], stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def main() -> int:
    per_launch = {}
    for size in SIZES:
        text = make_wrapper(size)
        seconds = timed(partial(read_wrapper, text))
        per_launch[size] = seconds / size
        print(f"{size:6} launches, {len(text) / 1e6:5.1f} MB: {seconds:6.3f} s, at most {memory_mb():.0f} MB")
    with tempfile.TemporaryDirectory() as directory:
        view = view_of(text, Path(directory))
        view.wrapper, view.flow  # noqa: B018
        asked = queries(view, SIZES[-1])
        by_hand = grep_recipe(Path(directory) / "made.wrapper.cpp", "triton_poi_fused_add_mul_5001")
    for name, took in asked.items():
        print(f"query by {name}: {took * 1000:.1f} ms")
    print(f"grep recipe: {by_hand * 1000:.0f} ms each time, without the join")
    failures = [
        f"read {seconds:.2f} s" if seconds > LIMIT_S else "",
        f"memory {memory_mb():.0f} MB" if memory_mb() > LIMIT_MB else "",
        f"query {max(asked.values()):.3f} s" if max(asked.values()) > LIMIT_QUERY_S else "",
        "not linear" if per_launch[SIZES[-1]] > LIMIT_GROWTH * per_launch[SIZES[1]] else "",
    ]
    over = [failure for failure in failures if failure]
    print("over the limit: " + ", ".join(over) if over else "within the limits")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
