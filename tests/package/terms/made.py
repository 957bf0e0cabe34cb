"""Random terms over one element, for property tests."""

from hypothesis import strategies as st

from mcp_server.package.terms.evaluate import Evaluator
from mcp_server.package.terms.parts import parts
from mcp_server.package.terms.syntax import read_cpp
from mcp_server.package.terms.term import Element, Number, Scalar, Term, Unread
from mcp_server.package.terms.translate import Translator, cast, chosen, operator

UNARY = ("floor", "ceil", "trunc", "abs", "neg", "sqrt")
BINARY = ("add", "sub", "mul", "div", "minimum", "maximum")


def element(dtype: str = "float32") -> Element:
    """The element `x`."""
    return Element("x", Number(0, "int64"), dtype)


def constants() -> st.SearchStrategy[Term]:
    return st.integers(-64, 64).map(lambda n: Number(n / 4, "float32"))


@st.composite
def terms(draw: st.DrawFn, depth: int = 4, variable: Term | None = None) -> Term:
    """Make a float32 term whose operators are exact in IEEE arithmetic."""
    x = variable if variable is not None else element()
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return x if draw(st.booleans()) else draw(constants())
    kind = draw(st.sampled_from(("unary", "binary", "binary", "where", "cast")))
    inner = draw(terms(depth - 1, x))
    if kind == "unary":
        return operator(draw(st.sampled_from(UNARY)), (inner,))
    other = draw(terms(depth - 1, x))
    if kind == "binary":
        return operator(draw(st.sampled_from(BINARY)), (inner, other))
    if kind == "cast":
        return cast(cast(operator("minimum", (inner, Number(1e6, "float32"))), "int64"), "float32")
    test = operator(draw(st.sampled_from(("lt", "le", "gt", "ge"))), (inner, other))
    return chosen(test, draw(terms(depth - 1, x)), other)


def read(text: str, dtype: str = "int64") -> Term:
    """Read a C++ expression in which every name is the element `x`."""
    x = element(dtype)
    return Translator(lambda _name: x).term(read_cpp(text))


def value(term: Term, x: Scalar) -> Scalar:
    """The value of a term for one value of its element."""
    return Evaluator({}, {}, lambda _element, _offset: x).value(term)


def unread(term: Term) -> str:
    """The first code in a term that was not understood. Empty if all was."""
    return next((t.text for t in parts(term, inside_indices=True) if isinstance(t, Unread)), "")
