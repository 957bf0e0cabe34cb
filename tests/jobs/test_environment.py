"""A child gets the variables it needs, and no secret."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import ALLOWED, child_environment, is_allowed, looks_secret

NEEDED = (
    "HOME PATH LC_ALL TMPDIR CUDA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES LD_LIBRARY_PATH "
    "CONDA_PREFIX VIRTUAL_ENV CXX TRITON_CACHE_DIR TORCH_LOGS TORCHINDUCTOR_CACHE_DIR "
    "AOT_INDUCTOR_DEBUG_COMPILE AOTI_RUNTIME_CHECK_INPUTS INDUCTOR_PROVENANCE "
    "PYTORCH_NO_CUDA_MEMORY_CACHING OMP_NUM_THREADS KMP_AFFINITY HF_HOME SLURM_JOB_ID RANK "
    "MASTER_ADDR XDG_CACHE_HOME "
)


@pytest.mark.parametrize(
    "name",
    NEEDED.split(),
)
def test_needed_names_pass(name: str) -> None:
    """What a compiler, a GPU, a cache or a launcher needs is passed on."""
    assert child_environment({}, parent={name: "x"})[name] == "x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("HF_HUB_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("SLURM_JWT", "x"),
        ("TORCH_PASSWORD", "x"),
        ("CONDA_CREDENTIALS", "x"),
        ("ANTHROPIC_API_KEY", "x"),
        ("SSH_AUTH_SOCK", "x"),
        ("DATABASE_URL", "x"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:8080"),
        ("PYTHONSTARTUP", "x"),
        ("PYTHONFAULTHANDLER", "1"),
        ("BASH_FUNC_ls%%", "() { :; }"),
    ],
)
def test_other_names_stay(name: str, value: str) -> None:
    """Secrets, also inside a proxy's address, and everything unknown stay in the server."""
    assert name not in child_environment({}, parent={name: value})


def test_asked_variables_win() -> None:
    """What is asked for replaces what is inherited and what is always set, and passes the filter."""
    asked = {"PATH": "/asked", "PYTHONUNBUFFERED": "", "MY_TOKEN": "meant"}
    assert child_environment(asked, parent={"PATH": "/parent"}) == asked


def test_unset() -> None:
    """A variable to be unset is gone, unless the same call asks for it."""
    env = child_environment({"B": "1"}, ("CXX", "B", "PYTHONUNBUFFERED", "NEVER_SET"), parent={"CXX": "g++"})
    assert env == {"B": "1"}


def test_always_unbuffered() -> None:
    """Output is unbuffered without being asked."""
    assert child_environment({}, parent={}) == {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_impossible_name(name: str) -> None:
    """A name that execve cannot take is refused."""
    with pytest.raises(ProblemError, match="not a name"):
        child_environment({name: "x"}, parent={})


def test_impossible_value() -> None:
    """A value with NUL is refused, and the message does not repeat the value."""
    with pytest.raises(ProblemError, match="NUL") as caught:
        child_environment({"A": "hunter2\0"}, parent={})
    assert "hunter2" not in str(caught.value)


def test_every_rule_has_a_reason() -> None:
    """Each row of the table says why."""
    assert all(patterns and why for patterns, why in ALLOWED)


NAMES = st.builds(
    str.__add__,
    st.sampled_from(["", "CUDA_", "HF_HUB_", "SLURM_", "TORCH_", "MY_"]),
    st.sampled_from(["HOME", "PATH", "TOKEN", "api_key", "Secret", "DEVICES", "PASSWORD"]),
)


@given(st.dictionaries(NAMES, st.text()))
def test_nothing_else_passes(parent: dict[str, str]) -> None:
    """Every inherited variable is in the table, and none is named like a secret."""
    for name, value in child_environment({}, ("PYTHONUNBUFFERED",), parent=parent).items():
        assert is_allowed(name)
        assert not looks_secret(name, value)
        assert not re.search("token|secret|password|key", name, re.IGNORECASE)
