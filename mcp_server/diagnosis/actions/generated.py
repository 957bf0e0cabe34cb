"""The source of a kernel that failed before there was a package: the compiler's file, or the user's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mcp_server.diagnosis.case import Case, GeneratedKernel
from mcp_server.diagnosis.index_parts import index_error
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.evidence.captured import CapturedCompile
from mcp_server.model import ModelLocation, ScriptWorkload
from mcp_server.package.exported import node_lines
from mcp_server.package.problems import PackageError
from mcp_server.steps.context import Context

# Inductor names generated files by the base32 of their SHA-256 (torch/_inductor/codecache.py, 2.8-2.15).
_GENERATED = re.compile(r"c[a-z2-7]{50,51}\.py")
_KERNEL = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
LARGEST = 4 << 20
MOST_LINES = 3
# Operators of a model that index with values, as they stand in the names of fused kernels.
_INDEXING = frozenset({"index", "embedding", "gather", "index_select", "index_put", "scatter", "take"})


class ReadGeneratedKernel:
    """Only after a run of our own, and only files that the compiler wrote, or in which the program stands: a
    log may name any path.
    """

    name = "read_generated_kernel"
    seconds = 0.1
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if case.package is not None or not case.runs:
            return 0.0
        return 1.0 if _named(case) is not None or _refused(case) is not None else 0.0

    async def act(self, case: Case, _context: Context) -> None:
        named, refused = _named(case), _refused(case)
        found = _read(*named) if named is not None else None
        if found is not None:
            case.generated = replace(found, model=_indexing_lines(found.name, case))
        elif refused is not None:
            case.generated = _of_user(*refused, case)


def _named(case: Case) -> tuple[Path, int] | None:
    """The generated file and the line in it that the index assertion names."""
    error = index_error(case)
    file, line = (
        (error.fields.get("file", ""), error.fields.get("line", "")) if error is not None else ("", "")
    )
    path = Path(file)
    return (path, int(line)) if _GENERATED.fullmatch(path.name) and line.isdigit() else None


def _refused(case: Case) -> tuple[str, int] | None:
    """The user's Triton kernel that could not be compiled, and the line in it, counted from its `def`."""
    for _, facts in case.own_logs:
        root = facts.root
        if root is not None and root.family.id == "triton_compile" and "function" in root.fields:
            line = root.fields.get("kernel_line", "")
            return (root.fields["function"], int(line)) if line.isdigit() else None
    return None


def _of_user(function: str, line: int, case: Case) -> GeneratedKernel | None:
    """Where the program defines that kernel; None where no file of it does, or several do."""
    pattern = re.compile(rf"^def\s+{re.escape(function)}\s*\(", re.MULTILINE)
    found = [(path, at) for path, text in _sources(case) for at in pattern.finditer(text)]
    if len(found) != 1:
        return None
    path, at = found[0]
    number = at.string.count("\n", 0, at.start()) + line
    lines = at.string.splitlines()
    code = lines[number - 1].strip()[:300] if number <= len(lines) else ""
    return GeneratedKernel(function, path, number, code)


def _sources(case: Case) -> Iterator[tuple[Path, str]]:
    """The script, and the files in which the lines of its model stand."""
    script = [case.workload.script] if isinstance(case.workload, ScriptWorkload) else []
    stacks = [location.file for compile_ in _compiles(case) for location in compile_.stack]
    for path in dict.fromkeys([*script, *(Path(file) for file in [*stacks, *_files(case)])]):
        if path.is_file() and path.stat().st_size <= LARGEST:
            yield path, path.read_text(errors="replace")


def _files(case: Case) -> list[str]:
    return [line.file for _, line in _nodes(case)]


def _indexing_lines(kernel: str, case: Case) -> tuple[ModelLocation, ...]:
    """The lines of the operators that index, of those that are fused in the kernel."""
    words = {word for word in _INDEXING if f"_{word}_" in f"_{kernel}_"}
    lines = (line for target, line in _nodes(case) if words.intersection(target.split(".")[1:2]))
    return tuple(dict.fromkeys(lines))[:MOST_LINES]


def _nodes(case: Case) -> tuple[tuple[str, ModelLocation], ...]:
    """Operators of the program whose compile failed, with their lines; none where it was not kept."""
    for compile_ in reversed(_compiles(case)):
        if compile_.exported is not None and compile_.exported.is_file():
            try:
                return node_lines(compile_.exported)
            except PackageError:
                return ()
    return ()


def _compiles(case: Case) -> list[CapturedCompile]:
    return case.capture.compiles if case.capture is not None else []


def _read(path: Path, line: int) -> GeneratedKernel | None:
    """None for a file that is gone, too large, or no Triton kernel."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return None
    text = path.read_text(errors="replace")
    kernel, lines = _KERNEL.search(text), text.splitlines()
    if kernel is None or "@triton.jit" not in text or line > len(lines):
        return None
    return GeneratedKernel(kernel[1], path, line, lines[line - 1].strip()[:300])
