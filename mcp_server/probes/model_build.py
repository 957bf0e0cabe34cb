"""Rebuilds one model of a package: rewrite, compile, link, with the objects that all rebuilds share."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import anyio

from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package
from mcp_server.package.wrapper import Wrapper, read_wrapper
from mcp_server.probes import commands, contents
from mcp_server.probes.cache import MANIFEST, Cache
from mcp_server.probes.commands import (
    Flags,
    Options,
    Skipped,
    Toolchain,
    collection_flags,
    compile_in,
    compile_or_raise,
    first_error,
    together,
)
from mcp_server.probes.contents import digest_file, digest_values
from mcp_server.probes.kernel_source import compiled_form
from mcp_server.probes.rewrite import Rewritten, numbered, rewrite
from mcp_server.tools.context import Context

NATIVE = Path(__file__).with_name("native")


@dataclass(frozen=True)
class SupportObject:
    """A native source and its optimisation level: the runtime is hot, std::regex is not."""

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
        # One after the other: the wrapper compiles at the same time, and there is often no third core.
        for command in commands:
            await compile_or_raise(context, command, work, f"compile-{Path(command[-1]).stem}", env)
        (work / MANIFEST).write_text(json.dumps({"objects": [one.source for one in OBJECTS]}))
        return cache.finish(key, work)


ATTEMPTS = 4
SOURCES = "sources"
# Reports must name sources without the directory, which no longer exists by then.
MAP = f"-ffile-prefix-map={SOURCES}/="

_ERROR = re.compile(r"\.wrapper\.cpp:(\d+)(?::\d+)?: (?:fatal )?error: (.*)")
_ASSERT = re.compile(r'AOTI_TORCH_CHECK\((?:[^;"]*),\s*"index out of bounds[^"]*"\s*\);')
SANITIZE_FLAGS = {
    "address": (
        *("-fsanitize=address", "-fno-omit-frame-pointer", "-g1", "-O1"),
        *("-include", str(NATIVE / "masked_access.h")),
    ),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g1", "-O1"),
}


@dataclass(frozen=True)
class Rebuilt:
    """Files of one rebuilt model, by member name of the package."""

    replaced: dict[str, Path]
    added: dict[str, Path]
    probed: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Tools:
    """What every model of a package is rebuilt with. `env` holds the variables that the workload sets."""

    options: Options
    toolchain: Toolchain
    compiler: str
    cache: Cache
    context: Context
    env: Mapping[str, str]


class ModelBuild:
    """The state of one rebuild: sources and objects in `work`, commands for one toolchain."""

    def __init__(self, package: Package, tools: Tools, work: Path) -> None:
        self.package, self.tools, self.work = package, tools, work
        self.flags = commands.safe_flags(commands.read_recorded(package.wrapper_text))
        self.notes = [f"flag left out: {flag}" for flag in self.flags.dropped]

    async def build(self) -> Rebuilt:
        """Raises `ProblemError` when the model cannot be rebuilt at all."""
        source, library = self.package.files.wrapper_source, self.package.files.library
        if source is None or library is None:
            raise ProblemError(
                "the package has no wrapper.cpp with its library, so it cannot be rebuilt",
                value=self.package.model_name,
                next_call="compile_with_flags on the exported program",
            )
        old = await anyio.to_thread.run_sync(self._extract, library.name)
        rewritten = await self._compile_all(old)
        rebuilt = await self._link(old, library.name)
        place = str(PurePosixPath(library.name).parent)
        companion = old.name if place == "." else f"{place}/{old.name}"
        return Rebuilt(
            replaced={library.name: rebuilt, source.name: self.work / SOURCES / Path(source.name).name},
            added={companion: old},
            probed=rewritten.probed,
            skipped=rewritten.skipped,
            notes=tuple(self.notes),
        )

    async def _compile_all(self, old: Path) -> Rewritten:
        """Every object that is linked with the old library, side by side."""
        wrapper = read_wrapper(self.package.wrapper_text, self.package.kernel_text)
        rewritten: list[Rewritten] = []

        async def compile_wrapper() -> None:
            rewritten.append(await self._wrapper(wrapper))

        support = [self._support] if self.tools.options.probes else []
        await together(compile_wrapper, *support, *self._missing_parts(old, wrapper))
        return rewritten[0]

    def _extract(self, member: str) -> Path:
        """The old library, under its companion name."""
        path = self.work / "original.so"
        with self.package.container.open(member) as stream, path.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 22)
        return path.rename(self.work / contents.companion_name(path))

    def _missing_parts(self, old: Path, wrapper: Wrapper) -> list[Callable[[], Coroutine[None, None, None]]]:
        """What must be made anew because the old library does not offer it, or a sanitizer is asked for."""
        names = [name for name, kernel in wrapper.kernels.items() if kernel.kind == "cpp"]
        options = self.tools.options
        anew = contents.missing_symbols(old, names) or options.sanitize or options.kernels
        made: list[Callable[[], Coroutine[None, None, None]]] = []
        if self.package.kernel_text and names and anew:
            made.append(self._kernels)
        if contents.missing_symbols(old, ["_binary_constants_bin_start"]):
            made.append(lambda: self._constants(old))
        return made

    async def _wrapper(self, wrapper: Wrapper) -> Rewritten:
        """Compile the rewritten wrapper; launches whose probes the compiler refuses are given up."""
        refused: dict[int, str] = {}
        for _ in range(ATTEMPTS):
            rewritten = self._rewrite(wrapper, refused)
            log = await self._compile_wrapper(rewritten.text)
            if log is None:
                return rewritten
            news = blame(log, wrapper, refused)
            if not news:
                break
            refused.update(news)
        raise ProblemError(
            "the wrapper does not compile with this interpreter's torch: " + first_error(log or ""),
            value=f"torch {self.tools.toolchain.torch_version}, {self.tools.compiler}",
            allowed="the torch version that built the package",
            next_call="pass `python` of an environment with that torch, or recompile the model",
        )

    def _rewrite(self, wrapper: Wrapper, refused: dict[int, str]) -> Rewritten:
        if not self.tools.options.probes:
            return Rewritten(wrapper.text, (), ())
        separate = self.tools.options.sanitize == "address" or self.tools.options.separate_weights
        return rewrite(wrapper, self.package.model_name, refused, separate_weights=separate)

    async def _compile_wrapper(self, text: str) -> str | None:
        """None, or what the compiler said."""
        source = self.package.files.wrapper_source
        assert source is not None
        placed = self._place(source.name, text)
        probes = ("-include", str(NATIVE / "probes.h")) if self.tools.options.probes else ()
        extra = (self.tools.options.optimization, *probes, MAP)
        return await self._compile(placed, "wrapper.o", extra)

    def _place(self, member: str, text: str) -> str:
        """Write a source under its own name, which errors and reports will show; its path below `work`."""
        path = self.work / SOURCES / Path(member).name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return f"{SOURCES}/{path.name}"

    async def _support(self) -> None:
        """Objects that are the same for every package of this compiler: the probe runtime, std::regex."""
        tools = self.tools
        directory = await support_objects(tools.cache, tools.compiler, self.flags, tools.context, tools.env)
        for path in directory.glob("*.o"):
            shutil.copyfile(path, self.work / path.name)

    async def _kernels(self) -> None:
        text = self.package.kernel_text
        if not self.tools.options.index_asserts:
            text = _ASSERT.sub(";", text)
        for _name, source, changed in self.tools.options.kernels:
            text = text.replace(source, compiled_form(changed))
        assert self.package.files.kernel_source is not None
        placed = self._place(self.package.files.kernel_source.name, text)
        flags = commands.safe_flags(commands.read_recorded(text))
        sanitize = SANITIZE_FLAGS[self.tools.options.sanitize] if self.tools.options.sanitize else ("-O3",)
        argv = commands.compile_command(
            self.tools.compiler, flags, self.tools.toolchain, placed, "kernels.o", (*sanitize, MAP)
        )
        await self._make(argv, "compile-kernels")

    async def _constants(self, old: Path) -> None:
        """Bring the constants back by assembly, when the old library hides where they are."""
        facts = self.package.library
        with old.open("rb") as stream:
            if facts is None or not contents.dump_constants(facts, stream, self.work / "constants.bin"):
                raise ProblemError("the package's library hides its constants", value=old.name)
        (self.work / "constants.S").write_text(contents.constants_assembly(Path("constants.bin")))
        argv = (self.tools.compiler, "-c", "constants.S", "-o", "constants.o")
        await self._make(argv, "assemble-constants")

    async def _compile(self, source: str, target: str, extra: Sequence[str]) -> str | None:
        argv = commands.compile_command(
            self.tools.compiler, self.flags, self.tools.toolchain, source, target, extra
        )
        return await compile_in(self.tools.context, argv, self.work, "compile-wrapper", self.tools.env)

    async def _make(self, argv: Sequence[str], name: str) -> None:
        await compile_or_raise(self.tools.context, argv, self.work, name, self.tools.env)

    async def _link(self, old: Path, member: str) -> Path:
        target = self.work / "rebuilt" / Path(member).name
        target.parent.mkdir()
        sanitize = SANITIZE_FLAGS[self.tools.options.sanitize][:1] if self.tools.options.sanitize else ()
        objects = [path.name for path in sorted(self.work.glob("*.o"))]
        argv = commands.link_command(self.tools.compiler, [*objects, *sanitize], old, str(target))
        await self._make(argv, "link")
        await anyio.to_thread.run_sync(self._append_weights, old, target)
        return target

    def _append_weights(self, old: Path, target: Path) -> None:
        if self.package.library is not None:
            with old.open("rb") as stream:
                contents.append_mapped_weights(self.package.library, stream, target)


def blame(log: str, wrapper: Wrapper, refused: dict[int, str]) -> dict[int, str]:
    """Launches on whose lines the compiler found errors, with the first error of each."""
    errors: dict[int, str] = {}
    for line, text in _ERROR.findall(log):
        errors.setdefault(int(line), text[:200])
    lines = {}
    for number, launch in numbered(wrapper):
        last = launch.line + wrapper.text.count("\n", launch.start, launch.end)
        lines.update(dict.fromkeys(range(launch.line, last + 1), number))
    found = {
        lines[at]: f"the compiler refuses its probes: {text}" for at, text in errors.items() if at in lines
    }
    return {number: reason for number, reason in found.items() if number not in refused}
