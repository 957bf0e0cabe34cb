"""From a launch to model lines, by each source that can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_server.package.provenance import read_provenance, read_stack
from mcp_server.package.view import view_package
from tests.conftest import ZooPackage
from tests.package.summaries import recorded

STACK = """File "/app/model.py", line 12, in forward
    return self.head(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)"""


def test_library_frames_are_folded() -> None:
    """The innermost frame of the user's own files counts; frames of installed packages are only counted."""
    launch = recorded("jagged").launches[1]
    entry = {"stack_traces": [STACK, STACK], "post_grad_nodes": ["addmm"], "pre_grad_nodes": ["linear"]}
    found = read_provenance(launch, {f"{launch.kernel}:{launch.handle}": entry})
    assert found.source == "kernel_information"
    assert [(m.file, m.line, m.code) for m in found.locations] == [
        ("/app/model.py", 12, "return self.head(x)")
    ]
    assert (found.folded, found.post_grad, found.pre_grad) == (2, ("addmm",), ("linear",))


def test_a_context_guard_tells_frames() -> None:
    """Without the package's file, the text of a guard gives the frames."""
    launch = replace(recorded("jagged").launches[1], stack=f"\n{STACK}\n\n{STACK}\n")
    found = read_provenance(launch, {})
    assert (found.source, len(found.stacks), len(found.locations)) == ("context_guard", 2, 1)


def test_comments_tell_nodes_only() -> None:
    """Otherwise the comment above the call gives graph nodes and operators, but no line."""
    found = read_provenance(recorded("jagged").launches[1], {})
    assert found.source == "comments"
    assert "linear" in found.post_grad
    assert found.locations == ()


def test_odd_entries_are_no_crash() -> None:
    """A foreign form of the file's entries is taken for what can be read of it."""
    launch = recorded("jagged").launches[0]
    key = f"{launch.kernel}:{launch.handle}"
    for entry in ({}, {"stack_traces": None}, {"stack_traces": [1, "x"]}, {"post_grad_nodes": "x"}):
        assert read_provenance(launch, {key: entry}).locations == ()


def test_frames_without_function_or_code() -> None:
    """Frames are read without their optional parts."""
    assert [
        (f.file, f.line, f.code) for f in read_stack('File "a.py", line 3\nFile "b.py", line 4, in f')
    ] == [
        ("a.py", 3, ""),
        ("b.py", 4, ""),
    ]


@pytest.mark.slow
def test_every_kernel_of_a_package_leads_to_its_model(zoo: ZooPackage) -> None:
    """With provenance compiled in, each launch of the attention model leads to a line of its forward."""
    view = view_package(zoo("attention"))
    for launch in view.wrapper.launches:
        lines = [m.file.rpartition("/")[2] for m in view.provenance(launch).locations]
        assert lines
        assert set(lines) == {"models.py"}
