"""The objects that every rebuilt wrapper is linked with, compiled once for a compiler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_server.instrument.cache import MANIFEST, Cache
from mcp_server.instrument.commands import Flags, collection_flags
from mcp_server.instrument.compiling import compile_or_raise
from mcp_server.instrument.digest import digest_file, digest_values
from mcp_server.steps.context import Context

NATIVE = Path(__file__).with_name("native")


@dataclass(frozen=True)
class SupportObject:
    """A source of ours and the optimisation it deserves: the runtime is hot, std::regex is not."""

    source: str
    optimization: str

    def command(self, compiler: str, flags: Flags) -> tuple[str, ...]:
        # The standard and the library's ABI decide the names of symbols.
        kept = [f for f in flags.kept if f.startswith(("-std=", "-D_GLIBCXX"))]
        cuda = ["-DAOTI_DEBUG_CUDA"] if "USE_CUDA" in flags.defines else []
        target = str(Path(self.source).with_suffix(".o"))
        hidden = ("-fPIC", "-fvisibility=hidden", "-w")
        flags_of_ours = (*cuda, self.optimization, *collection_flags(compiler), *hidden)
        return (compiler, *kept, *flags_of_ours, "-c", str(NATIVE / self.source), "-o", target)


OBJECTS = (SupportObject("runtime.cpp", "-O2"), SupportObject("regex.cpp", "-O0"))


async def support_objects(
    cache: Cache, compiler: str, flags: Flags, context: Context, env: Mapping[str, str]
) -> Path:
    """The directory with the objects, made if it is not in the cache. Raises `ProblemError`."""
    commands = [one.command(compiler, flags) for one in OBJECTS]
    stamp = Path(compiler).resolve().stat().st_mtime_ns
    sources = {path.name: digest_file(path) for path in sorted(NATIVE.iterdir())}
    key = digest_values(["support", commands, stamp, sources])
    async with cache.locked(key, context.progress):
        entry = cache.find(key)
        if entry is not None:
            return entry
        work = cache.building(key)
        # One after the other: beside the wrapper's longer compile there is one more core, often no third.
        for command in commands:
            await compile_or_raise(context, command, work, f"compile-{Path(command[-1]).stem}", env)
        (work / MANIFEST).write_text(json.dumps({"objects": [one.source for one in OBJECTS]}))
        return cache.finish(key, work)
