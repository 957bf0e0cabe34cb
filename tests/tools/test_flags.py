"""The table of flags: what is rejected, what is set, and agreement with the installed torch."""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.releases.flags import Flags
from benchmarks.releases.trial import Release
from mcp_server.errors import ProblemError
from mcp_server.flags import FLAGS, find, select
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.archive import open_package
from tests.conftest import CACHE, Zoo
from tests.support.tools import tool
from tests.zoo.names import thorough

PRINTER = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"
REFUSED: list[tuple[dict[str, object], dict[str, str], str]] = [
    ({"AOTI_RUNTIME_CHECK_INPUT": 1}, {}, "unknown flag.*AOTI_RUNTIME_CHECK_INPUTS"),
    ({"torchinductor_nan_assert": 1}, {}, "TORCHINDUCTOR_NAN_ASSERTS"),
    ({"AOTI_RUNTIME_CHECK_INPUTS": 1}, {}, "acts at run time.*no recompile"),
    ({"PYTORCH_NO_CUDA_MEMORY_CACHING": 1}, {}, "acts at run time"),
    ({PRINTER: 3}, {"moment": "run"}, "baked into the package"),
    ({"AOT_INDUCTOR_COMPILE_WRAPPER_WITH_O0": 1}, {}, "no torch from 2.8 to 2.15 reads it"),
    ({PRINTER: "4"}, {}, "does not accept.*0, 1, 2 or 3"),
    ({PRINTER: ""}, {}, "does not accept"),
    ({"TORCHINDUCTOR_NAN_ASSERTS": "yes"}, {}, "exactly 0 or 1"),
    ({"TORCHINDUCTOR_NAN_ASSERTS": 1}, {"device": "cpu", "torch_version": "2.11.0"}, "needs torch 2.13"),
    ({"INDUCTOR_PROVENANCE": 1}, {"torch_version": "2.8.0+cpu"}, "needs torch 2.9.*environment"),
    ({"triton.debug_sync_kernel": 1}, {"torch_version": "2.13.0"}, "fails to compile"),
    ({"TORCHINDUCTOR_RUNTIME_TRITON_NAN_ASSERTS": 1}, {"device": "cpu"}, "for cuda models only"),
    ({FILTER: "cpp_fused_0"}, {}, "printer level 2 only"),
    ({FILTER: "cpp_fused_0", PRINTER: 1}, {}, "printer level 2 only"),
    ({"AOTINDUCTOR_REPRO_LEVEL": 3}, {}, "DUMP_AOTI_MINIFIER=1"),
    (
        {"TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": 1},
        {"torch_version": "2.15.0"},
        "TORCHINDUCTOR_CPP_ENABLE_KERNEL_CONTEXT_GUARD=1",
    ),
    (
        {
            "aot_inductor.force_mmap_weights": 1,
            "aot_inductor.package_constants_on_disk_format": "binary_blob",
        },
        {},
        "cannot be set together",
    ),
]


@pytest.mark.parametrize(("asked", "where", "reason"), REFUSED)
def test_flags_that_cannot_act(asked: dict[str, object], where: dict[str, str], reason: str) -> None:
    """A flag that would have no effect is never used."""
    with pytest.raises(ProblemError, match=reason):
        select(asked, **where)  # type: ignore[arg-type]


def test_a_companion_is_asked_for_only_where_it_is_needed() -> None:
    """It is required from its first release on, and not for a flag that is off. Unknowns give warnings."""
    profile = {"TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": 1}
    assert select(profile, torch_version="2.13.0").env == dict.fromkeys(profile, "1")
    assert select({"DUMP_AOTI_MINIFIER": 0}).env == {"DUMP_AOTI_MINIFIER": "0"}
    assert len(select({"triton.debug_sync_kernel": 1}).warnings) == 2


def test_every_name_belongs_to_one_flag() -> None:
    """No two rows have the same name, and rows refer only to flags of the table."""
    counted = Counter(name for flag in FLAGS for name in flag.names())
    assert [name for name, count in counted.items() if count > 1] == []
    named = [name for flag in FLAGS for name in (*(need.name for need in flag.needs), *flag.conflicts)]
    assert [find(name).name for name in named] == named


