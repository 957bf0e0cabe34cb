"""check_devices on real packages, inputs and interpreters, and packages compared with other machines."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.model import PackageWorkload, ScriptWorkload, TensorSpec, Workload
from mcp_server.package.archive import Package, open_package, read_metadata
from mcp_server.tools.machine import ISA_FLAGS, Compiler, Machine, find_problems, find_tool
from tests.conftest import Zoo
from tests.package.archives import Members, changed, name_ending, without
from tests.support.tools import tool

LIMIT = 10_000  # characters of a result


def checked(directory: Path, workload: Workload | None, python: Path | None = None) -> Any:
    return tool("check_devices", directory, workload, **({"python": python} if python is not None else {}))


def package(path: Path, inputs: Path | list[TensorSpec] | None = None, **more: object) -> PackageWorkload:
    return PackageWorkload.model_validate({"package": path, "inputs": inputs, **more})


@pytest.mark.slow
def test_good_inputs_of_a_file_fit(zoo: Zoo, tmp_path: Path) -> None:
    """The result of a healthy package has machine, package and inputs, and no problem."""
    path = zoo("jagged")
    result = checked(tmp_path, package(path, path.with_name("jagged.inputs.pt")))
    assert result.mismatches == [] and [p for p in result.problems if p.certain] == []
    assert result.machine.torch and result.machine.compiler.works
    assert result.machine.compiler.links_cxx_runtime == "libstdc++.so.6"
    assert result.package is not None and result.package.cxx_runtime == "libstdc++.so.6"
    given = ["float32 [24, 8] on cpu strides (8, 1)", "int64 [8] on cpu strides (1,)"]
    assert [row.given for row in result.inputs] == given
    assert result.inputs[0].range.endswith(": 2..512") and result.unknown == []
    assert len(result.model_dump_json()) < LIMIT


def test_specs_need_no_torch(zoo: Zoo, tmp_path: Path, bare_python: Path) -> None:
    """Without torch, specs are compared, and the result says what is unknown."""
    specs = [TensorSpec(shape=[70, 6], dtype="int64", device="cuda:0")]
    result = checked(tmp_path, package(zoo("ranker"), specs), bare_python)
    assert {m.aspect for m in result.mismatches} == {"device", "range"}
    assert result.machine.torch is None and result.machine.cuda_available is None
    assert len(result.unknown) == 1 and "torch cannot be imported" in result.unknown[0]


def test_a_file_without_torch_is_unknown(zoo: Zoo, tmp_path: Path, bare_python: Path) -> None:
    """Without torch, an inputs file cannot be read. The result says so, and checks the package."""
    path = zoo("ranker")
    result = checked(tmp_path, package(path, path.with_name("ranker.inputs.pt")), bare_python)
    assert result.package is not None and result.mismatches == []
    assert any(text.startswith("inputs: ") for text in result.unknown)


def test_an_unreadable_package_is_a_finding(tmp_path: Path, bare_python: Path) -> None:
    """An unreadable package is a certain problem of category invalid_package, not an error of the tool."""
    path = tmp_path / "broken.pt2"
    path.write_bytes(b"model:")
    result = checked(tmp_path / "job", package(path), bare_python)
    (problem,) = result.problems
    assert problem.category == "invalid_package" and problem.certain
    assert "is not a .pt2" in problem.what and result.package is None and result.inputs == []


def test_without_a_package_the_machine_is_told(tmp_path: Path, bare_python: Path) -> None:
    """Without a package, only the machine is checked, with its compiler."""
    for number, workload in enumerate((None, ScriptWorkload(script=Path(__file__)))):
        result = checked(tmp_path / str(number), workload, bare_python)
        assert result.package is None and "were given" in result.unknown[-1]
        assert (result.machine.compiler.version or "").startswith("gcc version")
        assert result.machine.temp_free_bytes and result.machine.python == str(bare_python)


def test_the_compiler_of_the_workload_is_tried(tmp_path: Path, bare_python: Path, zoo: Zoo) -> None:
    """CXX may have flags, as for Inductor. A static C++ runtime and a missing compiler are problems."""
    built = package(zoo("ranker"), env={"CXX": "g++ -static-libstdc++"})
    static = checked(tmp_path / "a", built, bare_python)
    assert static.machine.compiler.links_cxx_runtime == ""
    assert [p.category for p in static.problems] == ["toolchain"] and "statically" in static.problems[0].what
    missing = checked(tmp_path / "b", package(zoo("ranker"), env={"CXX": "no-such-compiler"}), bare_python)
    assert not missing.machine.compiler.works and missing.machine.compiler.path == "no-such-compiler"


def gpu(capability: str) -> dict[str, object]:
    return {"index": 0, "name": "NVIDIA H200", "capability": capability}


def machine(**changes: object) -> Machine:
    """A machine with one H200 on which everything works, except for `changes`."""
    facts: dict[str, object] = {
        "platform": "linux",
        "machine": "x86_64",
        "cpu_flags": sorted({flag for flags in ISA_FLAGS.values() for flag in flags}),
        "temp_directory": "/tmp",
        "temp_free_bytes": 1 << 40,
        "compiler": Compiler(path="g++", works=True, links_cxx_runtime="libstdc++.so.6"),
        "tools": {},
        "python": sys.executable,
        "torch": "2.11.0+cu130",
        "cuda_available": True,
        "gpus": [gpu("90")],
    }
    return Machine.model_validate({**facts, **changes})


def cuda_package(zoo: Zoo, directory: Path, capability: str = "90") -> Package:
    """Write the CPU package with a CUDA package's metadata, and a tensor on a GPU."""

    def relabel(members: Members) -> None:
        for suffix in (".wrapper_metadata.json", ".kernel_metadata.json"):
            name = name_ending(members, suffix)
            metadata = {**json.loads(members[name]), "AOTI_DEVICE_KEY": "cuda"}
            members[name] = json.dumps({**metadata, "AOTI_COMPUTE_CAPABILITY": capability}).encode()
        members[name_ending(members, ".wrapper.cpp")] += b"// cached_torch_device_type_cuda"

    return open_package(changed(zoo("ranker"), directory / "cuda.pt2", relabel))


