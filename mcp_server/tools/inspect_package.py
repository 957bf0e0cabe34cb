"""`inspect_package`: reads a package without running it, as an overview or to answer a question."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import Field
from pydantic_core import to_json

from mcp_server.model import Record
from mcp_server.package import query
from mcp_server.package.assertion import read_assertion
from mcp_server.package.prover import Finding, find_kernel_defects, largest_sizes
from mcp_server.package.query import Fact
from mcp_server.package.view import PackageView, view_package

PAGE_CHARACTERS = 6_000
SOURCE_CHARACTERS = 20_000
_SHOWN = 20
_FEW = 8
_HASH = re.compile(r"^[0-9a-z]{40,}\.(?=wrapper|kernel)")


class Overview(Record):
    """A package on one screen. Counts are complete; lists are cut to fit.

    Facts that only the sources contain are None for a package without sources; None does not mean zero.
    `weights` is the location and size of the constants; `files` are the largest files, with their bytes.
    """

    models: list[str]
    device: str | None
    architecture: str | None
    platform: str = ""
    inputs: list[str] | None
    outputs: int | None
    symbols: list[str]
    constants: int | None
    constant_names: list[str] = Field(default_factory=list)
    weights: str = ""
    files: list[str] = Field(default_factory=list)
    launches: int | None
    kinds: dict[str, int]
    kernels: list[str]
    unchecked: list[str] = Field(default_factory=list)
    model_lines: str
    defects: list[str] = Field(default_factory=list)


class Inspection(Record):
    """The answer. `facts` is one page from `offset` of `total`; continue at `next_offset` (None at the end).

    `not_understood` lists places in the wrapper that the reader did not understand; whatever depends on them
    may be missing.
    """

    package: str
    model: str
    overview: Overview | None = None
    facts: list[Fact] = Field(default_factory=list)
    total: int = 0
    offset: int = 0
    next_offset: int | None = None
    notes: list[str] = Field(default_factory=list)
    not_understood: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """Facts. A launch is given by its number, and described only if its page is requested."""

    facts: Sequence[Fact | int]
    notes: tuple[str, ...] = ()


async def inspect_package(
    package: Path, asked: Mapping[str, Any] = {}, *, model_name: str | None = None, offset: int = 0
) -> Inspection:
    """Answer the question `asked`, {subject: value}, about a package, or give an overview if it is empty.

    Nothing is loaded or run. Raise `PackageError` for a file that is not a package, and `ProblemError` for a
    name that it does not contain (with the names that it does contain).
    """
    # In a thread: a large package takes seconds, and the server answers other calls meanwhile.
    return await anyio.to_thread.run_sync(_inspect, package, asked, model_name, offset)


def _inspect(package: Path, asked: Mapping[str, Any], model_name: str | None, offset: int) -> Inspection:
    view = view_package(package, model_name)
    overview = not asked
    answer = _launches_in_short(view) if overview else _answer(view, asked)
    page: list[Fact] = []
    used, following = 0, None
    for number in range(max(offset, 0), len(answer.facts)):
        fact = answer.facts[number]
        if isinstance(fact, int):
            (fact,) = query.launch_facts(view, [fact], brief=overview)
        used += len(to_json(fact))
        if page and used > PAGE_CHARACTERS:
            following = number
            break
        page.append(fact)
    return Inspection(
        package=str(package),
        model=view.package.model_name,
        overview=_overview(view) if overview else None,
        facts=page,
        total=len(answer.facts),
        offset=offset,
        next_offset=following,
        notes=list(answer.notes),
        not_understood=[f"wrapper.cpp:{p.line}: {p.what}" for p in view.wrapper.problems[:_SHOWN]],
    )


def _answer(view: PackageView, asked: Mapping[str, Any]) -> _Answer:
    """Answer about the one subject in `asked`. An assertion may come with the kernel that printed it."""
    match asked:
        case {"assertion": text}:
            found = query.assertion_facts(view, read_assertion(text, kernel=asked.get("kernel")), text)
            note = query.ambiguity(found) if found else query.no_holder(view)
            return _Answer(found, (note,) if note else ())
        case {"launch": number}:
            return _Answer(query.launch_facts(view, [number]))
        case {"kernel": name}:
            return _kernel(view, name)
        case {"location": line}:
            return _Answer(view.launches_of_line(line))
        case {"buffer": name}:
            return _Answer([query.buffer_fact(view, name)])
        case {"input": name}:
            return _Answer([query.input_fact(view, name)])
    constant = query.constant_fact(view, asked["constant"])
    name = constant["name"]
    folding = query.folding_facts(view, constant=name) if name in view.wrapper.folded else []
    return _Answer([constant, *folding])


def _launches_in_short(view: PackageView) -> _Answer:
    kernels = [launch.kernel for launch in view.folding_launches()]
    fold = (
        f"{len(kernels)} more launches run once, before the first call, to fold constants: "
        f"{', '.join(kernels[:_SHOWN])}; ask for constant {', '.join(list(view.wrapper.folded)[:_SHOWN])}"
    )
    notes = (fold if kernels else "", query.sourceless(view))
    return _Answer(range(len(view.wrapper.launches)), tuple(filter(None, notes)))


@lru_cache(maxsize=4)
def _of_kernels(view: PackageView) -> dict[Finding, str]:
    """List the defects that the kernels' code shows for the largest sizes of the package."""
    sizes = largest_sizes(view)
    named = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    said = f" (for {named}, the largest)" if named else ""
    return {each: f"{each.sentence}{said}" for each in find_kernel_defects(view, sizes)}


