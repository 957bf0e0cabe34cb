"""The flag table: what is refused, what is set, and that the installed torch agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.flags import FLAGS, Flag, find, select
from tests.zoo.names import thorough

PRINTER = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"
INSTALLED = (2, 13)

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
def test_a_flag_that_cannot_act_is_refused_with_the_reason(
    asked: dict[str, object], where: dict[str, str], reason: str
) -> None:
    """A flag that would silently do nothing never gets into a plan."""
    with pytest.raises(ProblemError, match=reason):
        select(asked, **where)  # type: ignore[arg-type]


def test_a_plan_splits_variables_from_config_entries() -> None:
    """What has a variable goes into the environment, what has none into the configuration, with its type."""
    plan = select(
        {PRINTER: 2, FILTER: "k0,k1", "assert_indirect_indexing": False}, torch_version="2.13.0", device="cpu"
    )
    assert plan.env == {PRINTER: "2", FILTER: "k0,k1"}
    assert plan.config == {"assert_indirect_indexing": False}
    assert plan.warnings == ()


def test_config_names_find_the_same_flag() -> None:
    """The configuration's name, with or without its module, means the same flag as the variable."""
    assert find("torch._inductor.config.nan_asserts") is find("TORCHINDUCTOR_NAN_ASSERTS")
    assert find("config.aot_inductor.debug_compile") is find("AOT_INDUCTOR_DEBUG_COMPILE")


def test_a_companion_is_asked_for_only_where_it_is_needed() -> None:
    """From the release that needs it, and not for a flag at its off value; what is not known is said."""
    profile = {"TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": 1}
    assert select(profile, torch_version="2.13.0").env == dict.fromkeys(profile, "1")
    assert select({"DUMP_AOTI_MINIFIER": 0}).env == {"DUMP_AOTI_MINIFIER": "0"}
    assert len(select({"triton.debug_sync_kernel": 1}).warnings) == 2


def test_every_name_belongs_to_one_flag() -> None:
    """No two rows of the table share a spelling, and rows name only flags of the table."""
    counted = Counter(name for flag in FLAGS for name in flag.names())
    assert [name for name, count in counted.items() if count > 1] == []
    named = [name for flag in FLAGS for name in (*(need.name for need in flag.needs), *flag.conflicts)]
    assert [find(name).name for name in named] == named


@given(st.text(max_size=60), st.text(max_size=20))
def test_nothing_but_a_problem_comes_out_of_odd_names_and_values(name: str, value: str) -> None:
    """Any text is either refused as a problem or taken over exactly."""
    try:
        plan = select({name: value})
    except ProblemError:
        return
    assert value in {*plan.env.values(), *map(str, plan.config.values())}


@given(st.sampled_from(FLAGS), st.text(max_size=12))
def test_the_environment_gets_exactly_the_accepted_text(flag: Flag, value: str) -> None:
    """A variable is set to the text that was asked for, never to a near one."""
    try:
        plan = select({flag.name: value}, moment=flag.acts[0])
    except ProblemError:
        return
    assert flag.values.accepts(value)
    assert not flag.env or plan.env == {flag.env: value}


def test_versions_are_read_from_build_strings() -> None:
    """Local version parts are ignored, and other text is refused."""
    select({"TORCHINDUCTOR_NAN_ASSERTS": 1}, torch_version="2.13.0+cu130", device="cpu")
    with pytest.raises(ProblemError, match=r"this is 2\.12"):
        select({"TORCHINDUCTOR_NAN_ASSERTS": 1}, torch_version="2.12.1+cpu", device="cpu")
    with pytest.raises(ProblemError, match="not a torch version"):
        select({}, torch_version="nightly")


ASK_TORCH = """
import json, operator, sys
from torch._inductor import config
print(json.dumps({name: operator.attrgetter(name)(config) for name in sys.argv[1:]}))
"""


def config_values(flags: list[Flag], env: dict[str, str]) -> dict[str, object]:
    argv = [sys.executable, "-W", "ignore", "-c", ASK_TORCH, *(flag.config for flag in flags)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    values: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return values


@thorough
@pytest.mark.slow
def test_the_installed_torch_reads_every_variable_into_its_config_entry() -> None:
    """Setting a variable changes the configuration entry that the table names for it."""
    rows = [f for f in FLAGS if f.config and f.since <= INSTALLED]
    with_variable = [f for f in rows if f.env]
    path = {"PATH": "/usr/bin:/bin"}
    off = config_values(rows, path | {f.env: "0" for f in with_variable if f.values.accepts("0")})
    on = config_values(rows, path | {f.env: turned_on(f) for f in with_variable})
    unchanged = [f.env for f in with_variable if off[f.config] == on[f.config]]
    assert unchanged == []


def turned_on(flag: Flag) -> str:
    return next(value for value in ("1", "O2", "k0") if flag.values.accepts(value))


def test_no_python_source_of_torch_reads_an_inert_flag() -> None:
    """A flag that the table calls inert is not named in the installed compiler's sources."""
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"],
        capture_output=True,
        text=True,
        check=True,
    )
    sources = [p.read_text() for p in (Path(found.stdout.strip()).parent / "_inductor").rglob("*.py")]
    for flag in (f for f in FLAGS if f.inert):
        assert not any(flag.env in text for text in sources)
