"""What a client may read and complete: guides, flags, jobs with their files, parts of packages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import ResourceSecurity
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import load
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import SCHEME, Store
from mcp_server.server.prompts import GUIDES, REFERENCE, Guide, available
from mcp_server.server.running import Ownership

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.package.view import PackageView

PAGE_BYTES = 20_000
LARGEST_PAGE_BYTES = 200_000
DIGITS = 18
SHOWN_JOBS = 50
MARKDOWN = "text/markdown"
JSON = "application/json"


def read_artifact(store: Store, job_id: str, name: str, offset: int = 0, limit: int = PAGE_BYTES) -> str:
    """Text of `limit` bytes (at most 200,000) from `offset`; what is left out is said in a last line.

    A client may print it on a terminal: escapes and control characters are left out.

    Raises ProblemError: no such job or file, a path out of the job's directory, a binary file, a bad range.
    """
    uri = f"{SCHEME}{job_id}/{quote(name)}"
    path = store.path_of(uri)
    size = path.stat().st_size
    if not 0 <= offset <= size or not 1 <= limit <= LARGEST_PAGE_BYTES:
        allowed = f"offset 0-{size}, limit 1-{LARGEST_PAGE_BYTES}"
        raise ProblemError("no such range", value=f"offset {offset}, limit {limit}", allowed=allowed)
    with path.open("rb") as file:
        file.seek(offset)
        page = file.read(limit)
    if b"\0" in page:
        raise ProblemError("the file is binary", value=name, next_call=f"open {path} with a local tool")
    end = offset + len(page)
    note = "" if end >= size else f"\n[up to byte {end} of {size}; next: {uri}?offset={end}]"
    return clean(page.decode("utf-8", "replace")) + note


def add_resources(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    """Offer every guide, the flag table, the jobs and artifacts of `store`, and what packages hold."""
    for guide in available((*GUIDES, *REFERENCE)):
        _add_guide(server, guide)

    @server.resource("aoti-debug://flags", name="flags", title="Every debugging flag", mime_type=MARKDOWN)
    def flags() -> str:
        """When each flag acts, since which torch, what it shows and what it misses."""
        from mcp_server.flags import FLAGS, table_markdown

        return table_markdown(FLAGS)

    @server.resource("aoti-debug://jobs", name="jobs", title="The newest jobs", mime_type=JSON)
    def jobs() -> str:
        """Handle, tool and state of the newest jobs, also of those whose handle was lost."""
        rows = []
        for job_id in ownership.listed(reversed(store.ids()))[:SHOWN_JOBS]:
            directory = store.find(job_id)
            saved = load(directory.path)
            state = saved.state if saved else "running" if store.is_running(directory) else "lost"
            rows.append({"job_id": job_id, "tool": directory.kind, "state": state})
        return json.dumps(rows, indent=1)

    @server.resource(SCHEME + "{job_id}/{+name}{?offset,limit}", name="artifact", title="A file of a job")
    def artifact(job_id: str, name: str, offset: str = "", limit: str = "") -> str:
        """Log, report or result of a job; offset and limit are bytes, 20,000 by default."""
        with _refusals():
            ownership.check(job_id)
            begin, most = _number("offset", offset, 0), _number("limit", limit, PAGE_BYTES)
            return read_artifact(store, job_id, name, begin, most)

    # A package lies where the caller says, as with the tools: its path is no part of this server's tree.
    common: dict[str, Any] = {"mime_type": JSON, "security": ResourceSecurity(exempt_params={"package"})}

    @server.resource(
        "aoti-debug://kernels/{kernel}{?package}", name="kernel", title="A kernel of a package", **common
    )
    def kernel(kernel: str, package: str = "") -> str:
        """Source, assertions and launches of a kernel of the .pt2 file `package`."""
        from mcp_server.package import query

        with _refusals():
            view = _view(package)
            facts = [query.kernel_fact(view, kernel)] if query.is_kernel(view, kernel) else []
            return _facts([*facts, *query.launch_facts(view, query.launches_of_kernel(view, kernel))])

    @server.resource(
        "aoti-debug://buffers/{buffer}{?package}", name="buffer", title="A buffer of a package", **common
    )
    def buffer(buffer: str, package: str = "") -> str:
        """Shape, producer and readers of a tensor of the .pt2 file `package`."""
        from mcp_server.package import tensor_query

        with _refusals():
            return _facts([tensor_query.buffer_fact(_view(package), buffer)])


def _add_guide(server: MCPServer[Any], guide: Guide) -> None:
    @server.resource(guide.uri, name=guide.file, title=guide.title, mime_type=MARKDOWN)
    def read() -> str:
        """A guide: which symptom it is for, and the procedure."""
        return guide.path.read_text(encoding="utf-8")


def _number(name: str, text: str, default: int) -> int:
    """As text here and not as `int`: the SDK answers to a wrong type that the server failed."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS):
        raise ProblemError(f"{name} is no number of bytes", value=text[:80], allowed="a whole number from 0")
    return int(text)


