"""Lines of the operators of an exported program that its package does not tell well."""

from __future__ import annotations

from mcp_server.package.exported import read_exported
from tests.conftest import ZooPackage


def test_lines_of_own_operators_and_of_writes(zoo: ZooPackage) -> None:
    """The program has the lines that call an operator outside torch, and those that mutate in place."""
    own = read_exported(zoo("plugin").with_name("plugin.exported.pt2"))
    ((target, line),) = own.special
    assert not target.startswith("aten.") and "halve_rows" in line.code and own.in_place == []
    written = read_exported(zoo("counter").with_name("counter.exported.pt2"))
    assert [line.code for line in written.in_place] == ["self.seen.add_(x)", "x.mul_(2)"]


def test_a_plain_model_has_neither(zoo: ZooPackage) -> None:
    """Operators of torch that write nothing are left to the package."""
    assert read_exported(zoo("ranker").with_name("ranker.exported.pt2")).special == ()
