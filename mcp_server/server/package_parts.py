"""What a client may read of a package as resources: one kernel, one buffer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mcp_server.model import Record
from mcp_server.operations.paths import package_file
from mcp_server.package import query
from mcp_server.package.view import PackageView, view_package
from mcp_server.package.wrapper import Wrapper


def kernel_text(package: str, kernel: str) -> str:
    """A kernel with its source, and its launches, as JSON. Raises ProblemError for a bad name or file."""
    view = _view(package)
    facts: list[Record] = [query.kernel_fact(view, kernel)] if query.is_kernel(view, kernel) else []
    return _json([*facts, *query.launch_facts(view, query.launches_of_kernel(view, kernel))])


def buffer_text(package: str, buffer: str) -> str:
    """A tensor of the wrapper, who writes and who reads it, as JSON. Raises ProblemError."""
    return _json([query.buffer_fact(_view(package), buffer)])


def wrapper_of(package: str) -> Wrapper:
    """The wrapper of a package. Raises ProblemError."""
    return _view(package).wrapper


def _view(package: str) -> PackageView:
    return view_package(package_file(package, Path.cwd()))


def _json(facts: Sequence[Record]) -> str:
    return json.dumps([fact.model_dump(mode="json") for fact in facts], indent=1, ensure_ascii=False)
