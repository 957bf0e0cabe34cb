"""Compile and link commands of a rebuild: options, flags taken from the wrapper, and running the compiler.

A package is untrusted. From the compile command that its wrapper records, only flags of known harmless forms
are used, and never the path of a compiler, a plugin, a response file or a linker script.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.model import Record
from mcp_server.runtime.context import Context

Sanitizer = Literal["address", "undefined"]


@dataclass(frozen=True)
class Options:
    """How to rebuild a package.

    `sanitize` compiles the C++ kernels again with that sanitizer. If `index_asserts` is False, the kernels'
    own bound checks are removed, so that a sanitizer sees the access. `separate_weights` gives each weight
    its own allocation instead of a part of one blob, so that a checker sees an overrun into the next weight;
    AddressSanitizer implies it. `kernels` are C++ kernels to change: (name, source, new source). Without
    `probes`, `statements` replace launches, by their numbers.
    """

    probes: bool = True
    sanitize: Sanitizer | None = None
    index_asserts: bool = True
    separate_weights: bool = False
    kernels: tuple[tuple[str, str, str], ...] = ()
    statements: tuple[tuple[int, str], ...] = ()


class Skipped(Record):
    """A launch without probes, and the reason. If `launch` is None, the reason holds for a whole model."""

    model: str
    launch: int | None
    kernel: str
    reason: str


@dataclass(frozen=True)
class Toolchain:
    """The existing header directories of CUDA and of an interpreter's torch."""

    torch_version: str
    include: tuple[str, ...]
    cuda_include: tuple[str, ...]


@dataclass(frozen=True)
class Instrumented:
    """A rebuilt package. A process needs `preload` in LD_PRELOAD to load it. `seconds` is the build time.

    `probed` counts the launches with probes, by model.
    """

    package: Path
    probed: dict[str, int]
    skipped: tuple[Skipped, ...] = ()
    preload: tuple[str, ...] = ()
    cached: bool = False
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process needs to load the package."""
        return {"LD_PRELOAD": " ".join(self.preload)} if self.preload else {}


COMPILERS = ("g++", "c++", "clang++")
LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")  # may precede the compiler in CXX

# g++ starts garbage collection at 128 MiB; torch's headers need 400. Collecting later saves 10 % of time.
_NO_COLLECTION = ("--param=ggc-min-heapsize=600000",)  # KiB

_COMPILE = re.compile(r"^// Compile cmd\n// (.*)$", re.M)
_COMPILER = re.compile(r"(?:g\+\+|c\+\+|clang\+\+)(?:-\d+)?")
_DEFINE = re.compile(r"[A-Za-z_]\w*(?:=[\w.:+\-]*)?")
# The alternatives in order: language, code generation (by name), machine, disabled warnings, standard.
_FLAG = re.compile(
    r"-std=(?:c|gnu)\+\+\w+|-O[0-3s]|-fopenmp|-pedantic|-pthread|-w|-Wall|-Wno-[\w\-]+|-m[\w.\-]+(?:=[\w.\-]+)?"
    r"|-f(?:no-)?(?:PIC|pic|exceptions|rtti|omit-frame-pointer|trapping-math|finite-math-only|signed-zeros"
    r"|unsafe-math-optimizations|math-errno|associative-math|reciprocal-math|tree-loop-vectorize|lto"
    r"|strict-aliasing|inline-functions|visibility-inlines-hidden)"
    r"|-ffp-contract=\w+|-fexcess-precision=\w+|-fvisibility=\w+"
)
_REPLACED = re.compile(r"-O\w|-g\d?|-w|-Wall|-pedantic|-f(?:no-)?lto")
_SANE_PATH = re.compile(r"/[\w./+\-@]*")


@dataclass(frozen=True)
class Flags:
    """The safe flags of a recorded command, its -I directories, and the flags that were dropped."""

    kept: tuple[str, ...]
    includes: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def defines(self) -> frozenset[str]:
        return frozenset(flag[2:] for flag in self.kept if flag.startswith("-D"))


def read_recorded(source: str) -> tuple[str, ...]:
    """The words of the last recorded compile command. Raises `ProblemError` if there is none."""
    compiles = _COMPILE.findall(source)
    if not compiles:
        raise ProblemError(
            "the wrapper records no compile command, so it cannot be rebuilt",
            next_call="compile_with_flags on the exported program",
        )
    try:
        return tuple(shlex.split(compiles[-1]))
    except ValueError as error:
        raise ProblemError(
            f"the recorded command cannot be read: {error}", value=compiles[-1][:200]
        ) from error


def safe_flags(command: Sequence[str]) -> Flags:
    """Separate the safe flags of a recorded command. Inputs, output and precompiled headers are skipped."""
    kept: list[str] = []
    includes: list[str] = []
    dropped: list[str] = []
    words = iter(command[1:])
    for word in words:
        flag, value = word, ""
        if word in ("-D", "-I", "-include", "-o"):  # the value is the next word
            value = next(words, "")
        elif word[:2] in ("-D", "-I"):
            flag, value = word[:2], word[2:]
        is_input = not flag.startswith(("-", "@")) or _REPLACED.fullmatch(flag) is not None
        if flag == "-D" and _DEFINE.fullmatch(value):
            kept.append(f"-D{value}")
        elif flag == "-I" and _SANE_PATH.fullmatch(value):
            includes.append(value)
        elif not value and _FLAG.fullmatch(flag):
            kept.append(flag)
        elif flag not in ("-include", "-o", "-c", "-shared") and not is_input:
            dropped.append(f"{flag} {value}".strip())
    return Flags(tuple(kept), tuple(includes), tuple(dropped))


def compile_command(
    compiler: str, flags: Flags, toolchain: Toolchain, source: str, target: str, extra: Iterable[str] = ()
) -> tuple[str, ...]:
    """Build the argv that compiles `source` to the object `target` with this interpreter's headers.

    The recorded include directories come last, for headers that this torch lacks (custom operators). `-w` is
    set because warnings in generated code do not help the user.
    """
    kept = [flag for flag in flags.kept if not _REPLACED.fullmatch(flag)]
    cuda = toolchain.cuda_include if "USE_CUDA" in flags.defines else ()
    found = [path for path in flags.includes if Path(path).is_dir()]
    paths = dict.fromkeys((*toolchain.include, *cuda, *found))
    fixed = (*collection_flags(compiler), "-w", *extra)
    return (compiler, *kept, *fixed, *(f"-I{path}" for path in paths), "-c", source, "-o", target)


def collection_flags(compiler: str) -> tuple[str, ...]:
    """The flags that postpone garbage collection in g++; clang has no such collection."""
    return () if "clang" in Path(compiler).name else _NO_COLLECTION


def link_command(compiler: str, objects: Sequence[str], companion: Path, target: str) -> tuple[str, ...]:
    """Build the argv that links our objects and the original library `companion` into `target`.

    No other library is linked: the dependencies of the original provide every symbol, and others may be
    missing on a host without Python (libtorch.so, which a torch 2.13 package does not need).
    """
    original = ("-Wl,--no-as-needed", f"-L{companion.parent}", f"-l:{companion.name}")
    return (compiler, "-shared", "-fPIC", "-o", target, *objects, *original, "-Wl,-rpath,$ORIGIN")


def choose_compiler(recorded: Sequence[str], environ: Mapping[str, str]) -> str:
    """The full path of a C++ compiler: $CXX, the recorded name, or any on PATH.

    `environ` is the workload's environment: its compiler may differ from the server's.

    A compiler whose libstdc++ exists only as an archive is skipped: a library with its own copy of libstdc++
    crashes in std::regex (seen with torch 2.11). Raise `ProblemError` if no compiler is left.
    """
    try:
        words = shlex.split(environ.get("CXX", ""))
    except ValueError:
        words = []
    # CXX may name a launcher first (`ccache g++`), and flags after the compiler.
    named = [word for word in words if not word.startswith("-") and Path(word).name not in LAUNCHERS]
    name = Path(recorded[0]).name if recorded else ""
    names = [*named[:1], name if _COMPILER.fullmatch(name) else "g++", *COMPILERS]
    paths = [path for path in (shutil.which(name, path=environ.get("PATH")) for name in names) if path]
    usable = next((path for path in paths if file_of(path, "libstdc++.so", environ) is not None), None)
    if usable is None:
        raise ProblemError(
            "no C++ compiler with a shared libstdc++ was found",
            value=", ".join(paths) or None,
            allowed="$CXX, g++ or clang++ on PATH",
            next_call="install g++; without it use compile_with_flags where torch finds a compiler",
        )
    return usable


def file_of(compiler: str, name: str, environ: Mapping[str, str]) -> Path | None:
    """The path of one of the compiler's own files. None if the compiler does not have it."""
    argv = [compiler, f"-print-file-name={name}"]
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        argv, env=dict(environ), capture_output=True, text=True, timeout=20, check=False, stdin=nothing
    )
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.startswith("/") else None


