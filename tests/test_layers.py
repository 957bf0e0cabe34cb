"""The layers of docs/architecture.md, and how the tests are laid out."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import ROOT
from tests.support.command import output_of

PRODUCT = ROOT / "mcp_server"
PAGE = ROOT / "docs" / "architecture.md"
# The top layer first. A module belongs to the longest entry that it begins with.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "__main__"),
    ("server",),
    ("report",),
    ("render",),
    ("brief", "sweep"),
    ("operations",),
    ("cost",),
    ("diagnosis",),
    ("operations.arguments",),  # the arguments of a tool, as its caller gave them
    ("tools",),
    ("recorder",),
    ("probes",),
    ("runtime",),  # how a child is started: for every tool, and for the builds of `probes`
    ("memory_faults",),
    ("package",),
    ("logs", "flags"),
    ("interpreter",),
    ("jobs",),
    ("worker",),
    ("model", "errors", "plurals", ""),
)
LEVEL = {name: number for number, layer in enumerate(LAYERS) for name in layer}
# Rarely needed modules, and who may import them.
OPTIONAL = {
    "sweep": {"cli.app"},
    "tools.reduce": {"operations.table", "tools.bisect"},
    "tools.bisect": {"operations.table", "diagnosis.observe.wrong_numbers"},
    "diagnosis.try_fix": {"operations.table"},
    "report": {"cli"},
}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its name below `mcp_server`, such as `tools.capture`, or "" for the package."""
    found = {}
    for path in PRODUCT.rglob("*.py"):
        parts = list(path.relative_to(PRODUCT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


@cache
def imports(name: str) -> tuple[str, ...]:
    return tuple(read_imports(name))


def read_imports(name: str) -> Iterator[str]:
    """Yield our modules that a module imports, anywhere in it."""
    path = PRODUCT.joinpath(*name.split(".")) if name else PRODUCT
    package = name.split(".") if path.is_dir() else name.split(".")[:-1]
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            yield from (a.name[len("mcp_server.") :] for a in node.names if a.name.startswith("mcp_server."))
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*filter(None, package[: len(package) - node.level + 1]), *base]
            elif base[0] != "mcp_server":
                continue
            else:
                base = base[1:]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                yield whole if whole in modules() else ".".join(base)


def level(name: str) -> int:
    """The number of a module's layer; 0 is the top."""
    parts = name.split(".")
    return next(LEVEL[key] for n in range(len(parts), -1, -1) if (key := ".".join(parts[:n])) in LEVEL)


def below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}.")


def test_imports_point_down_only() -> None:
    """No module imports one of a layer above its own, not even late or for types."""
    assert [(one, other) for one in modules() for other in imports(one) if level(other) < level(one)] == []


def test_every_module_has_a_layer() -> None:
    """Every module belongs to a layer. The package itself has only `__init__`."""
    assert {name.partition(".")[0] for name in modules()} == {name.partition(".")[0] for name in LEVEL}


FAN_OUT = 20


def test_no_module_imports_from_too_many() -> None:
    """A module that needs so many others has more than one task."""
    for name, tree in modules().items():
        sources = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        assert sum(below(source, "mcp_server") for source in sources) <= FAN_OUT, name


CHANGES = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}


def root_of(node: ast.expr) -> str:
    """`case` for `case.call.request["x"]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def writes(node: ast.AST) -> bool:
    """Whether a node sets, deletes or changes something below the name `case`."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and root_of(node) == "case"
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in CHANGES and root_of(called) == "case"


def test_causes_only_read() -> None:
    """Causes import no module of `observe` and change nothing below `case`."""
    for name in (name for name in modules() if below(name, "diagnosis.causes")):
        assert [other for other in imports(name) if below(other, "diagnosis.observe")] == [], name
        assert [ast.unparse(node) for node in ast.walk(modules()[name]) if writes(node)] == [], name


@pytest.mark.parametrize("folder", ["worker", "package.terms"])
def test_what_imports_no_module_of_ours_but_its_own(folder: str) -> None:
    """The worker runs without our other modules, and the kernel reader could be published alone."""
    names = [name for name in modules() if below(name, folder)]
    assert names and [other for name in names for other in imports(name) if not below(other, folder)] == []


@pytest.mark.parametrize("optional", OPTIONAL)
def test_what_few_need_is_imported_where_it_is_asked_for(optional: str) -> None:
    """`sweep`, reduction and reports are imported only where they are needed."""
    users = {name for name in modules() for other in imports(name) if below(other, optional)}
    strangers = {name for name in users if not below(name, optional)}
    assert [name for name in strangers if not any(below(name, user) for user in OPTIONAL[optional])] == []


LOADED = """
import json, sys
import mcp_server.server.app, mcp_server.operations.workload, mcp_server.operations.work
import mcp_server.diagnosis.diagnose
print(json.dumps(sorted(sys.modules)))
"""


def test_server_and_diagnosis_load_neither_torch_nor_what_few_need() -> None:
    """A diagnosis over MCP, in a new process, imports no torch and no rarely needed module."""
    run = output_of([sys.executable, "-c", LOADED], cwd=ROOT, check=True)
    loaded = json.loads(run.stdout)
    unwanted = (
        *("torch", "triton", "numpy", "ray", "typer", "rich"),
        *("mcp_server.cli", "mcp_server.report", "mcp_server.sweep"),
        "mcp_server.tools.reduce",
    )
    assert [name for name in loaded if any(below(name, each) for each in unwanted)] == []


def test_the_page_shows_these_layers() -> None:
    """docs/architecture.md has a row for each layer, in this order."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    shown = [tuple(re.findall(r"`([^`]+?)(?:/|\.py)?`", cell)) for _, cell in rows]
    assert [int(number) for number, _ in rows] == list(range(1, len(LAYERS) + 1))
    assert shown == [tuple(n.replace(".", "/") for n in layer if n) for layer in LAYERS]


# Modules that a user, client or document sees. Names from other modules are deep: renaming a class there
# renames it in tests, although nobody outside can notice.
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
    "package.pytorch",  # could be published with `package.terms`
    "package.terms",
    "package.view",
    "render",
    "report.bundle",
    "server.app",
    "server.tools",
    "sweep",
)
MOST_DEEP = 348
"""Deep names when this was last counted. Lower it with each test that goes through a public face."""


@cache
def imported() -> tuple[tuple[str, str, str], ...]:
    """File, module and name of each import from a module in a test file."""
    return tuple(_imported())


def _imported() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((str(path.relative_to(ROOT)), node.module, name.name) for name in node.names)


def public(module: str) -> bool:
    inside = module.removeprefix("mcp_server.")
    return any(inside == name or inside.startswith(f"{name}.") for name in PUBLIC)


def test_no_test_file_imports_another() -> None:
    """What two test files need is in a support module."""
    of_tests = [
        (file, module, name)
        for file, module, name in imported()
        if module.startswith("tests") and any(part.startswith("test_") for part in (*module.split("."), name))
    ]
    assert of_tests == []


def test_fewer_names_come_from_inside_the_product() -> None:
    """The number of deep names must not grow."""
    ours = ((module, name) for _, module, name in imported() if module.startswith("mcp_server"))
    deep = {(module, name) for module, name in ours if not public(module)}
    assert len(deep) <= MOST_DEEP, "go through the CLI, the MCP server or diagnose, or lower another"
