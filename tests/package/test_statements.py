"""The splitter of statements, and the shape expressions in them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.statements import Statement, evaluate, split_arguments, split_body


def split(body: str) -> list[Statement]:
    return list(split_body("f() {" + body, len("f() {"), 1, "f"))


def test_two_statements_on_a_line_and_a_comment() -> None:
    """A reused view frees its base on the same line: two statements, one comment."""
    found = split("\n    auto a = f(b); b.reset();  // reuse\n}")
    assert [(s.kind, s.text, s.line) for s in found] == [
        ("simple", "auto a = f(b)", 2),
        ("simple", "b.reset()", 2),
        ("comment", "// reuse", 2),
        ("close", "}", 3),
    ]


def test_strings_and_comments_hide_braces() -> None:
    """Braces and semicolons in strings, raw strings and comments are no structure."""
    found = split('\n p("a;}{\\"");\n q(R"(\n File "x", line 1;\n })");\n /* ; } */\n}')
    assert [s.kind for s in found] == ["simple", "simple", "comment", "close"]
    assert [s.line for s in found] == [2, 3, 6, 7]


def test_initialisers_are_no_blocks() -> None:
    """Braces after `=` or a type are values; the statement ends at its semicolon."""
    found = split("int64_t a[] = {8L, }; g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2);}")
    assert [s.text for s in found if s.kind == "simple"] == [
        "int64_t a[] = {8L, }",
        "g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2)",
    ]


def test_blocks_nest() -> None:
    """Branches, loops, bare scopes and lambdas are blocks with a path."""
    body = "if (x) { a(); } else { while (1) { b(); } } { c(); } auto l = [&](int n) { d(); }; }"
    kinds = {s.text: [b.kind for b in s.block.path[1:]] for s in split(body) if s.kind == "simple"}
    assert kinds["a()"] == ["if"]
    assert kinds["b()"] == ["else", "loop"]
    assert kinds["c()"] == ["scope"]
    assert kinds["d()"] == ["lambda"]


def test_a_cut_text_says_so() -> None:
    """A body without its closing brace ends in `cut`, with the line."""
    last = split("\n a();\n b(c")[-1]
    assert (last.kind, last.line) == ("cut", 3)


def test_arguments_are_split_outside_all_brackets() -> None:
    """Commas in calls, braces, template arguments and strings separate nothing; a last one adds nothing."""
    text = 'a, f(b, c), std::array<T, 2>{d, e}.data(), "x, y", (float*)(g.data_ptr()), '
    assert [text[a:b] for a, b in split_arguments(text, 0, len(text))] == [
        "a",
        "f(b, c)",
        "std::array<T, 2>{d, e}.data()",
        '"x, y"',
        "(float*)(g.data_ptr())",
    ]


_CODE = st.text(alphabet="ab01 \n;{}()[]<>,=&*\"'\\/#R.:+-", max_size=300)


@given(_CODE)
def test_any_text_is_split_in_order(text: str) -> None:
    """Whatever the text: statements do not overlap, lines rise, and each text is what stands at its place."""
    whole = "f() {" + text
    end, line = 0, 0
    for found in split_body(whole, len("f() {"), 1, "f"):
        assert end <= found.start <= found.end <= len(whole)
        assert line <= found.line <= whole.count("\n") + 1
        assert whole[found.start : found.end].startswith(found.text)
        assert found.line == whole.count("\n", 0, found.start) + 1
        end, line = found.end, found.line


@given(_CODE)
def test_any_arguments_stay_in_order(text: str) -> None:
    """Whatever the text: argument places rise and lie inside it."""
    end = 0
    for begin, stop in split_arguments(text, 0, len(text)):
        assert end <= begin
        assert stop <= len(text)
        end = max(end, stop)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2L*s44", 14),
        ("(-8L) + s44*s44", 41),
        ("(1.0/2.0)*s44", Fraction(7, 2)),
        ("c10::div_floor_integer(static_cast<int64_t>(s44), static_cast<int64_t>(2L))", 3),
        ("std::max<int64_t>(1L, s44)", 7),
        ("s44 % 4L", 3),
        ("7", 7),
    ],
)
def test_forms_of_the_generator(text: str, value: Fraction) -> None:
    """Sums, products, rationals, floor division, min and max as cexpr prints them."""
    assert evaluate(text, {"s44": 7}) == value


@pytest.mark.parametrize("text", ["s1", "s44 / 0", "__import__('os')", "s44.real", "", "(" * 500, "9" * 3000])
def test_anything_else_is_unknown(text: str) -> None:
    """Unknown names, other calls, attributes and nonsense give None, never an exception."""
    assert evaluate(text, {"s44": 7}) is None


@given(st.text(alphabet="s4(*+-/%,)L0129. ", max_size=60))
def test_no_text_crashes(text: str) -> None:
    """Any text is a number or None."""
    assert evaluate(text, {"s4": 3}) is None or isinstance(evaluate(text, {"s4": 3}), Fraction)