COMPILE_LIMIT_S = 900.0


async def compile_in(
    context: Context, argv: Sequence[str], directory: Path, name: str, env: Mapping[str, str]
) -> str | None:
    """Run the command. Return its error output, or None on success. `env` has the workload's variables."""
    command = Command(argv=tuple(argv), cwd=directory, timeout_s=COMPILE_LIMIT_S, env=dict(env))
    finished = await context.run(command, name[:80])
    if finished.ok:
        return None
    return finished.stderr.read_text(errors="replace") or finished.note or finished.ending


async def compile_or_raise(
    context: Context, argv: Sequence[str], directory: Path, name: str, env: Mapping[str, str]
) -> None:
    """Run the command. Raise `ProblemError` with the compiler's first error if it fails."""
    failure = await compile_in(context, argv, directory, name, env)
    if failure is not None:
        raise ProblemError(
            "the rebuild failed: " + first_error(failure),
            value=argv[0],
            next_call="check_devices shows the toolchain; the log is among the artifacts",
        )


def first_error(log: str) -> str:
    """The first line that names an error, or the last line, shortened and printable."""
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1] if lines else "no message"
    line = next((line for line in lines if "error" in line or "cannot" in line), last)
    return "".join(char for char in line if char.isprintable())[:400]


async def together(*works: Callable[[], Awaitable[None]]) -> None:
    """Run all tasks at once. The first `ProblemError` cancels the others, and is raised without a group."""
    problems: list[ProblemError] = []

    async with anyio.create_task_group() as tasks:

        async def attempt(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except ProblemError as problem:
                problems.append(problem)
                tasks.cancel_scope.cancel()

        for work in works:
            tasks.start_soon(attempt, work)
    if problems:
        raise problems[0]
