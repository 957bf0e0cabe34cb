"""Compiles the recorder, either as a library that replaces the package's own or as one to preload.

The host of a diagnosis run preloads it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import anyio.to_thread
from elftools.common.exceptions import ELFError

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import child_environment
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_values
from mcp_server.probes.commands import choose_compiler, compile_or_raise
from mcp_server.probes.model_build import exported_symbols
from mcp_server.runtime.context import Context

NATIVE = Path(__file__).with_name("native")
PRELOAD = "librecorder.so"
RUNS = {
    "AOTInductorModelContainerRun": "RUN_DEFAULT",
    "AOTInductorModelContainerRunSingleThreaded": "RUN_SINGLE",
}
PREFIX = "AOTInductorModel"
# Functions that change a model's weights (torch/csrc/inductor/aoti_runtime/interface.h, 2.8-2.13).
UPDATES = ("AOTInductorModelContainerUpdate", "AOTInductorModelContainerSwap")

# How a function jumps through the table entry at `{offset}`, by machine type.
JUMPS = {
    "x86_64": "jmp *recorder_jumps+{offset}(%rip)",
    "aarch64": "adrp x16, recorder_jumps+{offset}\\n ldr x16, [x16, :lo12:recorder_jumps+{offset}]\\n br x16",
}


SLOTS = 64  # the number of threads that can record at the same time


@dataclass(frozen=True)
class RecorderOptions:
    """The recorder's settings, which AOTI_RECORDER_* variables of the host override.

    In `directory` each process keeps a ring of `ring_mb`, shared equally by its threads, and the inputs of
    failing calls. `budget_mb` limits the total size of all files there.
    """

    directory: str
    mode: str = "adaptive"
    ring_mb: int = 64
    budget_mb: int = 1024

    def values(self) -> dict[str, str]:
        """The settings by name: RECORDER_* in the source, AOTI_RECORDER_* in the host's environment."""
        return {
            "DIR": self.directory,
            "MODE": self.mode,
            "SLOT_KB": str(max(64, self.ring_mb * 1024 // SLOTS)),
            "BUDGET_MB": str(self.budget_mb),
        }


def exported_functions(library: BinaryIO) -> list[str]:
    """List the names that a package's library exports for its loader. Raise `ProblemError` on failure."""
    try:
        names = exported_symbols(library)
    except (ELFError, ValueError, OSError, AttributeError) as error:
        raise ProblemError(f"the package's library cannot be read: {error}") from error
    found = sorted({name for name in names if name.startswith(PREFIX) and name.isidentifier()})
    if not set(RUNS) & set(found):
        raise ProblemError(
            "the package's library exports no function that runs it", allowed=" or ".join(RUNS)
        )
    return found


def symbols_of(names: list[str]) -> dict[str, str]:
    """Write the two generated headers: which functions exist, and how each jumps to the original."""
    counted = [name for name in names if name.startswith(UPDATES)]
    jumping = [name for name in names if name not in counted and name not in RUNS]
    machine = platform.machine()
    if machine not in JUMPS:
        raise ProblemError(
            "the recorder has no code for this machine", value=machine, allowed=", ".join(JUMPS)
        )
    rows = [f"#define {RUNS[name]}" for name in names if name in RUNS]
    rows += [f"#define {kind}(X) " + " ".join(f"X({n})" for n in some) for kind, some in
             (("JUMPS", jumping), ("COUNTED", counted))]  # fmt: skip
    jumps = [
        f'__asm__(".text\\n.globl {name}\\n.type {name},%function\\n{name}: '
        f'{JUMPS[machine].format(offset=8 * number)}\\n.size {name},.-{name}\\n");'
        for number, name in enumerate(jumping)
    ]
    return {"symbols.h": "\n".join(rows) + "\n", "jumps.h": "\n".join(jumps) + "\n"}


async def build_library(
    source: str,
    headers: Mapping[str, str],
    options: RecorderOptions,
    context: Context,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Compile `source` of native/, once per set of headers and options. Raise `ProblemError` on failure."""
    cache, environ = Cache(), child_environment(env or {})
    compiler = await anyio.to_thread.run_sync(choose_compiler, (), environ)
    sources = [digest_file(path) for path in sorted(NATIVE.iterdir())]
    key = digest_values(["recorder", source, headers, asdict(options), compiler, sources])

    async def build(work: Path) -> None:
        context.progress("compiling the recorder")
        for name, text in headers.items():
            (work / name).write_text(text)
        argv = (
            *(compiler, "-x", "c", "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
            *(f'-DRECORDER_{name}="{value}"' for name, value in options.values().items()),
            *("-I", str(work), "-I", str(NATIVE), str(NATIVE / source), "-o", str(work / PRELOAD)),
            *("-ldl", "-lpthread"),
        )
        await compile_or_raise(context, argv, work, "compile-recorder", env or {})
        (work / MANIFEST).write_text("{}")

    entry, _ = await cache.built(key, build, context.progress)
    return entry / PRELOAD


FOLDER = "recordings"
# A host run for its diagnosis may take longer, and its failing call must be recorded completely.
MODE, RING_MB, BUDGET_MB = "full", 128, 8192


async def recording_environment(context: Context, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that make a host record its calls in this job's directory; empty if there is no compiler."""
    options = RecorderOptions(str(context.directory / FOLDER), MODE, RING_MB, BUDGET_MB)
    try:
        library = await build_library("preload.c", {}, RecorderOptions(""), context, env)
    except ProblemError:
        return {}
    before = child_environment(env).get("LD_PRELOAD", "")
    preload = os.pathsep.join(filter(None, [str(library), before]))
    variables = {f"AOTI_RECORDER_{name}": value for name, value in options.values().items()}
    return {"LD_PRELOAD": preload, "AOTI_RECORDER_STACKS": "1", "AOTI_RECORDER_KEEP": "1", **variables}


def recordings_of(context: Context) -> Path | None:
    """The folder with the host's recordings; None if it loaded no package."""
    folder = context.directory / FOLDER
    return folder if folder.is_dir() and any(folder.glob("*.ring")) else None
