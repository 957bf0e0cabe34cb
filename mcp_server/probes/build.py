"""Rebuilds a package with launch probes or sanitizers. The user's file is only read."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from mcp_server import package as reader
from mcp_server.errors import ProblemError
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.environment import child_environment
from mcp_server.jobs.types import Command
from mcp_server.package.archive import Package, open_package
from mcp_server.probes import commands
from mcp_server.probes.cache import MANIFEST, Cache
from mcp_server.probes.commands import Instrumented, Options, Skipped, Timings, Toolchain
from mcp_server.probes.contents import digest_file, digest_package, digest_values, write_package
from mcp_server.probes.model_build import NATIVE, ModelBuild, Rebuilt, Tools
from mcp_server.tools.context import WORKER_MAIN, Context

PACKAGE = "package.pt2"
DIGESTS = "digests"
# Variables in which g++ and clang++ look for headers and libraries.
SEARCHED = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")
MODEL_HEADER = "torch/csrc/inductor/aoti_runtime/model.h"
# Sources that determine a rebuild. They are part of the cache key, so a change invalidates old entries.
_OWN_SOURCES = tuple(
    path
    for directory in (NATIVE, NATIVE.parent, Path(reader.__file__).parent)
    for path in sorted(directory.iterdir())
    if path.suffix in (".py", ".cpp", ".h")
)


@dataclass
class _Watch:
    """Monotonic times at which the parts of a rebuild ended, in seconds."""

    started: float
    read: float = 0.0
    compiled: float = 0.0

    def timings(self) -> Timings:
        now = time.monotonic()
        return Timings(
            read_s=round(self.read - self.started, 3),
            compile_s=round(self.compiled - self.read, 3),
            pack_s=round(now - self.compiled, 3),
            total_s=round(now - self.started, 3),
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

    `env` holds the variables that the workload sets, which select compiler and CUDA. Takes seconds the first
    time, and well under one from the cache. Raises `PackageError` if the package cannot be read, and
    `ProblemError` if it cannot be rebuilt.
    """
    watch = _Watch(time.monotonic())
    models = [open_package(package, name) for name in open_package(package).models]
    env = env or {}
    environ = child_environment(env)
    toolchain = await find_toolchain(python or context.python, context, env)
    recorded = commands.read_recorded(models[0].wrapper_text)
    compiler = await anyio.to_thread.run_sync(commands.choose_compiler, options.compiler, recorded, environ)
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    key = _key(content, options, toolchain, compiler, environ)
    async with cache.locked(key, context.progress):
        entry = cache.find(key)
        if entry is not None:
            return _load(entry, package, watch, cached=True)
        context.progress("rebuilding the package with probes")
        watch.read = time.monotonic()
        tools = Tools(options, toolchain, compiler, cache, context, env)
        entry = await _build(models, tools, key, watch)
        return _load(entry, package, watch, cached=False)


async def _build(models: list[Package], tools: Tools, key: str, watch: _Watch) -> Path:
    """Build the cache entry of `key`. The caller has the lock of `key`."""
    work = tools.cache.building(key)
    rebuilt = [await _model(model, tools, work) for model in models]
    watch.compiled = time.monotonic()
    await anyio.to_thread.run_sync(_pack, models, rebuilt, work)
    _write_manifest(work, models, rebuilt, _preload(tools))
    for part in filter(Path.is_dir, list(work.iterdir())):  # the entry is the package and the manifest only
        shutil.rmtree(part)
    return tools.cache.finish(key, work)


async def find_toolchain(python: Path, context: Context, env: Mapping[str, str] | None = None) -> Toolchain:
    """Find the torch of an interpreter. Raises `ProblemError` if it has none, or one without headers."""
    script = WORKER_MAIN.with_name("machine.py")
    command = Command(argv=(str(python), str(script)), cwd=Path.cwd(), timeout_s=60, env=dict(env or {}))
    finished = await context.run(command, "toolchain")
    output = finished.stdout.read_text()
    try:
        facts, _ = json.JSONDecoder().raw_decode(output, output.find("{"))  # launchers prefix the rank
    except ValueError:
        facts = {"error": "it printed no facts"}
    if "error" in facts:
        raise ProblemError(
            f"this interpreter has no torch to build with: {facts['error']}",
            value=str(python),
            next_call=interpreter_help(),
        )
    lists = {name: tuple(value) for name, value in facts.items() if name != "torch_version"}
    return _with_headers(Toolchain(torch_version=facts["torch_version"], **lists), python)


def _with_headers(toolchain: Toolchain, python: Path) -> Toolchain:
    if not any((Path(directory) / MODEL_HEADER).exists() for directory in toolchain.include):
        raise ProblemError(
            "this torch has no C++ headers to build with",
            value=f"torch {toolchain.torch_version} of {python}",
            next_call="pass `python` of an environment whose torch has its include directory",
        )
    return toolchain


def _key(
    content: str, options: Options, toolchain: Toolchain, compiler: str, environ: Mapping[str, str]
) -> str:
    own = [digest_file(path) for path in _OWN_SOURCES]
    binary = Path(compiler).resolve()
    stamp = (str(binary), binary.stat().st_mtime_ns)
    searched = [environ.get(name) for name in SEARCHED]
    return digest_values([content, asdict(options), asdict(toolchain), stamp, searched, own])


async def _model(model: Package, tools: Tools, work: Path) -> Rebuilt:
    place = work / f"model-{digest_values(model.model_name)[:12]}"
    place.mkdir()
    return await ModelBuild(model, tools, place).build()


def _pack(models: list[Package], rebuilt: list[Rebuilt], work: Path) -> None:
    replaced = {name: path for one in rebuilt for name, path in one.replaced.items()}
    added = {name: path for one in rebuilt for name, path in one.added.items()}
    write_package(models[0].container, replaced, added, work / PACKAGE)


def _preload(tools: Tools) -> tuple[str, ...]:
    """AddressSanitizer must be loaded first. Without libstdc++ preloaded too, it dies at the first throw."""
    if tools.options.sanitize != "address":
        return ()
    names, environ = ("libasan.so", "libstdc++.so.6"), child_environment(tools.env)
    found = [commands.runtime_library(tools.compiler, name, environ) for name in names]
    if None in found:
        raise ProblemError(
            "the compiler has no AddressSanitizer runtime", value=tools.compiler, allowed="g++ with libasan"
        )
    return tuple(path for path in found if path)


def _write_manifest(
    work: Path, models: list[Package], rebuilt: list[Rebuilt], preload: tuple[str, ...]
) -> None:
    manifest = {
        "probed": {m.model_name: len(one.probed) for m, one in zip(models, rebuilt, strict=True)},
        "skipped": [asdict(skipped) for one in rebuilt for skipped in one.skipped],
        "notes": [note for one in rebuilt for note in one.notes],
        "preload": preload,
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _load(entry: Path, package: Path, watch: _Watch, *, cached: bool) -> Instrumented:
    manifest = json.loads((entry / MANIFEST).read_text())
    if cached:
        watch.read = watch.compiled = time.monotonic()
    return Instrumented(
        package=entry / PACKAGE,
        original=package,
        probed=manifest["probed"],
        skipped=tuple(Skipped(**skipped) for skipped in manifest["skipped"]),
        preload=tuple(manifest["preload"]),
        cached=cached,
        timings=watch.timings(),
        notes=tuple(manifest["notes"]),
    )
