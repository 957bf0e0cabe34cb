"""MCP completions: jobs and their files, packages and scripts, and the kernels and buffers of a package."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import anyio.to_thread
from mcp.server import MCPServer
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.server.running import Ownership

MOST = 100
"""The protocol's limit of values in one answer."""
LOOKED_AT = 5_000
"""Entries of a directory, or files of a job, that are looked at."""

Known = Mapping[str, str]
Source = Callable[[str, Known], Iterable[str]]


def add_completions(server: MCPServer[Any], store: Store, ownership: Ownership) -> None:
    """Complete the arguments of the prompts and of the resource templates, by the argument's name."""
    sources = sources_of(store, ownership)

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # untyped in mcp 2.3
    async def complete(
        _ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        known = (context.arguments if context else None) or {}
        source = sources.get(argument.name, _nothing)
        found = await anyio.to_thread.run_sync(_matches, source, argument.value, known)
        return Completion(values=found[:MOST], total=len(found), has_more=len(found) > MOST)


def sources_of(store: Store, ownership: Ownership) -> dict[str, Source]:
    """What is offered for an argument of that name."""
    return {
        "job_id": lambda _typed, _known: ownership.listed(reversed(store.ids())),
        "name": lambda _typed, known: _files_of_job(store, ownership, known.get("job_id", "")),
        "package": lambda typed, _known: _paths(typed, (".pt2",)),
        "workload": lambda typed, _known: _paths(typed, (".pt2", ".py")),
        "kernel": lambda _typed, known: _kernels(known.get("package", "")),
        "buffer": lambda _typed, known: _buffers(known.get("package", "")),
    }


def _matches(source: Source, typed: str, known: Known) -> list[str]:
    """What begins with the typed text, then what holds it. Nothing when the source cannot be read."""
    try:
        offered = list(dict.fromkeys(source(typed, known)))
    except (ProblemError, OSError):
        return []
    begins = [value for value in offered if value.startswith(typed)]
    return begins + [value for value in offered if typed in value and not value.startswith(typed)]


def _nothing(_typed: str, _known: Known) -> Iterable[str]:
    return ()


def _files_of_job(store: Store, ownership: Ownership, job_id: str) -> Iterator[str]:
    ownership.check(job_id)
    root = store.find(job_id).path
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return (path.relative_to(root).as_posix() for path in islice(found, LOOKED_AT))


def _paths(typed: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files with these suffixes, and directories, in the directory that the typed path names."""
    folder = typed[: typed.rfind("/") + 1]
    with os.scandir(Path(folder or ".").expanduser()) as listing:
        entries = list(islice(listing, LOOKED_AT))
    shown = [entry for entry in entries if not entry.name.startswith(".")]
    files = [entry.name for entry in shown if entry.name.endswith(suffixes)]
    return [folder + name for name in sorted(files)] + [
        f"{folder}{entry.name}/" for entry in sorted(shown, key=lambda entry: entry.name) if entry.is_dir()
    ]


def _kernels(package: str) -> list[str]:
    """Names by their first launch, so that the order is that of the run."""
    from mcp_server.server.package_parts import wrapper_of

    wrapper = wrapper_of(package)
    return [launch.kernel for launch in wrapper.launches] + list(wrapper.kernels)


def _buffers(package: str) -> list[str]:
    from mcp_server.server.package_parts import wrapper_of

    return list(wrapper_of(package).buffers)
