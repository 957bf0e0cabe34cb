"""Lines of the model behind a kernel: the one that indexes first, and what the package does not tell well."""

from __future__ import annotations

import pytest

from mcp_server.package.exported import read_exported
from mcp_server.package.provenance import Provenance, indexing_first, read_stack, unbounded_first
from tests.conftest import ZooPackage

LINEAR = 'File "/app/m.py", line 9, in forward\n    h = self.mix(torch.cat([who, what], dim=-1))'
VIEW = 'File "/app/m.py", line 7, in forward\n    who = self.users(u).expand(-1, items.shape[1], -1)'
IN_TORCH = (
    '\n  File "/x/site-packages/torch/nn/modules/sparse.py", line 189, in forward\n    return F.embedding('
)
ITEMS = 'File "/app/m.py", line 8, in forward\n    what = self.items(items)' + IN_TORCH
TABLE = 'File "/app/m.py", line 6, in forward\n    bias = self.table[buckets]'
GATHER = 'File "/app/m.py", line 5, in forward\n    picked = scores.gather(1, best)'


@pytest.mark.parametrize(
    "stacks, indexed, first",
    [
        ([LINEAR, VIEW, VIEW + IN_TORCH, ITEMS], ["items.weight"], 8),
        ([LINEAR, VIEW, VIEW + IN_TORCH, ITEMS], ["encoder.users.weight"], 7),
        ([LINEAR, GATHER, TABLE], ["table"], 6),
        ([LINEAR, VIEW, GATHER], [], 5),
        ([LINEAR, VIEW], [], 9),
    ],
)
def test_the_line_that_indexes_comes_first(stacks: list[str], indexed: list[str], first: int) -> None:
    """The line with the constant's module before any that indexes; without either the order stays."""
    given = Provenance("kernel_information", stacks=tuple(read_stack(text) for text in stacks))
    ordered = indexing_first(given, indexed)
    assert ordered.locations[0].line == first
    assert sorted(ordered.stacks, key=str) == sorted(given.stacks, key=str)


def test_the_line_that_can_leave_the_finite_comes_first() -> None:
    """A logarithm before an addition, the line of a module's own softmax before both orders of the rest."""
    lines = ["h = a + b  # // 2", "h = h.relu()", "s = self.scale(h.log())", "return h[0]"]
    stacks = [f'File "/app/m.py", line {n}, in forward\n    {code}' for n, code in enumerate(lines, start=1)]
    given = Provenance("kernel_information", stacks=tuple(read_stack(text) for text in stacks))
    assert [place.line for place in unbounded_first(given).locations] == [3, 1, 2, 4]


# Lines of the operators of an exported program that its package does not tell well.


def test_lines_of_own_operators_and_of_writes(zoo: ZooPackage) -> None:
    """The program tells where an operator outside torch is called, and where the model writes in place."""
    own = read_exported(zoo("plugin").with_name("plugin.exported.pt2"))
    ((target, line),) = own.special
    assert not target.startswith("aten.") and "halve_rows" in line.code and own.in_place == []
    written = read_exported(zoo("counter").with_name("counter.exported.pt2"))
    assert [line.code for line in written.in_place] == ["self.seen.add_(x)", "x.mul_(2)"]


def test_a_plain_model_has_neither(zoo: ZooPackage) -> None:
    """Operators of torch that write nothing are left to the package."""
    assert read_exported(zoo("ranker").with_name("ranker.exported.pt2")).special == ()
