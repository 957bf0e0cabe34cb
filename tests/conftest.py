"""Fixtures shared by all tests: the zoo's packages, compiled once."""

import atexit
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from rich.console import Console

from mcp_server.runtime.context import Context
from tests.builder import Builder
from tests.served import end_server
from tests.zoo.names import THOROUGH, few, thorough
from tools.made import MADE

ROOT = Path(__file__).resolve().parent.parent
CACHE = MADE / "zoo"

Zoo = Callable[[str], Path]

# Scripts compile like the zoo: one cache with one precompiled header, and no test of the CPU's ISA.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# The wrapper is most of a compile. Optimizing it takes a quarter of the time, and no test needs it.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
# Code for one thread has no OpenMP region, and fails in other ways.
os.environ.pop("OMP_NUM_THREADS", None)
# All tests share one cache of rebuilt packages.
os.environ.setdefault("AOTI_DEBUG_CACHE", str(MADE / "instrumented"))

set_hypothesis_home_dir(MADE / "hypothesis")

# CI tries the same examples every time, and most are tried only at night. No example has a time limit,
# because other tests use the machine at the same time.
BUSY = [HealthCheck.too_slow]  # generating examples is slow while other jobs use the cores
settings.register_profile("unhurried", deadline=None, max_examples=few(100), suppress_health_check=BUSY)
settings.register_profile("repeatable", settings.get_profile("unhurried"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "unhurried")


def _let_children_hear_signals() -> None:
    """Give this process handlers that do nothing for signals that it ignores, so that children do not ignore
    them.

    In the background or under nohup, this process ignores SIGINT or SIGHUP. `exec` resets a handler to the
    default, but an ignored signal stays ignored (execve(2)), and tests send both signals to children.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_let_children_hear_signals()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Also mark as slow the tests that only `make test-thorough` runs."""
    if thorough.mark in item.iter_markers():
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with the most slow tests first, so that no test process ends much later than the others."""
    nightly = {item for item in items if thorough.mark in item.iter_markers()} if not THOROUGH else set()
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") and item not in nightly)
    items.sort(key=lambda item: -slow[item.path])


def pytest_sessionfinish() -> None:
    end_server()


def torch_environment() -> dict[str, str]:
    """Return variables for quick compiles: trust the CPU's ISA, and keep the Inductor cache."""
    return {
        **os.environ,
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "INDUCTOR_PROVENANCE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"),
        "PYTHONPATH": str(ROOT),
    }


def example() -> Path:
    """The package of examples/ranker.py as `make demo` compiles it, beside `good.pt` and `bad.pt`."""
    from examples import demo

    demo.DIRECTORY.mkdir(parents=True, exist_ok=True)
    with demo.PACKAGE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        demo.compile_ranker(Console(quiet=True))
    return demo.PACKAGE


def made_once(target: Path, sources: Sequence[Path], make: Callable[[], None], *flags: str) -> Path:
    """`target`, made by `make` unless the same sources, flags and torch have made it before.

    Contents of sources count, because a fresh checkout changes their times. A package refers to lines of its
    sources, which must not change. Parallel test processes share the target: one makes it, others wait.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    stamp = target.with_suffix(".made-of")
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        now, *made_of = stamp.read_text().splitlines() if stamp.exists() and target.exists() else [""]
        if not now == _digest(sources, flags) == _digest(list(map(Path, made_of)), flags):
            stamp.unlink(missing_ok=True)
            make()
            stamp.write_text("\n".join(map(str, [_digest(sources, flags), *sources])))
    return target


def _digest(sources: Sequence[Path], flags: Sequence[str]) -> str:
    found = hashlib.sha256(repr((version("torch"), flags)).encode())
    for path in sources:
        found.update(path.read_bytes() if path.exists() else b"")
    return found.hexdigest()


def compiled_once(package: Path, module: str, *words: str, more: Mapping[str, str] = {}) -> Path:
    """`package`, made by `python -m MODULE WORDS FOLDER` if MODULE or its `models.py` has changed.

    `more` are further variables for the compile.
    """
    source, printed = ROOT / f"{module.replace('.', '/')}.py", package.with_suffix(".printed.txt")

    def compile_() -> None:
        status = builder(*sorted(more.items())).run(module, (*words, str(package.parent)), printed)
        assert status == 0, printed.read_text(errors="replace")[-4000:]

    level = os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"]
    sources = [source, source.with_name("models.py")]
    return made_once(package, sources, compile_, level, *map(str, sorted(more.items())))


def host_of(source: Path) -> Path:
    """A C++ program, compiled once and linked with the libraries of the installed torch."""
    found = find_spec("torch")
    assert found is not None and found.origin is not None
    torch, target = Path(found.origin).parent, MADE / "hosts" / f"{source.parent.name}-{source.stem}"
    argv = (
        *("g++", "-std=c++20", "-g", "-O0", "-w", "-DAT_PER_OPERATOR_HEADERS"),
        *(str(source), "-o", str(target)),
        *(f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"),
        *(f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-Wl,--no-as-needed"),
        *("-ltorch", "-ltorch_cpu", "-lc10", "-lpthread"),
    )
    return made_once(target, [source], lambda: _run_compiler(argv), *argv)


def _run_compiler(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@cache
def builder(*more: tuple[str, str]) -> Builder:
    """This test process's builder with these further variables, which torch reads when imported."""
    started = Builder({**torch_environment(), **dict(more)}, ROOT)
    atexit.register(started.end)
    _STARTED.append(started)
    return started


_STARTED: list[Builder] = []


@pytest.fixture
def no_shared_processes() -> None:
    """End the processes that tests share, so that a test can count its own children."""
    end_server()
    while _STARTED:
        _STARTED.pop().end()
    builder.cache_clear()


def build(name: str) -> Path:
    """The package of the zoo's model `name`."""
    return compiled_once(CACHE / f"{name}.pt2", "tests.zoo.build", name)


@pytest.fixture(scope="session")
def zoo() -> Zoo:
    """A function from a zoo model to its package, beside `NAME.inputs.pt` and `NAME.exported.pt2`."""
    return build


@pytest.fixture(scope="session")
def masked() -> Path:
    """masked.pt2 of tests/interventions/models.py, with its inputs beside it."""
    return compiled_once(MADE / "interventions" / "masked.pt2", "tests.interventions.models")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter that finds no torch."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S -E "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """The context of a tool that works in the test's folder."""
    return Context(tmp_path, Path(sys.executable))


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, the event loop of the server."""
    return "asyncio"


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray head without processors, so that cases run on nodes that a test adds."""
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
