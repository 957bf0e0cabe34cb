"""What the tools need from a machine: what is there, what is missing, and how to get it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mcp_server import versions
from mcp_server.interpreter import interpreter_help
from mcp_server.model import Record
from mcp_server.tools.machine import Machine

Standing = Literal["ok", "missing", "limited"]

ENOUGH_TEMP_BYTES = 2 << 30


class Need(Record):
    """One thing: `essential` ones are needed for any workload, the others for what `for_what` says."""

    name: str
    standing: Standing
    found: str
    for_what: str
    how: str = ""
    essential: bool = False


class Checkup(Record):
    """The answer of `doctor`."""

    summary: str
    needs: list[Need]
    unknown: list[str]

    @property
    def healthy(self) -> bool:
        return all(need.standing == "ok" for need in self.needs if need.essential)


def checkup(machine: Machine) -> Checkup:
    """Judge a machine's facts."""
    needs = [need(machine) for need in _NEEDS]
    missing = [need.name for need in needs if need.standing != "ok"]
    summary = f"missing or limited: {', '.join(missing)}" if missing else "everything is there"
    return Checkup(summary=summary, needs=needs, unknown=machine.unknown)


def _torch(machine: Machine) -> Need:
    found = f"{machine.torch} in {machine.python}" if machine.torch else f"none in {machine.python}"
    standing: Standing = (
        "missing" if not machine.torch else "ok" if versions.is_supported(machine.torch) else "limited"
    )
    how = {
        "missing": f"{interpreter_help()}; or install torch there (https://pytorch.org/get-started)",
        "limited": f"tested with torch {versions.RANGE}",
    }.get(standing, "")
    return Need(
        name="torch",
        standing=standing,
        found=found,
        for_what="every run and compile",
        how=how,
        essential=True,
    )


def _compiler(machine: Machine) -> Need:
    compiler = machine.compiler
    standing: Standing = "ok" if compiler.works and compiler.links_cxx_runtime else "limited"
    how = (
        ""
        if standing == "ok"
        else "compile with CXX set to a g++ that links libstdc++.so.6, such as /usr/bin/g++"
    )
    if not compiler.works:
        standing, how = "missing", "apt-get install g++, or set CXX"
    found = f"{compiler.path} {compiler.version or compiler.error or ''}".strip()
    return Need(
        name="C++ compiler",
        standing=standing,
        found=found,
        for_what="compiling, and instrumenting packages",
        how=how,
        essential=True,
    )


def _gpu(machine: Machine) -> Need:
    names = ", ".join(gpu.name for gpu in machine.gpus)
    found = names or machine.cuda_problem or "no GPU is visible"
    how = (
        ""
        if names
        else "on a GPU machine: its driver, and a torch built for CUDA; not needed for CPU packages"
    )
    standing: Standing = "ok" if names else "missing"
    return Need(name="GPU", standing=standing, found=found, for_what="CUDA packages", how=how)


def _triton(machine: Machine) -> Need:
    standing: Standing = "ok" if machine.triton else "missing"
    how = "" if machine.triton else "pip install triton, in the same environment as torch"
    found = machine.triton or "none"
    return Need(name="triton", standing=standing, found=found, for_what="compiling for CUDA", how=how)


def _temp(machine: Machine) -> Need:
    free = machine.temp_free_bytes
    enough = free is None or free >= ENOUGH_TEMP_BYTES
    found = f"{machine.temp_directory}, " + (
        "free space unknown" if free is None else f"{free >> 20} MiB free"
    )
    how = "" if enough else "set TMPDIR to a directory with at least 2 GiB free"
    standing: Standing = "ok" if enough else "limited"
    return Need(name="temporary space", standing=standing, found=found, for_what="loading packages", how=how)


@dataclass(frozen=True)
class _Tool:
    """A program of the machine."""

    name: str
    for_what: str
    how: str

    def __call__(self, machine: Machine) -> Need:
        path = machine.tools.get(self.name)
        standing: Standing = "ok" if path else "missing"
        return Need(
            name=self.name,
            standing=standing,
            found=path or "none",
            for_what=self.for_what,
            how="" if path else self.how,
        )


_NEEDS: tuple[Callable[[Machine], Need], ...] = (
    _torch,
    _compiler,
    _temp,
    _gpu,
    _triton,
    _Tool(
        "compute-sanitizer",
        "locating illegal accesses on a GPU",
        "CUDA toolkit, or conda install -c nvidia cuda-sanitizer-api",
    ),
    _Tool("cuda-gdb", "reading GPU core dumps", "CUDA toolkit, or conda install -c nvidia cuda-gdb"),
    _Tool("gdb", "native stacks of crashed and hung processes", "apt-get install gdb"),
)
