"""Compiling with flags: what is built, what is refused, and how a failing compile is told."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.exported import exported_device
from mcp_server.runtime.context import Context
from mcp_server.tools.compile_with_flags import Compiled, compile_with_flags
from tests.conftest import ZooPackage
from tests.zoo.names import thorough

PRINTER = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"


def context_in(directory: Path) -> Context:
    return Context(directory=directory, python=Path(sys.executable))


def compiled(directory: Path, workload: ExportedWorkload, flags: dict[str, object]) -> Compiled:
    async def compile_it() -> Compiled:
        return await compile_with_flags(context_in(directory), workload, flags)

    return anyio.run(compile_it)


def exported(zoo: ZooPackage, name: str) -> Path:
    return zoo(name).with_name(f"{name}.exported.pt2")


@pytest.mark.slow
def test_the_new_package_holds_what_the_flags_ask_for(flagged_ranker: Compiled) -> None:
    """Flags given as variables and as configuration both end up in the generated code."""
    made = flagged_ranker
    assert made.ok and made.failure is None and made.package is not None
    assert made.torch and made.device == "cpu" and made.provenance
    assert sum(made.kernels.values()) == made.launches > 0
    assert [flag.given_as for flag in made.flags] == ["environment", "environment", "config"]
    package = open_package(made.package.path)
    assert 'printf("[ before_launch: ' in package.wrapper_text
    assert "too large" in package.wrapper_text and "too small" not in package.wrapper_text
    assert made.cost.compiles == 1 and made.seconds is not None and made.seconds > 0


@thorough
@pytest.mark.slow
def test_a_compile_without_a_compiler_is_a_result(zoo: ZooPackage, tmp_path: Path) -> None:
    """A broken toolchain ends in a failure that names its family and its line, not in an exception."""
    workload = ExportedWorkload(exported=exported(zoo, "ranker"), env={"CXX": "no-such-compiler"})
    made = compiled(tmp_path, workload, {"TORCHINDUCTOR_VEC_ISA_OK": 1})
    assert not made.ok and made.package is None and made.failure is not None
    assert made.failure.candidates == ["toolchain"]
    log = made.failure.log.read_text().splitlines()
    assert made.failure.text.strip()[:40] in log[made.failure.line - 1]


@pytest.mark.slow
def test_a_flag_that_cannot_act_costs_no_compile(zoo: ZooPackage, tmp_path: Path) -> None:
    """A flag is refused before the compiler starts, by the program's device and the installed torch."""
    workload = ExportedWorkload(exported=exported(zoo, "ranker"))
    with pytest.raises(ProblemError, match="for cuda models only"):
        compiled(tmp_path / "a", workload, {"triton.autotune_at_compile_time": 0})
    with pytest.raises(ProblemError, match="acts at run time"):
        compiled(tmp_path / "b", workload, {"AOTI_RUNTIME_CHECK_INPUTS": 1})
    assert not list(tmp_path.rglob("report.jsonl"))


@pytest.mark.slow
def test_a_package_is_no_exported_program(zoo: ZooPackage, tmp_path: Path) -> None:
    """A compiled package in place of an exported program is a clear error."""
    with pytest.raises(ProblemError, match="an AOTInductor package, not an exported program"):
        compiled(tmp_path, ExportedWorkload(exported=zoo("ranker")), {})


@pytest.mark.slow
def test_the_device_is_read_from_the_program(zoo: ZooPackage, tmp_path: Path) -> None:
    """The graph's tensors tell the device; a file of another kind tells nothing."""
    assert exported_device(exported(zoo, "ranker")) == "cpu"
    assert exported_device(zoo("ranker")) is None
    other = tmp_path / "x.pt2"
    other.write_bytes(b"no zip archive")
    assert exported_device(other) is None


def test_a_program_on_two_devices_counts_as_cuda(tmp_path: Path) -> None:
    """One tensor on a GPU is enough for flags of CUDA to act."""
    devices = [{"device": {"type": kind, "index": None}} for kind in ("cpu", "cuda")]
    path = tmp_path / "mixed.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mixed/models/model.json", json.dumps({"tensor_values": devices}))
    assert exported_device(path) == "cuda"