def test_versions_are_read_from_build_strings() -> None:
    """Local version parts are ignored, and other text is rejected."""
    select({"TORCHINDUCTOR_NAN_ASSERTS": 1}, torch_version="2.13.0+cu130", device="cpu")
    with pytest.raises(ProblemError, match=r"this is 2\.12"):
        select({"TORCHINDUCTOR_NAN_ASSERTS": 1}, torch_version="2.12.1+cpu", device="cpu")
    with pytest.raises(ProblemError, match="not a torch version"):
        select({}, torch_version="nightly")


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Flags:
    return Flags(Release(Path(sys.executable), tmp_path_factory.mktemp("release")))


@pytest.mark.parametrize("name", [pytest.param(f.name, marks=[] if f.inert else thorough) for f in FLAGS])
def test_the_installed_torch_has_what_the_row_says(of_torch: Flags, name: str) -> None:
    """The entry exists and its variable changes it; later ones are missing; nothing reads an inert one."""
    assert of_torch.trials()[name]() == ""


# Compiling with flags.


def compiled(directory: Path, workload: ExportedWorkload, flags: Mapping[str, object]) -> Any:
    return tool("compile_with_flags", directory, workload, flags=flags)


def exported(zoo: Zoo, name: str) -> Path:
    return zoo(name).with_name(f"{name}.exported.pt2")


@pytest.mark.slow
def test_the_new_package_holds_what_the_flags_ask_for(flagged_ranker: Any) -> None:
    """Flags given as variables and as configuration are in the generated code."""
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
def test_a_compile_without_a_compiler_is_a_result(zoo: Zoo, tmp_path: Path) -> None:
    """A broken toolchain gives a failure with its family and line, and no exception."""
    workload = ExportedWorkload(exported=exported(zoo, "ranker"), env={"CXX": "no-such-compiler"})
    made = compiled(tmp_path, workload, {"TORCHINDUCTOR_VEC_ISA_OK": 1})
    assert not made.ok and made.package is None and made.failure is not None
    assert made.failure.candidates == ["toolchain"]
    log = made.failure.log.read_text().splitlines()
    assert made.failure.text.strip()[:40] in log[made.failure.line - 1]


@pytest.mark.slow
def test_a_flag_that_cannot_act_costs_no_compile(zoo: Zoo, tmp_path: Path) -> None:
    """The flag is rejected before the compiler starts, by the program's device and the installed torch."""
    workload = ExportedWorkload(exported=exported(zoo, "ranker"))
    with pytest.raises(ProblemError, match="for cuda models only"):
        compiled(tmp_path / "a", workload, {"triton.autotune_at_compile_time": 0})
    with pytest.raises(ProblemError, match="acts at run time"):
        compiled(tmp_path / "b", workload, {"AOTI_RUNTIME_CHECK_INPUTS": 1})
    assert not list(tmp_path.rglob("report.jsonl"))


# PyTorch's own procedure: compile with the value printer, run, read its output.


@thorough
def test_the_printer_names_the_kernel_that_made_the_nan(zoo: Zoo, tmp_path: Path) -> None:
    """With level 2 for one kernel, the run's log names its buffer, and explain-error says so."""
    exported = zoo("logarithm").with_name("logarithm.exported.pt2")
    flags = {PRINTER: "2", FILTER: "cpp_fused_log_mul_sigmoid_0"}
    made = compiled(tmp_path / "c", ExportedWorkload(exported=exported), flags)
    assert made.package is not None
    workload = PackageWorkload(package=made.package.path, inputs=exported.with_name("logarithm.bad-nan.pt"))
    ran = tool("run_deterministic", tmp_path / "r", workload, repeats=1)
    log = Path(ran.runs[0].log.path)
    said = tool("explain_error", tmp_path / "e", log=log)
    assert any("buf1 after launch of cpp_fused_log_mul_sigmoid_0 is the first" in note for note in said.notes)


# A package compiled with flags, shared because each compile takes long.


RANKER_FLAGS: dict[str, object] = {
    "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER": 3,
    "INDUCTOR_PROVENANCE": 1,
    "aot_inductor.check_lowerbound": False,
}


@pytest.fixture(scope="session")
def flagged_ranker(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The ranker compiled with variables and configuration."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
    workload = ExportedWorkload(exported=exported(zoo, "ranker"), env=cache)
    return compiled(tmp_path_factory.mktemp("flagged"), workload, RANKER_FLAGS)
