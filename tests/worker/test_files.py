"""What every file of the worker must keep to, since it runs in the user's interpreter."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server import worker
from mcp_server.worker.main import OPERATIONS

DIRECTORY = Path(worker.__file__).parent
FILES = sorted([*DIRECTORY.glob("*.py"), *DIRECTORY.glob("capture/*.py")])

# Compiled into every interpreter that has torch, or looked for before use.
ALLOWED = frozenset({"torch", "triton"})


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of the top-level packages that a file imports absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_and_nothing_but_torch(path: Path) -> None:
    """Each file has the syntax of Python 3.9 and imports torch, the standard library or its siblings only."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert set(imported(tree)) <= ALLOWED | sys.stdlib_module_names
    future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert future or path.name == "__init__.py"


def test_every_operation_has_its_file() -> None:
    """The table of operations names files that have an `operate`."""
    for place in OPERATIONS.values():
        module, _, function = place.rpartition(".")
        tree = ast.parse((DIRECTORY / f"{module.replace('.', '/')}.py").read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), place
