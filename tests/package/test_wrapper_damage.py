"""Damaged wrappers: a partial result that says so, never a crash or a hang."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.dataflow import Dataflow
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import WRAPPERS, recorded

TEXTS = (make_wrapper(6), *(p.read_text(encoding="utf-8") for p in sorted(WRAPPERS.glob("*.cpp"))))
WHOLE = {text: len(read_wrapper(text).launches) for text in TEXTS}
PIECES = (
    "(",
    ")",
    "{",
    "}",
    ";",
    ",",
    '"',
    "/*",
    "*/",
    "//",
    "\n",
    "std::move(",
    "&",
    "'",
    'R"(',
    "buf0",
    "\\",
)

_texts = st.sampled_from(TEXTS)


def use_all(wrapper: Wrapper) -> None:
    """Everything that a query would ask of it."""
    flow = Dataflow(wrapper.run)
    for launch in wrapper.launches:
        flow.backward_from(launch.index)
        flow.through(launch.index)
        wrapper.grid(launch)
    for kernel in wrapper.kernels.values():
        find_asserts(kernel.source)
    lines = wrapper.text.count("\n") + 1
    assert all(1 <= problem.line <= lines for problem in wrapper.problems)


@settings(max_examples=60, deadline=None)
@given(_texts, st.data())
def test_a_cut_wrapper_says_that_it_is_cut(text: str, data: st.DataObject) -> None:
    """Wherever the text ends, what came before is read, and the missing end is reported."""
    start = text.index("::run_impl(")
    end = text.rindex("\n} // AOTInductorModel::run_impl")
    wrapper = read_wrapper(text[: data.draw(st.integers(start, end))])
    assert wrapper.problems
    assert len(wrapper.launches) <= WHOLE[text]
    use_all(wrapper)


@settings(max_examples=100, deadline=None)
@given(_texts, st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 30)), max_size=4))
def test_a_mutated_wrapper_never_crashes(text: str, edits: list[tuple[float, str, int]]) -> None:
    """Pieces put in and stretches taken out anywhere: reading and every query still come to an end."""
    for where, piece, removed in edits:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + removed :]
    use_all(read_wrapper(text))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_lost_line_loses_nothing_else_in_silence(data: st.DataObject) -> None:
    """Without one line of run_impl, all launches on other lines are still there, or a problem is reported."""
    wrapper = recorded("user_spread")
    lines = wrapper.text.split("\n")
    last = wrapper.text.count("\n", 0, wrapper.run.end)
    number = data.draw(st.integers(wrapper.run.line, last - 1))
    less = read_wrapper("\n".join(lines[:number] + lines[number + 1 :]))
    kept = [n.kernel for n in wrapper.launches if n.line != number + 1]
    assert less.problems or [n.kernel for n in less.launches] == kept


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    """Text that is no wrapper at all gives a problem, and so does such a function body."""
    assert read_wrapper(text).problems
    use_all(read_wrapper("void AOTInductorModel::run_impl(int x) {" + text))
