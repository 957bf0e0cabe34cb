"""The compiled signature, read from wrappers of torch 2.13 (CPU) and 2.11 (CUDA), and from mangled text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package, read_constants
from mcp_server.package.signature import CompiledDim, SymbolDefinition, read_signature
from tests.conftest import ZooPackage
from tests.recorded import RECORDINGS

CUDA_WRAPPERS = [path.read_text() for path in sorted(RECORDINGS.glob("wrapper-cuda-2.11-*.cpp"))]


def recorded(name: str) -> str:
    return (RECORDINGS / f"wrapper-cuda-2.11-{name}.cpp").read_text()


def test_ranges_and_symbols_of_a_cpu_package(zoo: ZooPackage) -> None:
    """Two inputs with their own symbols, ranges and static parts (torch 2.13 writes whole shapes)."""
    signature = open_package(zoo("jagged")).signature
    values, starts = signature.inputs
    first, second = (symbol.symbol for symbol in signature.symbols)
    assert values.dims == (CompiledDim(0, None, first, 2, 512), CompiledDim(1, 8))
    assert (values.dtype, values.strides, values.device_type) == ("float32", (8, 1), "cpu")
    assert starts.dims == (CompiledDim(0, None, second, 2, 64),)
    assert (starts.dtype, starts.strides, starts.path) == ("int64", (1,), "args[1]")
    assert first != second and signature.problems == ()


def test_an_expression_of_a_symbol(zoo: ZooPackage) -> None:
    """`2*Dim(half)`: the dimension is an expression, and the symbol is solved from it."""
    signature = open_package(zoo("plugin")).signature
    (symbol,) = signature.symbols
    assert signature.inputs[0].dims[0] == CompiledDim(0, None, f"2*{symbol.symbol}", 4, 64)
    assert symbol.solution == f"(1.0/2.0)*{symbol.name}_size_0"


def test_a_cuda_wrapper_of_an_older_torch() -> None:
    """torch 2.11 names a symbol where it is first read only: the second input's dimension stays unnamed."""
    signature = read_signature(recorded("logarithm"))
    x, scale = signature.inputs
    assert x.dims == (CompiledDim(0, None, "s77", 2, 64), CompiledDim(1, 16))
    assert scale.dims == (CompiledDim(0, None, None, 2, 64), CompiledDim(1, 16))
    assert (x.device_type, scale.dtype, scale.strides) == ("cuda", "float32", (16, 1))
    assert signature.symbols == (SymbolDefinition("s77", "arg4_1", "size", 0),)
    assert signature.output_count == 1 and signature.problems == ()


def test_a_solved_symbol_of_an_older_torch() -> None:
    """Without the whole shape, the solution still shows that the size must be even."""
    signature = read_signature(recorded("plugin"))
    assert signature.inputs[0].dims[0] == CompiledDim(0, None, None, 4, 64)
    assert signature.symbols[0].solution == "(1.0/2.0)*arg4_1_size_0"


def test_constants_of_a_cuda_wrapper() -> None:
    """Constants carry the user's names and the device on which they will live."""
    weight, bias, _ = read_constants(recorded("logarithm"))
    assert (weight.fqn, weight.shape, weight.bytes, weight.device_type) == (
        "inp.weight",
        (16, 16),
        1024,
        "cuda",
    )
    assert (bias.name, bias.fqn, bias.kind) == ("inp_bias", "inp.bias", "Parameter")


def with_spec(spec: str) -> str:
    """The two-input wrapper with another input tree."""
    text = recorded("logarithm")
    old = text[text.index('in_spec_ = R"(') : text.index("    out_spec_")]
    return text.replace(old, f'in_spec_ = R"({spec})";\n')


LEAF = '{"type": null, "context": null, "children_spec": []}'


def tree(args: str, kwargs: str = "", names: str = "[]") -> str:
    """An input spec as `torch.utils._pytree.treespec_dumps` writes it."""
    return (
        '[1, {"type": "builtins.tuple", "context": "null", "children_spec": ['
        f'{{"type": "builtins.tuple", "context": "null", "children_spec": [{args}]}}, '
        f'{{"type": "builtins.dict", "context": "{names}", "children_spec": [{kwargs}]}}]}}]'
    )


