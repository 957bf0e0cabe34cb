"""What the reader says, against what models print while they run."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.launches import Launch
from mcp_server.package.statements import evaluate
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.conftest import CACHE, ROOT, torch_environment

NAMES = ("attention", "branch", "unbacked", "views")
# The branch that the sample input takes.
BRANCH_TAKEN = {"branch": "else"}
_BLOCK = re.compile(r"\[  (before|after)_launch - (\S+) - (\w+)  \]:\n(.*?)(?=\n\[  |\Z)", re.S)
# The printer names some shims by the operator behind them.
_OPERATOR = re.compile(r"at::_ops::(\w+)::call")
_SIZE = re.compile(r"^Size: \[(.*)\]$", re.M)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def printed() -> Path:
    """Directory of packages with the value printer in them, and of what each printed on its sample input."""
    where = CACHE / "printed"
    models = ROOT / "tests" / "zoo" / "models.py"
    last = where / f"{NAMES[-1]}.txt"
    if not last.exists() or last.stat().st_mtime < models.stat().st_mtime:
        where.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-W", "ignore", "-m", "tests.package.printed", str(where), *NAMES]
        environment = {**torch_environment(), "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER": "2"}
        done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    return where


def read(printed: Path, name: str) -> tuple[Wrapper, list[tuple[str, str, str, str]]]:
    """The wrapper, and (before or after, kernel, tensor, block) of everything printed around launches."""
    package = open_package(printed / f"{name}.pt2")
    text = (printed / f"{name}.txt").read_text(encoding="utf-8", errors="replace")
    blocks = [
        (moment, _OPERATOR.sub(r"aoti_torch_cpu_\1", kernel), tensor, block.strip())
        for moment, kernel, tensor, block in _BLOCK.findall(text)
    ]
    return read_wrapper(package.wrapper_text, package.kernel_text), blocks


def printable(launch: Launch) -> list[str]:
    """What the printer of torch 2.13 shows of a launch: plain arguments named buf… and arg…, each use."""
    return [
        a.target
        for a in launch.tensors
        if a.target
        and a.target.startswith(("buf", "arg"))
        and (launch.kind == "cpp" or a.expression == a.target)
        and launch.kind != "proxy_executor"
        and (launch.checked or launch.kind == "cpp")
    ]


def executed(wrapper: Wrapper, taken: str | None) -> list[Launch]:
    """The launches outside of branches, and those of the branch that was taken."""
    return [n for n in wrapper.launches if not n.context or n.context[0].header.startswith(taken or "?")]


@pytest.mark.parametrize("name", NAMES)
def test_launches_and_arguments_come_in_the_order_of_the_run(printed: Path, name: str) -> None:
    """Kernels and tensor arguments are printed by the running model in exactly the order that was read."""
    wrapper, blocks = read(printed, name)
    seen = [(kernel, tensor) for moment, kernel, tensor, _ in blocks if moment == "before"]
    launches = executed(wrapper, BRANCH_TAKEN.get(name))
    expected = [(launch.kernel, tensor) for launch in launches for tensor in printable(launch)]
    assert seen == expected
    assert len(seen) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_the_run(printed: Path, name: str) -> None:
    """Sizes in the wrapper, evaluated for the symbols of this input, are the printed sizes."""
    wrapper, blocks = read(printed, name)
    values = {"s77": 8}
    checked = 0
    for _, _, tensor, block in blocks:
        sizes = wrapper.buffers[tensor].sizes
        printed_size = _SIZE.search(block)
        if sizes is None or printed_size is None:
            continue
        real = [int(part) for part in printed_size[1].split(",") if part.strip()]
        expected = [evaluate(part, values) for part in sizes]
        assert len(real) == len(expected)
        assert all(have in (want, None) for have, want in zip(expected, real, strict=True))
        checked += all(have is not None for have in expected)
    assert checked >= 3


@pytest.mark.parametrize("name", NAMES)
def test_what_is_only_read_does_not_change(printed: Path, name: str) -> None:
    """A tensor that a launch only reads prints the same before and after; some written one differs."""
    wrapper, blocks = read(printed, name)
    launches = [n for n in executed(wrapper, BRANCH_TAKEN.get(name)) if printable(n)]
    moments = [list(group) for _, group in groupby(blocks, key=lambda block: block[0])]
    changed = 0
    for launch, before, after in zip(launches, moments[::2], moments[1::2], strict=True):
        for (_, kernel, tensor, old), (_, _, _, new) in zip(before, after, strict=True):
            assert kernel == launch.kernel
            changed += old != new
            if tensor not in launch.writes:
                assert old == new, f"{kernel} changed {tensor}, which it is said to read only"
    assert changed