@contextmanager
def _refusals() -> Iterator[None]:
    """A problem as the protocol has it."""
    try:
        yield
    except ProblemError as problem:
        raise ResourceNotFoundError(str(problem)) from problem


def _view(package: str) -> PackageView:
    """Raises ProblemError."""
    from mcp_server.operations.workload import package_file
    from mcp_server.package.view import view_package

    return view_package(package_file(package, Path.cwd()))


def _facts(facts: Iterable[Record]) -> str:
    return json.dumps([fact.model_dump(mode="json") for fact in facts], indent=1, ensure_ascii=False)


MOST = 100
"""The protocol's limit of values in one answer."""
LOOKED_AT = 5_000
"""Entries of a directory, or files of a job, that are looked at."""

Known = Mapping[str, str]


def add_completions(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    """Complete the arguments of the prompts and of the resource templates, by the argument's name."""

    def files_of_job(job_id: str) -> Iterator[str]:
        ownership.check(job_id)
        root = store.find(job_id).path
        found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        return (path.relative_to(root).as_posix() for path in islice(found, LOOKED_AT))

    def kernels(package: str) -> list[str]:
        """By their first launch, so that the order is that of the run."""
        wrapper = _view(package).wrapper
        return [launch.kernel for launch in wrapper.launches] + list(wrapper.kernels)

    sources: dict[str, Callable[[str, Known], Iterable[str]]] = {
        "job_id": lambda _typed, _known: ownership.listed(reversed(store.ids())),
        "name": lambda _typed, known: files_of_job(known.get("job_id", "")),
        "package": lambda typed, _known: _paths(typed, (".pt2",)),
        "workload": lambda typed, _known: _paths(typed, (".pt2", ".py")),
        "kernel": lambda _typed, known: kernels(known.get("package", "")),
        "buffer": lambda _typed, known: _view(known.get("package", "")).wrapper.buffers,
    }

    def matches(name: str, typed: str, known: Known) -> list[str]:
        """What begins with the typed text, then what holds it. Nothing when the source cannot be read."""
        try:
            offered = list(dict.fromkeys(sources[name](typed, known))) if name in sources else []
        except (ProblemError, OSError):
            return []
        found = [value for value in offered if typed in value]
        return sorted(found, key=lambda value: not value.startswith(typed))

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # untyped in mcp 2.3
    async def complete(
        _ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        known = (context.arguments if context else None) or {}
        found = await anyio.to_thread.run_sync(matches, argument.name, argument.value, known)
        return Completion(values=found[:MOST], total=len(found), has_more=len(found) > MOST)


def _paths(typed: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files with these suffixes, and directories, in the directory that the typed path names."""
    folder = typed[: typed.rfind("/") + 1]
    with os.scandir(Path(folder or ".").expanduser()) as listing:
        entries = sorted(islice(listing, LOOKED_AT), key=lambda entry: entry.name)
    shown = [entry for entry in entries if not entry.name.startswith(".")]
    files = [f"{folder}{entry.name}" for entry in shown if entry.name.endswith(suffixes)]
    return files + [f"{folder}{entry.name}/" for entry in shown if entry.is_dir()]
