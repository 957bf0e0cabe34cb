"""The compiled signature, and inputs against it: every kind of difference, and known false alarms."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package, read_constants
from mcp_server.package.mismatch import (
    GivenTensor,
    Mismatch,
    calling_order,
    compare_inputs,
    compare_structure,
    contiguous_strides,
)
from mcp_server.package.signature import (
    CompiledDim,
    CompiledInput,
    Signature,
    SymbolDefinition,
    TreeNode,
    read_signature,
)
from tests.conftest import ZooPackage, torch_environment
from tests.recorded import RECORDINGS

# The compiled signature, read from wrappers of torch 2.13 (CPU) and 2.11 (CUDA), and from mangled text.

WRAPPERS = sorted((RECORDINGS / "wrappers").glob("[lp]*.torch-2.11-cuda.cpp"))
CUDA_WRAPPERS = [path.read_text() for path in WRAPPERS]


def recorded(name: str) -> str:
    return (RECORDINGS / "wrappers" / f"{name}.torch-2.11-cuda.cpp").read_text()


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


# Inputs against a package: every kind of difference, the known false alarms, and the package's own check.

# Two inputs of one batch size, and a third with twice as many rows, as torch 2.13 would describe them.
SIGNATURE = Signature(
    inputs=(
        CompiledInput(
            0,
            "arg0_1",
            "args[0]",
            "float32",
            (CompiledDim(0, None, "s0", 2, 64), CompiledDim(1, 16)),
            (16, 1),
            "cpu",
        ),
        CompiledInput(1, "arg1_1", "args[1]", "int64", (CompiledDim(0, None, "s0", 2, 64),), (1,), "cpu"),
        CompiledInput(
            2,
            "arg2_1",
            None,
            "float32",
            (CompiledDim(0, 4), CompiledDim(1, None, "2*s0", 4, 128)),
            ("2*s0", 1),
            "cpu",
        ),
    ),
    symbols=(SymbolDefinition("s0", "arg0_1", "size", 0),),
)
GOOD = (GivenTensor("float32", (8, 16)), GivenTensor("int64", (8,)), GivenTensor("float32", (4, 16)))


def on_cuda(signature: Signature) -> Signature:
    return replace(signature, inputs=tuple(replace(item, device_type="cuda") for item in signature.inputs))


def single(*tensors: GivenTensor, signature: Signature = SIGNATURE) -> Mismatch:
    """The one difference of these inputs."""
    found = compare_inputs(signature, tensors)
    assert len(found) == 1, found
    return found[0]


def test_fitting_inputs_have_no_difference() -> None:
    """Any batch in the range fits, with strides given or contiguous."""
    assert compare_inputs(SIGNATURE, GOOD) == []
    strided = (replace(GOOD[0], stride=(16, 1)), *GOOD[1:])
    assert compare_inputs(SIGNATURE, strided) == []


@pytest.mark.parametrize(
    ("index", "change", "aspect", "category", "expected", "got"),
    [
        (0, {"device": "cuda:0"}, "device", "device_mismatch", "cpu", "cuda:0"),
        (1, {"dtype": "torch.int32"}, "dtype", "input_mismatch", "int64", "int32"),
        (0, {"shape": (8,)}, "rank", "input_mismatch", "2: [s0, 16]", "1: [8]"),
        (0, {"shape": (8, 17)}, "size", "input_mismatch", "16", "17"),
        (0, {"stride": (1, 8)}, "stride", "input_mismatch", "(16, 1)", "(1, 8)"),
        (2, {"stride": (32, 2)}, "stride", "input_mismatch", "(16, 1)", "(32, 2)"),
        (1, {"shape": (9,)}, "relation", "shape_out_of_range", "s0 = 8", "9"),
        (2, {"shape": (4, 18)}, "relation", "shape_out_of_range", "2*s0 = 16", "18"),
    ],
)
def test_one_difference(
    index: int, change: dict[str, object], aspect: str, category: str, expected: str, got: str
) -> None:
    """Each kind of difference is found, alone, fatal, at its input, with a fix."""
    tensors = [replace(t, **change) if i == index else t for i, t in enumerate(GOOD)]  # type: ignore[arg-type]
    found = [m for m in compare_inputs(SIGNATURE, tensors) if m.aspect == aspect]
    assert len(found) == 1 and found[0].severity == "fatal" and found[0].fix.text
    mismatch = found[0]
    assert (mismatch.category, mismatch.input_index) == (category, index)
    assert (mismatch.expected, mismatch.got) == (expected, got)
    assert SIGNATURE.inputs[index].label in mismatch.sentence


@pytest.mark.parametrize(
    ("shape", "said"), [((128,), "reshape it to [s0, 16]"), ((4, 5, 7), "pass a tensor of shape [s0, 16]")]
)
def test_only_what_has_the_elements_can_be_reshaped(shape: tuple[int, ...], said: str) -> None:
    """140 elements fill no rows of 16: it is another tensor."""
    found = compare_inputs(SIGNATURE, (replace(GOOD[0], shape=shape), *GOOD[1:]))
    (fix,) = [mismatch.fix for mismatch in found if mismatch.aspect == "rank"]
    assert fix is not None and fix.text.startswith(said)


def test_a_wrong_count_is_told_alone() -> None:
    """With a tensor too few nothing else can be compared: positions may have shifted."""
    mismatch = single(*GOOD[:2])
    assert (mismatch.aspect, mismatch.got, mismatch.severity) == ("count", "2", "fatal")


def test_exchanged_inputs_are_recognised() -> None:
    """Two inputs in each other's place: that is said first."""
    first = compare_inputs(SIGNATURE, (GOOD[1], GOOD[0], GOOD[2]))[0]
    assert (first.aspect, first.expected, first.got) == ("order", "args[0], args[1]", "args[1], args[0]")


