"""How the tests are laid out: helpers in `tests/support`, and few names from inside the product."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.conftest import ROOT

# What a user, a client or the documentation sees. A name from any other module of ours is deep: a
# class that is renamed there renames a test, though nobody outside can tell.
PUBLIC = (
    "cli",
    "diagnosis.diagnose",
    "errors",
    "flags",
    "logs.families",
    "logs.log",
    "model",
    "operations.table",
    "package.archive",
    "package.pytorch",  # with `package.terms` it could be published by itself
    "package.terms",
    "package.view",
    "render",
    "report.bundle",
    "report.page",
    "server.app",
    "server.resources",
    "server.tools",
    "sweep",
    "versions",
)
MOST_DEEP = 660
"""Deep names when this was last counted. Lower it with each test that goes through a public face."""


@cache
def imported() -> tuple[tuple[str, str, str], ...]:
    """File, module and name of each import from a module, anywhere in a test file."""
    return tuple(_imported())


def _imported() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((str(path.relative_to(ROOT)), node.module, name.name) for name in node.names)


def public(module: str) -> bool:
    inside = module.removeprefix("mcp_server.")
    return any(inside == name or inside.startswith(f"{name}.") for name in PUBLIC)


def test_no_test_file_imports_another() -> None:
    """What two files need lies in a support module, where it is found without reading tests."""
    of_tests = [
        (file, module, name)
        for file, module, name in imported()
        if module.startswith("tests") and any(part.startswith("test_") for part in (*module.split("."), name))
    ]
    assert of_tests == []


def test_fewer_names_come_from_inside_the_product() -> None:
    """The number only goes down."""
    deep = {
        (module, name)
        for _, module, name in imported()
        if module.startswith("mcp_server") and not public(module)
    }
    assert len(deep) <= MOST_DEEP, "go through the CLI, the MCP server or diagnose, or lower another"
