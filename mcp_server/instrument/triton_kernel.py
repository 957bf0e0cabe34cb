"""A copy of a package in which the binary of one Triton kernel is that of a changed source."""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.instrument.build import DIGESTS, PACKAGE
from mcp_server.instrument.cache import MANIFEST, Cache
from mcp_server.instrument.digest import digest_package, digest_values
from mcp_server.instrument.interpose import Interposed, launches_of
from mcp_server.instrument.pack import write_package
from mcp_server.package.archive import Package, open_package
from mcp_server.package.kernels import Kernel
from mcp_server.steps.context import Context
from mcp_server.steps.leases import gpus_of


async def recompile_triton(
    package: Path,
    kernel: Kernel,
    source: str,
    context: Context,
    *,
    model_name: str = "model",
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    cache: Cache | None = None,
) -> Interposed:
    """A copy of `package` with the Triton kernel `kernel` compiled from `source`, on the GPU that it is for.

    The wrapper launches the new binary as it did the old one: with the same grid, warps and shared memory.
    Raises `ProblemError`: the package has no binary of its own for the kernel, no GPU, an error of the
    compiler, a configuration that cannot be told.
    """
    started = time.monotonic()
    opened = open_package(package, model_name)
    member = _binary(opened, kernel)
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    key = digest_values(["triton", content, model_name, kernel.name, source])
    async with cache.locked(key, context.progress):
        entry = cache.find(key)
        cached = entry is not None
        if entry is None:
            context.progress(f"compiling {kernel.name} anew")
            work = cache.building(key)
            await _make(opened, kernel, source, member, work, context, python, env or {})
            entry = cache.finish(key, work)
    seconds = round(time.monotonic() - started, 3)
    return Interposed(entry / PACKAGE, kernel.name, launches_of(opened, kernel.name), cached, seconds)


def _binary(package: Package, kernel: Kernel) -> str:
    found = [member.name for member in package.members if member.name.endswith(f"/{kernel.cubin}")]
    if not kernel.cubin or not found:
        raise ProblemError(
            "the package holds no binary of this kernel that could be replaced",
            value=kernel.name,
            allowed="a package whose cubins lie beside its library (embed_kernel_binary off)",
            next_call="compile_with_flags on the exported program",
        )
    return found[0]


async def _make(
    package: Package,
    kernel: Kernel,
    source: str,
    member: str,
    work: Path,
    context: Context,
    python: Path | None,
    env: Mapping[str, str],
) -> None:
    files = {"original": work / "original.py", "changed": work / "changed.py"}
    files["original"].write_text(textwrap.dedent(kernel.source))
    files["changed"].write_text(textwrap.dedent(source))
    with package.container.open(member) as stream, (work / "original.cubin").open("wb") as file:
        shutil.copyfileobj(stream, file)
    request = {
        **files,
        "kernel": kernel.symbol,
        "binary": work / "original.cubin",
        "target": work / "changed.cubin",
        "num_warps": kernel.num_warps,
        "shared": kernel.shared_bytes,
    }
    done = await context.worker(
        "recompile_triton", request, python=python, env=env, gpus=gpus_of("cuda"), timeout_s=300
    )
    if done.last("recompiled") is None:
        failed = done.last("failed")
        text = str(failed["text"])[:400] if failed else f"it ended in {done.phase}"
        raise ProblemError(f"the changed kernel does not compile: {text}", value=kernel.name)
    await anyio.to_thread.run_sync(
        write_package, package.container, {member: work / "changed.cubin"}, {}, work / PACKAGE
    )
    for path in (*files.values(), work / "original.cubin", work / "changed.cubin"):
        path.unlink()
    (work / MANIFEST).write_text(json.dumps({"kernel": kernel.name}))