def batch(size: int, signature: Signature = SIGNATURE) -> list[Mismatch]:
    device = signature.inputs[0].device_type or "cpu"
    tensors = (
        GivenTensor("float32", (size, 16), device=device),
        GivenTensor("int64", (size,), device=device),
        GivenTensor("float32", (4, 2 * size), device=device),
    )
    return [m for m in compare_inputs(signature, tensors) if m.aspect == "range"]


def test_a_batch_of_one_may_be_right() -> None:
    """Export raises every lower bound to 2, in expressions too: below it is suspicious, on any device."""
    assert [m.severity for m in batch(1)] == ["suspicious"] * 3
    assert [m.severity for m in batch(1, on_cuda(SIGNATURE))] == ["suspicious"] * 3
    higher = CompiledDim(0, None, "s0", 5, 64)
    raised = replace(SIGNATURE.inputs[0], dims=(higher, CompiledDim(1, 16)))
    mismatch = single(GivenTensor("float32", (4, 16)), signature=Signature((raised,)))
    assert (mismatch.severity, mismatch.expected, mismatch.dim) == ("fatal", "5..64", 0)


def test_an_upper_bound_of_the_cpu_may_be_the_generators() -> None:
    """4096 // k on the CPU is suspicious; any bound on CUDA, and other bounds on the CPU, are certain."""
    assert {m.severity for m in batch(65)} == {"suspicious"}
    assert {m.severity for m in batch(65, on_cuda(SIGNATURE))} == {"fatal"}
    odd = replace(SIGNATURE.inputs[0], dims=(CompiledDim(0, None, "s0", 2, 1000), CompiledDim(1, 16)))
    assert single(GivenTensor("float32", (1001, 16)), signature=Signature((odd,))).severity == "fatal"


def test_strides_of_dimensions_of_size_one_are_harmless() -> None:
    """The run-time check refuses them, kernels never step along them."""
    item = CompiledInput(0, "a", None, "float32", (CompiledDim(0, 1), CompiledDim(1, 8)), (8, 1), "cpu")
    mismatch = single(GivenTensor("float32", (1, 8), (64, 1)), signature=Signature((item,)))
    assert mismatch.severity == "suspicious" and "AOTI_RUNTIME_CHECK_INPUTS" in mismatch.sentence


