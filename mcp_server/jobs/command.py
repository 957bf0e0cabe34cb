"""A command to run as a child process, its environment, and how it ended."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from mcp_server.errors import ProblemError

Ending = Literal["exit", "signal", "timeout", "out_of_memory", "not_started"]

# Makes a Python process with the capture hook print the stacks of all threads. Programs do not use it.
STACKS_SIGNAL = signal.SIGRTMIN + 9
STOOD_STILL = "stood still"  # beginning of the note of a child that was stopped because it had stalled


@dataclass(frozen=True)
class Command:
    """One child process.

    `env` holds variables to add to the inherited ones. `timeout_s` is wall-clock seconds. `gpus` are the
    device indices that the child may use; None if it uses no GPU. They are leased, so that two jobs never
    share a GPU; children of one job may. `stalled` is called every few seconds. It returns the id of a
    process that will never continue, or None. That process prints its stacks (`STACKS_SIGNAL`); then the
    child is stopped as at its time limit.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    gpus: tuple[int, ...] | None = None
    unset: tuple[str, ...] = ()
    stalled: Callable[[], int | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Finished:
    """How a child ended, after running for `wall_s` seconds and waiting `waited_s` seconds for a GPU.

    `output` is stdout and stderr in order of arrival. If a child prints more than the cap, the middle is left
    out, and a line there says how much. `returncode` is None if a signal or a limit ended the child. `signal`
    is a name such as `SIGSEGV`, also for a shell-style status (128 + n). `incomplete` says why output was
    lost. `reused` marks a result of an earlier run of the job.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    wall_s: float
    output: Path
    stdout: Path
    stderr: Path
    note: str = ""
    incomplete: str = ""
    reused: bool = False
    waited_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ending == "exit" and self.returncode == 0


# A workload needs its compiler, its GPU and its caches, and must behave as it does in the user's shell.
# Everything else, especially secrets, must not reach a job or a log. Names (shell patterns, case-sensitive)
# that are passed on, with the reason.
ALLOWED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("HOME", "USER", "LOGNAME", "SHELL", "PWD"), "caches and configuration live under the home directory"),
    (("PATH",), "finds g++, ninja, ptxas, nvcc"),
    (("LANG", "LANGUAGE", "LC_*", "TZ", "TERM"), "encoding and form of messages"),
    (("TMPDIR", "TEMP", "TMP"), "where packages are unpacked"),
    (("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), "caches, ccache settings"),
    (("LD_LIBRARY_PATH", "LD_PRELOAD"), "which libstdc++ and CUDA libraries are loaded"),
    (("LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"), "the compiler's search paths"),
    (("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CCACHE_*"), "how the wrapper is compiled"),
    (("CONDA_*", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED"), "which packages the interpreter imports"),
    (("PIXI_*", "UV_PYTHON*", "MODULEPATH", "LOADEDMODULES"), "other environment managers"),
    (("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NVCC_*"), "devices, driver and libraries"),
    (("NCCL_*", "TORCH_NCCL_*", "GLOO_*", "UCX_*"), "communication between ranks"),
    (("HIP_*", "ROCR_*", "HSA_*", "ROCM_*"), "devices of ROCm builds"),
    (("TORCH*", "PYTORCH_*", "AOT_*", "AOTI_*", "INDUCTOR_*"), "flags of torch, such as TORCHINDUCTOR_*"),
    (("TRITON_*", "MLIR_*", "LLVM_*"), "flags and caches of Triton"),
    (("OMP_*", "MKL_*", "KMP_*", "GOMP_*", "OPENBLAS_*", "NUMEXPR_*"), "threads of CPU kernels"),
    (("MALLOC_*", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"), "allocators and sanitizers"),
    (("HF_HOME", "HF_HUB_*", "HF_DATASETS_*", "TRANSFORMERS_*"), "where models lie, and offline mode"),
    (("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), "place in a distributed run"),
    (("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "the same, torchrun"),
    (("SLURM_*", "SLURMD_*", "SRUN_*", "OMPI_*", "PMI_*", "PMIX_*"), "the same, schedulers"),
    (("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"), "downloads"),
    (("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "downloads"),
)

# Also makes C stdio unbuffered, so that the value printer's printf lines survive a crash (torch 2.13).
ALWAYS: Mapping[str, str] = {"PYTHONUNBUFFERED": "1"}

_SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|CREDENTIAL|AUTH|JWT|COOKIE", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_NAME = re.compile(r"[^=\0]+")


def looks_secret(name: str, value: str) -> bool:
    """Whether the name suggests a secret, or the value is a URL with a password."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def is_allowed(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for patterns, _ in ALLOWED for pattern in patterns)


def check_variable(name: str, value: str) -> None:
    """Raise ProblemError for a name or value that execve(2) rejects."""
    if not _NAME.fullmatch(name):
        raise ProblemError(
            "not a name of an environment variable", value=name, allowed="no '=', no NUL, not empty"
        )
    if "\0" in value:
        raise ProblemError(f"the value of {name} holds a NUL character", allowed="text without NUL")


def _environment() -> dict[str, str]:
    """Copy this process's environment. Another thread may remove a variable during the copy."""
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}


def child_environment(
    asked: Mapping[str, str], unset: Iterable[str] = (), *, parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build a child's environment: the parent's allowed variables without `unset`, then `asked`.

    A variable in `asked` is passed even if it looks like a secret, since the user named it. `parent` defaults
    to this process's environment. Raise ProblemError for an invalid name or value.
    """
    for name, value in asked.items():
        check_variable(name, value)
    inherited = {
        name: value
        for name, value in (_environment() if parent is None else parent).items()
        if is_allowed(name) and not looks_secret(name, value)
    }
    dropped = set(unset) - set(asked)
    merged = {**inherited, **ALWAYS, **asked}
    return {name: value for name, value in merged.items() if name not in dropped}