def test_names_of_the_caller() -> None:
    """Keys of a dictionary argument and names of keyword arguments become the inputs' paths."""
    keys = '"[\\"user\\", \\"item\\"]"'
    features = f'{{"type": "builtins.dict", "context": {keys}, "children_spec": [{LEAF}, {LEAF}]}}'
    assert [i.path for i in read_signature(with_spec(tree(features))).inputs] == [
        "args[0]['user']",
        "args[0]['item']",
    ]
    spec = tree(LEAF, LEAF, '[\\"mask\\"]')
    assert [i.path for i in read_signature(with_spec(spec)).inputs] == ["args[0]", "kwargs['mask']"]


def test_a_long_spec_in_pieces() -> None:
    """A spec of more than 16,000 characters is written as several raw strings."""
    spec = tree(LEAF, LEAF, '[\\"mask\\"]')
    pieces = f'{spec[:40]})"\nR"({spec[40:]}'
    assert read_signature(with_spec(pieces)).inputs[1].path == "kwargs['mask']"


def test_baked_arguments_hide_the_names() -> None:
    """More leaves than tensors and no gap in the numbers: the assignment is ambiguous, and a note says so."""
    signature = read_signature(with_spec(tree(f"{LEAF}, {LEAF}, {LEAF}")))
    assert [item.path for item in signature.inputs] == [None, None]
    assert "3 leaves, of which 2 are tensors" in signature.notes[0] and signature.problems == ()


def test_a_baked_argument_between_tensors_is_named() -> None:
    """The gap in `arg4_1, arg6_1` is the second leaf: it is fixed, and the tensors keep their names."""
    text = with_spec(tree(f"{LEAF}, {LEAF}", LEAF, '[\\"scale\\"]')).replace("arg5_1", "arg6_1")
    signature = read_signature(text)
    assert [item.path for item in signature.inputs] == ["args[0]", "kwargs['scale']"]
    assert signature.notes == ("args[1]: fixed in the code as at export; what the caller passes is ignored",)


def test_a_package_without_specs() -> None:
    """An empty spec is none: no names, and nothing to complain about."""
    signature = read_signature(with_spec(""))
    assert [item.path for item in signature.inputs] == [None, None]
    assert (signature.in_spec, signature.problems, signature.notes) == (None, (), ())


@pytest.mark.parametrize("spec", ["[1]", "[2, {}]", '[1, {"type": "x"}]', "[1, 5]", "[[[["])
def test_an_unreadable_spec_is_reported(spec: str) -> None:
    """A tree that is not understood costs the names only."""
    signature = read_signature(with_spec(spec))
    assert len(signature.inputs) == 2 and any("in_spec_" in problem for problem in signature.problems)


@settings(max_examples=150, deadline=None)
@given(text=st.sampled_from(CUDA_WRAPPERS), at=st.floats(0, 1))
@example(text=CUDA_WRAPPERS[0], at=0.0)
def test_a_cut_wrapper_says_so(text: str, at: float) -> None:
    """Whatever is cut off at the end: the same signature, or a partial one with a problem."""
    whole, cut = read_signature(text), read_signature(text[: int(at * len(text))])
    assert cut == whole or cut.problems


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from(CUDA_WRAPPERS),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 40), st.text(alphabet='(){}[]<>;,"=0123456789sL\n', max_size=8)
        ),
        max_size=6,
    ),
)
def test_a_mangled_wrapper_never_crashes(text: str, edits: list[tuple[float, int, str]]) -> None:
    """Characters replaced anywhere give some signature, whose parts fit together."""
    for place, length, new in edits:
        start = int(place * len(text))
        text = text[:start] + new + text[start + length :]
    signature = read_signature(text)
    assert all(len(item.strides) == len(item.dims) for item in signature.inputs)
    assert all(constant.index >= 0 for constant in read_constants(text))