Told = list[tuple[str, bool, str]]  # category, certainty, words


@pytest.mark.parametrize(
    ("compiled", "here", "runs"),
    [
        ("90", "90", True),
        ("80", "86", True),
        ("86", "80", False),
        ("90", "100", False),
        ("80", "90", False),
        ("100", "103", True),
    ],
)
def test_the_architecture_of_cubins(zoo: Zoo, tmp_path: Path, compiled: str, here: str, runs: bool) -> None:
    """A cubin needs the same major architecture, and at least the compiled minor one."""
    problems = find_problems(cuda_package(zoo, tmp_path, compiled), machine(gpus=[gpu(here)]))
    assert [p.category for p in problems] == ([] if runs else ["arch_mismatch"])


NO_DRIVER = {"cuda_available": False, "cuda_problem": "Found no NVIDIA driver", "gpus": []}
HERE: list[tuple[str, dict[str, object], int, Told]] = [
    ("cuda", NO_DRIVER, -1, [("environment", True, "Found no NVIDIA driver")]),
    ("cuda", {"cuda_available": None, "gpus": []}, -1, []),
    ("cuda", {}, 3, [("device_mismatch", True, "3")]),
    ("ranker", {}, -1, []),
    ("ranker", {}, 0, [("device_mismatch", True, "")]),
    ("ranker", {"machine": "aarch64", "cpu_flags": []}, -1, [("arch_mismatch", True, "aarch64")]),
    ("ranker", {"cpu_flags": ["fma"]}, -1, [("arch_mismatch", True, "AVX")]),
    ("foreign", {}, -1, [("arch_mismatch", True, "compiled for aarch64")]),
    ("plugin", {}, -1, [("custom_op", False, "aotizoo::halve_rows")]),
    ("plugin", {"temp_free_bytes": 1000}, -1, [("environment", True, ""), ("custom_op", False, "")]),
    ("cut", {}, -1, [("invalid_package", True, "")]),
]


def package_of(kind: str, zoo: Zoo, directory: Path) -> Package:
    """A package: of the zoo, for CUDA, with a library for another processor, or without a library."""
    if kind == "cuda":
        return cuda_package(zoo, directory)
    if kind == "cut":
        return open_package(changed(zoo("ranker"), directory / "cut.pt2", without(".wrapper.so")))
    opened = open_package(zoo("ranker" if kind == "foreign" else kind))
    if kind == "foreign":
        assert opened.library is not None and opened.metadata.machine == "x86_64"
        vars(opened)["library"] = replace(opened.library, machine="aarch64")
    if kind == "ranker" and not {"AVX2", "AVX512"} & set(opened.metadata.isa):
        pytest.skip("compiled on a machine without AVX2")
    return opened


@pytest.mark.parametrize(("kind", "changes", "device_index", "told"), HERE)
def test_what_does_not_fit_this_machine(
    zoo: Zoo, tmp_path: Path, kind: str, changes: dict[str, object], device_index: int, told: Told
) -> None:
    """Driver, device, processor, disk space and operators are compared. An unknown state is no problem."""
    problems = find_problems(package_of(kind, zoo, tmp_path), machine(**changes), device_index=device_index)
    assert [(p.category, p.certain) for p in problems] == [(category, sure) for category, sure, _ in told]
    assert all(words in p.what for p, (_, _, words) in zip(problems, told, strict=True))


def test_old_metadata_has_the_device_only() -> None:
    """torch 2.8 writes one key. Everything else is unknown, and the caller's own keys are ignored."""
    old = read_metadata('{"AOTI_DEVICE_KEY": "cuda", "owner": "search"}')
    assert (old.device, old.machine, old.isa, old.compute_capability) == ("cuda", None, (), None)
    with pytest.raises(ValueError, match="not a JSON object"):
        read_metadata("[]")


def test_a_tool_is_found_in_a_toolkit_and_in_site_packages(tmp_path: Path) -> None:
    """Without one on PATH, it is found below CUDA_HOME, or where a package of the interpreter installs it."""
    wheel = tmp_path / "lib/python3.12/site-packages/nvidia/cu/bin"
    folders = (tmp_path / "toolkit" / "extras" / "cs-tool", wheel)
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "cs-tool").write_text("#!/bin/sh\n")
        (folder / "cs-tool").chmod(0o755)
    python, empty = tmp_path / "bin" / "python", {"PATH": str(tmp_path)}
    assert find_tool("cs-tool", {**empty, "CUDA_HOME": str(tmp_path / "toolkit")}) == folders[0] / "cs-tool"
    assert find_tool("cs-tool", empty, python) == folders[1] / "cs-tool"
    assert find_tool("cs-tool", empty) is None