def _kernel(view: PackageView, name: str) -> _Answer:
    """Answer with a kernel, then its launches; a shim or a custom operator has only launches."""
    numbers = query.launches_of_kernel(view, name)
    if not view.wrapper.kernel_named(name):
        return _Answer(numbers)
    kernel = query.kernel_fact(view, name, SOURCE_CHARACTERS)
    short = ["the source is cut"] if len(kernel["source"]) == SOURCE_CHARACTERS else []
    notes = (*short, *(said for found, said in _of_kernels(view).items() if found.kernel == kernel["name"]))
    return _Answer([kernel, *query.folding_facts(view, kernel=kernel["name"]), *numbers], notes)


def _overview(view: PackageView) -> Overview:
    package, wrapper, metadata = view.package, view.wrapper, view.package.metadata
    kernels = Counter(launch.kernel for launch in wrapper.launches)
    known = package.signature.known
    # Sizes, strides and unbacked symbols.
    symbols = [s for s in wrapper.symbols.values() if s.kind in ("size", "stride") or s.unbacked]
    unchecked = [n for n in wrapper.launches if not n.checked]
    sources = Counter(view.provenance(launch).source for launch in wrapper.launches)
    framed, total = sources["kernel_information"] + sources["context_guard"], len(wrapper.launches)
    model_lines = f"stack frames for {framed} of {total} launches"
    if not package.wrapper_text:
        model_lines = "not known: the package holds no wrapper.cpp"
    elif not framed:
        model_lines = f"graph nodes for {sources['comments']} of {total} launches"
        model_lines += "; compile with INDUCTOR_PROVENANCE=1 for stack frames"
    inputs = []  # lines such as `input 0 (ids): int64 [s23, 6], s23 of 2 to 64`
    for one in package.inputs[:_SHOWN]:
        ranges = {
            str(d): f", {d} of {d.lower} to {d.upper}" for d in one.dims if None not in (d.lower, d.upper)
        }
        inputs.append(f"{one.label}: {one.dtype} {one.shape}{''.join(ranges.values())}")
    largest = sorted(package.files.members, key=lambda member: -member.size)[:_FEW]
    return Overview(
        models=list(package.models),
        device=package.device_type,
        architecture=metadata.compute_capability or " ".join(metadata.isa) or None,
        platform=" ".join(part for part in (metadata.platform, metadata.machine) if part),
        inputs=inputs if known else None,
        outputs=len(wrapper.run.outputs) if known else None,
        symbols=[f"{s.name} = {s.expression}" for s in symbols[:_SHOWN]],
        constants=len(package.constants) if known else None,
        constant_names=[f"{c.fqn}: {c.dtype} {list(c.shape)}" for c in package.constants[:_FEW]],
        weights=f"{package.weights.place}, {package.weights.bytes} bytes",
        files=[f"{_HASH.sub('', m.name.rpartition('/')[2])}: {m.size}" for m in largest],
        launches=len(wrapper.launches) if package.wrapper_text else None,
        kinds=dict(Counter[str](launch.kind for launch in wrapper.launches)),
        kernels=[f"{name} ×{count}" for name, count in kernels.most_common(_SHOWN)],
        unchecked=[f"launch {n.index} {n.kernel} (line {n.line})" for n in unchecked[:_SHOWN]],
        model_lines=model_lines,
        defects=[*(each.what for each in package.defects), *_of_kernels(view).values()][:_SHOWN],
    )