def test_a_stride_that_follows_from_the_sizes_is_no_finding() -> None:
    """Of two inputs of one length, the shorter one has the wrong size, and strides that are right for it."""
    dims = (CompiledDim(0, 4), CompiledDim(1, None, "s3", 2, 64))
    inputs = [CompiledInput(i, f"a{i}", None, "float32", dims, ("s3", 1), "cpu") for i in (0, 1)]
    signature = Signature(tuple(inputs), symbols=(SymbolDefinition("s3", "a0", "size", 1),))
    shorter = GivenTensor("float32", (4, 10), (10, 1))
    mismatch = single(GivenTensor("float32", (4, 11), (11, 1)), shorter, signature=signature)
    assert (mismatch.aspect, mismatch.category, mismatch.dim) == ("relation", "shape_out_of_range", 1)
    stepped = replace(shorter, stride=(20, 2))
    found = compare_inputs(signature, (GivenTensor("float32", (4, 11), (11, 1)), stepped))
    assert {m.aspect for m in found} == {"relation", "stride"}


def test_what_has_no_data_cannot_be_moved() -> None:
    """The fix for a meta tensor makes it anew."""
    bad = replace(GOOD[0], device="meta")
    assert "empty_like" in (single(bad, *GOOD[1:]).fix.after or "")


def test_a_compiled_transpose_is_copied_not_made_contiguous() -> None:
    """Where the compiled strides are not contiguous, the fix asks for those strides."""
    item = CompiledInput(0, "a", None, "float32", (CompiledDim(0, 4), CompiledDim(1, 8)), (1, 4), "cpu")
    mismatch = single(GivenTensor("float32", (4, 8)), signature=Signature((item,)))
    assert mismatch.fix.after is not None and "empty_strided([4, 8], (1, 4)" in mismatch.fix.after


def test_several_devices_are_a_hint() -> None:
    """The device index is compared by nothing; it is a hint only."""
    tensors = [replace(t, device=f"cuda:{i % 2}") for i, t in enumerate(GOOD)]
    assert single(*tensors, signature=on_cuda(SIGNATURE)).aspect == "device_index"
    same = [replace(t, device="cuda:1") for t in GOOD]
    assert compare_inputs(on_cuda(SIGNATURE), same) == []
    elsewhere = compare_inputs(on_cuda(SIGNATURE), same, device_index=0)
    assert [(m.input_index, m.severity, m.expected, m.got) for m in elsewhere] == [
        (index, "suspicious", "cuda:0", "cuda:1") for index in range(len(same))
    ]
    assert compare_inputs(on_cuda(SIGNATURE), same, device_index=1) == []


def test_an_odd_size_for_an_older_torch() -> None:
    """A size from which the symbol comes out as a fraction, though the expression is not written down."""
    signature = read_signature(recorded("plugin"))
    mismatch = single(GivenTensor("float32", (7, 8), device="cuda:0"), signature=signature)
    assert (mismatch.aspect, mismatch.expected) == ("relation", "a multiple of 2")
    low = single(GivenTensor("float32", (2, 8), device="cuda:0"), signature=signature)
    assert (low.aspect, low.severity) == ("range", "suspicious")


@pytest.mark.parametrize(
    ("solution", "size", "wanted"),
    [
        ("(1.0/4.0)*a_size_0", 30, "a multiple of 4"),  # 30/4 is 15/2, and 32 would not do for 2
        ("(1.0/4.0)*a_size_0", 7, "a multiple of 4"),
        ("(1.0/3.0)*a_size_0 - (1.0/3.0)", 9, "1 more than a multiple of 3"),
        ("(3.0/4.0)*a_size_0", 6, "a multiple of 4"),
    ],
)
def test_a_derived_dimension_says_which_sizes_it_takes(solution: str, size: int, wanted: str) -> None:
    """Those for which the symbol is whole, whatever the fraction of the size at hand is reduced to."""
    item = CompiledInput(0, "a", None, "float32", (CompiledDim(0, None, "4*s0"),), (1,), "cpu")
    symbol = SymbolDefinition("s0", "a", "size", 0, solution)
    mismatch = single(GivenTensor("float32", (size,)), signature=Signature((item,), symbols=(symbol,)))
    assert (mismatch.aspect, mismatch.expected) == ("relation", wanted)


MATCH_LEAF = TreeNode(None)
FEATURES = TreeNode("builtins.dict", ("user", "item"), (MATCH_LEAF, MATCH_LEAF))


