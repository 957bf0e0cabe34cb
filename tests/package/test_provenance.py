"""From a launch to lines of the model, by each source that can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_server.package.exported import Provenance, indexing_first, read_exported, read_provenance, read_stack
from tests.conftest import ZooPackage
from tests.package.summaries import recorded

STACK = """File "/app/model.py", line 12, in forward
    return self.head(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)"""


def test_frames_and_nodes_of_a_launch() -> None:
    """From the package's file, else from the text of a guard, else nodes alone from the comment of the call.

    The innermost frame of the user's own files counts; frames of installed packages are only counted.
    """
    launch = recorded("jagged").launches[1]
    key = f"{launch.kernel}:{launch.handle}"
    entry = {"stack_traces": [STACK, STACK], "post_grad_nodes": ["addmm"], "pre_grad_nodes": ["linear"]}
    found = read_provenance(launch, {key: entry})
    lines = [(m.file, m.line, m.code) for m in found.locations]
    assert (found.source, lines) == ("kernel_information", [("/app/model.py", 12, "return self.head(x)")])
    assert (found.folded, found.post_grad, found.pre_grad) == (2, ("addmm",), ("linear",))
    guarded = read_provenance(replace(launch, stack=f"\n{STACK}\n\n{STACK}\n"), {})
    assert (guarded.source, len(guarded.stacks), len(guarded.locations)) == ("context_guard", 2, 1)
    bare = read_provenance(launch, {})
    assert bare.source == "comments" and "linear" in bare.post_grad and bare.locations == ()
    for odd in ({}, {"stack_traces": None}, {"stack_traces": [1, "x"]}, {"post_grad_nodes": "x"}):
        assert read_provenance(launch, {key: odd}).locations == ()
    frames = read_stack('File "a.py", line 3\nFile "b.py", line 4, in f')
    assert [(f.file, f.line, f.code) for f in frames] == [("a.py", 3, ""), ("b.py", 4, "")]


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
    """Only lines with the constant's module; else those that index first; without either the order stays."""
    given = Provenance("kernel_information", stacks=tuple(read_stack(text) for text in stacks))
    ordered = indexing_first(given, indexed)
    assert ordered.locations[0].line == first
    assert set(ordered.stacks) == {s for s in given.stacks if s[0].line == first or not indexed}


# Lines of the operators of an exported program that its package does not tell well.


def test_lines_of_own_operators_and_of_writes(zoo: ZooPackage) -> None:
    """The program tells where an operator outside torch is called, and where the model writes in place."""
    own = read_exported(zoo("plugin").with_name("plugin.exported.pt2"))
    ((target, line),) = own.special
    assert not target.startswith("aten.") and "halve_rows" in line.code and own.in_place == []
    written = read_exported(zoo("counter").with_name("counter.exported.pt2"))
    assert [line.code for line in written.in_place] == ["self.seen.add_(x)", "x.mul_(2)"]
    assert read_exported(zoo("ranker").with_name("ranker.exported.pt2")).special == ()
