"""Rebuilds a package with launch probes or sanitizers. The user's file is never changed."""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import anyio

from mcp_server import package as reader
from mcp_server.errors import ProblemError, here
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.child import Command, child_environment
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.probes import commands
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_package, digest_values
from mcp_server.probes.commands import Instrumented, Options, Skipped, Toolchain
from mcp_server.probes.model_build import NATIVE, ModelBuild, Tools, models_of, write_package
from mcp_server.runtime.context import WORKER_MAIN, Context

PACKAGE = "package.pt2"
DIGESTS = "digests"
# Variables with directories in which g++ and clang++ look for headers and libraries.
SEARCHED = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")
MODEL_HEADER = "torch/csrc/inductor/aoti_runtime/model.h"
# The sources that determine a rebuild. They are part of the cache key, so a change invalidates old entries.
_OWN_SOURCES = tuple(
    path
    for directory in (NATIVE, NATIVE.parent, *map(Path, reader.__path__))
    for path in sorted(directory.iterdir())
    if path.suffix in (".py", ".cpp", ".h")
)


async def with_probes(
    context: Context, workload: PackageWorkload, options: Options | None = None, cache: Cache | None = None
) -> Instrumented:
    """Call `instrument` with a workload's interpreter and variables; launch probes are the default."""
    return await instrument(
        *(workload.package, options or Options(), context),
        python=workload.python,
        cache=cache,
        env=workload.env,
    )


async def instrument(
    package: Path,
    options: Options,
    context: Context,
    *,
    python: Path | None = None,
    cache: Cache | None = None,
    env: Mapping[str, str] | None = None,
) -> Instrumented:
    """Rebuild every model of `package` for the torch of `python` (default: the context's interpreter).

    `env` holds the variables that the workload sets, which select compiler and CUDA. This takes seconds the
    first time, and well under one second from the cache. Raise `PackageError` if the package cannot be read,
    and `ProblemError` if it cannot be rebuilt.
    """
    started = time.monotonic()
    models = await anyio.to_thread.run_sync(models_of, package)
    cache = cache or Cache()
    tools = await find_tools(models[0].wrapper_text, options, context, python=python, cache=cache, env=env)
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    binary, environ = Path(tools.compiler).resolve(), child_environment(tools.env)
    key = digest_values(
        [
            content,
            asdict(options),
            asdict(tools.toolchain),
            (str(binary), binary.stat().st_mtime_ns),
            [environ.get(name) for name in SEARCHED],
            [digest_file(path) for path in _OWN_SOURCES],
        ]
    )
    entry, cached = await cache.built(key, lambda work: _build(models, tools, work), context.progress)
    manifest = json.loads((entry / MANIFEST).read_text())
    return Instrumented(
        package=entry / PACKAGE,
        probed=manifest["probed"],
        skipped=tuple(Skipped(**skipped) for skipped in manifest["skipped"]),
        preload=tuple(manifest["preload"]),
        cached=cached,
        seconds=round(time.monotonic() - started, 3),
        notes=tuple(manifest["notes"]),
    )


async def find_tools(
    source: str,
    options: Options,
    context: Context,
    *,
    python: Path | None,
    cache: Cache,
    env: Mapping[str, str] | None,
) -> Tools:
    """Find the toolchain for the torch of `python`. `source` records the original compile command."""
    env = env or {}
    toolchain = await find_toolchain(python or context.python, context, env)
    recorded = commands.read_recorded(source)
    compiler = await anyio.to_thread.run_sync(commands.choose_compiler, recorded, child_environment(env))
    return Tools(options, toolchain, compiler, cache, context, env)


async def _build(models: list[Package], tools: Tools, work: Path) -> None:
    """Fill the cache entry with the package and its manifest."""
    rebuilt = []
    files: dict[str, Path] = {}
    for model in models:
        place = work / f"model-{digest_values(model.model_name)[:12]}"
        place.mkdir()
        rebuilt.append(await ModelBuild(model, tools, place).build())
        files |= rebuilt[-1].files
    await anyio.to_thread.run_sync(write_package, models[0].container, files, work / PACKAGE)
    manifest = {
        "probed": {m.model_name: len(one.probed) for m, one in zip(models, rebuilt, strict=True)},
        "skipped": [skipped.model_dump() for one in rebuilt for skipped in one.skipped],
        "notes": [note for one in rebuilt for note in one.notes],
        # AddressSanitizer must be loaded first. Without libstdc++ after it, the first C++ exception aborts.
        "preload": _runtimes(tools) if tools.options.sanitize == "address" else (),
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for part in filter(Path.is_dir, list(work.iterdir())):
        shutil.rmtree(part)


def _runtimes(tools: Tools) -> list[str]:
    environ = child_environment(tools.env)
    found = [commands.file_of(tools.compiler, name, environ) for name in ("libasan.so", "libstdc++.so.6")]
    existing = [str(path.resolve()) for path in found if path is not None and path.exists()]
    if len(existing) < len(found):
        what = "the compiler has no AddressSanitizer runtime"
        raise ProblemError(what, value=tools.compiler, allowed="g++ with libasan")
    return existing


async def find_toolchain(python: Path, context: Context, env: Mapping[str, str] | None = None) -> Toolchain:
    """Find the torch of an interpreter. Raise `ProblemError` if torch or its headers are missing."""
    script = WORKER_MAIN.with_name("machine.py")
    command = Command(argv=(str(python), str(script)), cwd=here(), timeout_s=60, env=dict(env or {}))
    finished = await context.run(command, "toolchain")
    output = finished.stdout.read_text()
    try:
        facts, _ = json.JSONDecoder().raw_decode(output, output.find("{"))  # launchers print the rank first
    except ValueError:
        facts = {"error": "it printed no facts"}
    if "error" in facts:
        raise ProblemError(
            f"this interpreter has no torch to build with: {facts['error']}",
            value=str(python),
            next_call=interpreter_help(),
        )
    toolchain = Toolchain(facts["torch_version"], tuple(facts["include"]), tuple(facts["cuda_include"]))
    if not any((Path(directory) / MODEL_HEADER).exists() for directory in toolchain.include):
        raise ProblemError(
            "this torch has no C++ headers to build with",
            value=f"torch {toolchain.torch_version} of {python}",
            next_call="pass `python` of an environment whose torch has its include directory",
        )
    return toolchain