def with_tree(args: tuple[TreeNode, ...], names: tuple[str, ...] = ()) -> Signature:
    kwargs = TreeNode("builtins.dict", names, (MATCH_LEAF,) * len(names))
    return Signature(in_spec=TreeNode("builtins.tuple", (), (TreeNode("builtins.tuple", (), args), kwargs)))


def test_reordered_keys_swap_values_silently() -> None:
    """Another order of keys is found though every shape fits; the exported order and a flat list are fine."""
    signature = with_tree((FEATURES,))
    assert compare_structure(signature, ["args[0]['user']", "args[0]['item']"]) == []
    assert compare_structure(signature, ["args[0]", "args[1]"]) == []
    (swapped,) = compare_structure(signature, ["args[0]['item']", "args[0]['user']"])
    assert (swapped.aspect, swapped.severity, swapped.input_index) == ("structure", "fatal", 0)
    (unknown,) = compare_structure(signature, ["args[0]['user']", "args[0]['items']"])
    assert "missing args[0]['item'], unknown args[0]['items']" in unknown.sentence


def test_keyword_arguments_come_in_any_order() -> None:
    """The loader sorts keyword arguments; one dictionary of tensors may stand for them."""
    signature = with_tree((MATCH_LEAF,), ("mask", "scale"))
    assert compare_structure(signature, ["args[0]", "kwargs['scale']", "kwargs['mask']"]) == []
    assert calling_order(signature, ["args[0]", "kwargs['scale']", "kwargs['mask']"]) == (0, 2, 1)
    only_keywords = with_tree((), ("mask", "scale"))
    assert compare_structure(only_keywords, ["args[0]['scale']", "args[0]['mask']"]) == []
    assert calling_order(only_keywords, ["args[0]['scale']", "args[0]['mask']"]) == (1, 0)


CHECK_SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
loader = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
for tensors in json.loads(sys.argv[2]):
    made = [torch.zeros(4096, dtype=getattr(torch, d)).as_strided(size, step) for d, size, step in tensors]
    try:
        loader.run(made)
        print("ok")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""

CALLS: list[list[GivenTensor]] = [
    [GivenTensor("float32", (8, 16)), GivenTensor("float32", (8, 16))],
    [GivenTensor("float32", (64, 16)), GivenTensor("float32", (64, 16))],
    [GivenTensor("float32", (2, 16)), GivenTensor("float32", (2, 16))],
    [GivenTensor("float64", (8, 16)), GivenTensor("float32", (8, 16))],
    [GivenTensor("float32", (8, 16)), GivenTensor("int32", (8, 16))],
    [GivenTensor("float32", (8, 17)), GivenTensor("float32", (8, 16))],
    [GivenTensor("float32", (65, 16)), GivenTensor("float32", (65, 16))],
    [GivenTensor("float32", (1, 16)), GivenTensor("float32", (1, 16))],
    [GivenTensor("float32", (8, 16), (1, 8)), GivenTensor("float32", (8, 16))],
    [GivenTensor("float32", (8, 16)), GivenTensor("float32", (9, 16))],
]


@pytest.mark.slow
def test_agrees_with_the_check_of_the_package(zoo: ZooPackage) -> None:
    """AOTI_RUNTIME_CHECK_INPUTS refuses exactly the calls in which a difference is found (torch 2.13)."""
    package = zoo("logarithm")
    calls = [[(t.dtype, t.shape, t.strides) for t in call] for call in CALLS]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHECK_SCRIPT, str(package), json.dumps(calls)],
        env={**torch_environment(), "AOTI_RUNTIME_CHECK_INPUTS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    refused = [line != "ok" for line in done.stdout.splitlines()]
    signature = open_package(package).signature
    assert [bool(compare_inputs(signature, call)) for call in CALLS] == refused
    assert refused == [False] * 3 + [True] * 7


@given(st.lists(st.integers(0, 9), max_size=5))
def test_contiguous_strides_address_each_element_once(shape: list[int]) -> None:
    """Row-major strides map the elements onto 0..numel-1."""
    offsets = {0} if 0 not in shape else set()
    for size, stride in zip(shape, contiguous_strides(shape), strict=True):
        offsets = {offset + i * stride for offset in offsets for i in range(size)} if offsets else offsets
    assert offsets == set(range(math.prod(shape)))
