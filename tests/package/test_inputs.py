"""The compiled signature, and inputs compared with it: every kind of difference, and false alarms."""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.exported import read_exported
from mcp_server.package.mismatch import (
    GivenTensor,
    Mismatch,
    calling_order,
    compare_inputs,
    compare_structure,
)
from mcp_server.package.signature import (
    CompiledDim,
    CompiledInput,
    Signature,
    SymbolDefinition,
    read_signature,
)
from tests.conftest import Zoo, torch_environment
from tests.recorded import RECORDINGS
from tests.support.command import output_of

# The compiled signature, in wrappers of torch 2.13 (CPU) and 2.11 (CUDA), and in damaged texts.


def recorded(name: str) -> str:
    return (RECORDINGS / "wrappers" / f"{name}.cpp").read_text()


def with_spec(spec: str) -> str:
    """The two-input wrapper with another input spec."""
    text = recorded("logarithm.torch-2.11-cuda")
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


FEATURES_SPEC = (
    f'{{"type": "builtins.dict", "context": "[\\"user\\", \\"item\\"]", "children_spec": [{LEAF}, {LEAF}]}}'
)
MASK_SPEC = tree(LEAF, LEAF, '[\\"mask\\"]')
THREE = tree(f"{LEAF}, {LEAF}, {LEAF}")
AROUND_SCALE = tree(f"{LEAF}, {LEAF}", LEAF, '[\\"scale\\"]')
FIXED = "args[1]: fixed in the code as at export; what the caller passes is ignored"


@pytest.mark.parametrize(
    ("spec", "paths", "note"),
    [
        pytest.param(tree(FEATURES_SPEC), ["args[0]['user']", "args[0]['item']"], "", id="a dictionary"),
        pytest.param(MASK_SPEC, ["args[0]", "kwargs['mask']"], "", id="a keyword"),
        # More than 16,000 characters, in several raw strings.
        pytest.param(f'{MASK_SPEC[:9]})"\nR"({MASK_SPEC[9:]}', ["args[0]", "kwargs['mask']"], "", id="split"),
        # More leaves than tensors, and no gap in the numbers: the assignment is ambiguous.
        pytest.param(THREE, [None, None], "3 leaves, of which 2 are tensors", id="baked arguments"),
        # The gap in `arg4_1, arg6_1` is the second leaf: it is fixed, and tensors keep their names.
        pytest.param(AROUND_SCALE, ["args[0]", "kwargs['scale']"], FIXED, id="a baked one in between"),
        pytest.param("", [None, None], "", id="no spec"),
    ],
)
def test_names_of_the_caller(spec: str, paths: list[str | None], note: str) -> None:
    """Keys of dictionaries and names of keyword arguments are part of the inputs' paths."""
    text = with_spec(spec)
    signature = read_signature(text.replace("arg5_1", "arg6_1") if spec == AROUND_SCALE else text)
    assert [item.path for item in signature.inputs] == paths and signature.problems == ()
    assert len(signature.notes) == bool(note) and note in "".join(signature.notes)


# Inputs compared with a package.


def compiled(*dims: CompiledDim, index: int = 0, dtype: str = "float32", **more: Any) -> CompiledInput:
    """An input on the CPU, contiguous unless strides are given."""
    label, path = f"arg{index}_1", more.get("path", f"args[{index}]")
    return CompiledInput(index, label, path, dtype, dims, more.get("strides", (1,)), "cpu")


BATCH = CompiledDim(0, None, "s0", 2, 64)
TWICE = (CompiledDim(0, 4), CompiledDim(1, None, "2*s0", 4, 128))
# Two inputs of one batch size, and a third with twice as many rows, as torch 2.13 describes them.
SIGNATURE = Signature(
    inputs=(
        compiled(BATCH, CompiledDim(1, 16), strides=(16, 1)),
        compiled(BATCH, index=1, dtype="int64"),
        compiled(*TWICE, index=2, path=None, strides=("2*s0", 1)),
    ),
    symbols=(SymbolDefinition("s0", "arg0_1", "size", 0),),
)
GOOD = (GivenTensor("float32", (8, 16)), GivenTensor("int64", (8,)), GivenTensor("float32", (4, 16)))


def on_cuda(signature: Signature) -> Signature:
    return replace(signature, inputs=tuple(replace(item, device_type="cuda") for item in signature.inputs))


def single(*tensors: GivenTensor, signature: Signature = SIGNATURE) -> Mismatch:
    """The only difference of these inputs."""
    found = compare_inputs(signature, tensors)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("index", "change", "aspect", "category", "expected", "got"),
    [
        (0, {"device": "cuda:0"}, "device", "device_mismatch", "cpu", "cuda:0"),
        (1, {"dtype": "torch.int32"}, "dtype", "input_mismatch", "int64", "int32"),
        (0, {"shape": (8,)}, "rank", "input_mismatch", "2: [s0, 16]", "1: [8]"),
        (0, {"shape": (8, 17)}, "size", "input_mismatch", "16", "17"),
        (0, {"shape": (16, 8)}, "size", "input_mismatch", "[s0, 16]", "[16, 8]"),
        (0, {"stride": (1, 8)}, "stride", "input_mismatch", "(16, 1)", "(1, 8)"),
        (2, {"stride": (32, 2)}, "stride", "input_mismatch", "(16, 1)", "(32, 2)"),
        (1, {"shape": (9,)}, "relation", "shape_out_of_range", "s0 = 8", "9"),
        (2, {"shape": (4, 18)}, "relation", "shape_out_of_range", "2*s0 = 16", "18"),
    ],
)
def test_one_difference(
    index: int, change: dict[str, object], aspect: str, category: str, expected: str, got: str
) -> None:
    """Each kind of difference is found at its input, alone and fatal, with a fix."""
    tensors = [replace(t, **change) if i == index else t for i, t in enumerate(GOOD)]  # type: ignore[arg-type]
    found = [m for m in compare_inputs(SIGNATURE, tensors) if m.aspect == aspect]
    assert len(found) == 1 and found[0].severity == "fatal" and found[0].fix.text
    mismatch = found[0]
    assert (mismatch.category, mismatch.input_index) == (category, index)
    assert (mismatch.expected, mismatch.got) == (expected, got)
    assert SIGNATURE.inputs[index].label in mismatch.sentence


def test_a_wrong_count_is_told_alone_and_an_exchange_first() -> None:
    """If a tensor is missing, nothing else is compared, because positions may have shifted."""
    assert compare_inputs(SIGNATURE, GOOD) == []
    assert compare_inputs(SIGNATURE, (replace(GOOD[0], stride=(16, 1)), *GOOD[1:])) == []
    mismatch = single(*GOOD[:2])
    assert (mismatch.aspect, mismatch.got, mismatch.severity) == ("count", "2", "fatal")
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


def test_which_bounds_are_certain() -> None:
    """Lower bounds that export raised to 2, and 4096 // k on the CPU, are only suspicious.

    Other upper bounds are certain, and all upper bounds on CUDA.
    """
    assert [m.severity for m in batch(1)] == ["suspicious"] * 3
    assert [m.severity for m in batch(1, on_cuda(SIGNATURE))] == ["suspicious"] * 3
    assert {m.severity for m in batch(65)} == {"suspicious"}
    assert {m.severity for m in batch(65, on_cuda(SIGNATURE))} == {"fatal"}
    for low, high, size in ((5, 64, 4), (2, 1000, 1001)):
        dims = (CompiledDim(0, None, "s0", low, high), CompiledDim(1, 16))
        signature = Signature((compiled(*dims, strides=(16, 1)),))
        mismatch = single(GivenTensor("float32", (size, 16)), signature=signature)
        assert (mismatch.severity, mismatch.expected, mismatch.dim) == ("fatal", f"{low}..{high}", 0)


def test_strides_that_the_kernels_never_step_along_are_harmless() -> None:
    """The run-time check refuses strides of a dimension of size 1. A compiled transpose is copied."""
    item = compiled(CompiledDim(0, 1), CompiledDim(1, 8), strides=(8, 1))
    mismatch = single(GivenTensor("float32", (1, 8), (64, 1)), signature=Signature((item,)))
    assert mismatch.severity == "suspicious" and "AOTI_RUNTIME_CHECK_INPUTS" in mismatch.sentence
    item = compiled(CompiledDim(0, 4), CompiledDim(1, 8), strides=(1, 4))
    mismatch = single(GivenTensor("float32", (4, 8)), signature=Signature((item,)))
    assert mismatch.fix.after is not None and "empty_strided([4, 8], (1, 4)" in mismatch.fix.after
    meta = single(replace(GOOD[0], device="meta"), *GOOD[1:])  # a tensor without data cannot be moved
    assert "empty_like" in (meta.fix.after or "")


def test_several_devices_are_a_hint() -> None:
    """Nothing compares the device index, so it is only a hint."""
    tensors = [replace(t, device=f"cuda:{i % 2}") for i, t in enumerate(GOOD)]
    assert single(*tensors, signature=on_cuda(SIGNATURE)).aspect == "device_index"
    same = [replace(t, device="cuda:1") for t in GOOD]
    assert compare_inputs(on_cuda(SIGNATURE), same) == []
    elsewhere = compare_inputs(on_cuda(SIGNATURE), same, device_index=0)
    assert [(m.input_index, m.severity, m.expected, m.got) for m in elsewhere] == [
        (index, "suspicious", "cuda:0", "cuda:1") for index in range(len(same))
    ]
    assert compare_inputs(on_cuda(SIGNATURE), same, device_index=1) == []


def test_a_dimension_without_a_name_has_that_of_the_exported_program(zoo: Zoo) -> None:
    """Up to torch 2.12, wrappers name a symbol once. The program says where else it is used."""
    program = read_exported(zoo("logarithm").with_name("logarithm.exported.pt2"))
    (rows, columns), other = program.sizes
    assert (rows, columns) == other and columns == "16" and not rows.isdigit()
    older = read_signature(recorded("logarithm.torch-2.11-cuda"))
    given = tuple(GivenTensor("float32", (n, 16), device="cuda:0") for n in (8, 9))
    assert compare_inputs(older, given) == []
    mismatch = single(*given, signature=older.with_sizes(program.sizes))
    assert (mismatch.aspect, mismatch.input_index, mismatch.got) == ("relation", 1, "9")
    assert older.with_sizes(program.sizes[:1]) == older.with_sizes([(), ()]) == older


def test_an_odd_size_for_an_older_torch() -> None:
    """The size makes the symbol a fraction, although the wrapper has no expression for it."""
    signature = read_signature(recorded("plugin.torch-2.9-cpu"))
    mismatch = single(GivenTensor("float32", (7, 8)), signature=signature)
    assert (mismatch.aspect, mismatch.expected) == ("relation", "a multiple of 2")
    low = single(GivenTensor("float32", (2, 8)), signature=signature)
    assert (low.aspect, low.severity) == ("range", "suspicious")


@pytest.mark.parametrize(
    ("solution", "size", "wanted"),
    [
        ("(1.0/4.0)*arg0_1_size_0", 30, "a multiple of 4"),  # 30/4 is 15/2, and 32 would not do for 2
        ("(1.0/4.0)*arg0_1_size_0", 7, "a multiple of 4"),
        ("(1.0/3.0)*arg0_1_size_0 - (1.0/3.0)", 9, "1 more than a multiple of 3"),
        ("(3.0/4.0)*arg0_1_size_0", 6, "a multiple of 4"),
    ],
)
def test_a_derived_dimension_says_which_sizes_it_takes(solution: str, size: int, wanted: str) -> None:
    """The allowed sizes make the symbol an integer, even if the given fraction can be reduced."""
    item = compiled(CompiledDim(0, None, "4*s0"))
    symbol = SymbolDefinition("s0", "arg0_1", "size", 0, solution)
    mismatch = single(GivenTensor("float32", (size,)), signature=Signature((item,), symbols=(symbol,)))
    assert (mismatch.aspect, mismatch.expected) == ("relation", wanted)


def test_reordered_keys_swap_values_silently() -> None:
    """Another order of keys is found even if every shape fits. The exported order and flat lists are fine."""
    signature = Signature(paths=("args[0]['user']", "args[0]['item']"))
    assert compare_structure(signature, ["args[0]['user']", "args[0]['item']"]) == []
    assert compare_structure(signature, ["args[0]", "args[1]"]) == []
    (swapped,) = compare_structure(signature, ["args[0]['item']", "args[0]['user']"])
    assert (swapped.aspect, swapped.severity, swapped.input_index) == ("structure", "fatal", 0)
    (unknown,) = compare_structure(signature, ["args[0]['user']", "args[0]['items']"])
    assert "missing args[0]['item'], unknown args[0]['items']" in unknown.sentence


def test_keyword_arguments_come_in_any_order() -> None:
    """The loader sorts keyword arguments. A dictionary of tensors may replace them."""
    signature = Signature(paths=("args[0]", "kwargs['mask']", "kwargs['scale']"))
    assert compare_structure(signature, ["args[0]", "kwargs['scale']", "kwargs['mask']"]) == []
    assert calling_order(signature, ["args[0]", "kwargs['scale']", "kwargs['mask']"]) == (0, 2, 1)
    only_keywords = Signature(paths=("kwargs['mask']", "kwargs['scale']"))
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

FITS = GivenTensor("float32", (8, 16))
CALLS: list[list[GivenTensor]] = [
    *([GivenTensor("float32", (size, 16))] * 2 for size in (8, 64, 2, 65, 1)),
    [GivenTensor("float64", (8, 16)), FITS],
    [FITS, GivenTensor("int32", (8, 16))],
    [GivenTensor("float32", (8, 17)), FITS],
    [GivenTensor("float32", (8, 16), (1, 8)), FITS],
    [FITS, GivenTensor("float32", (9, 16))],
]


@pytest.mark.slow
def test_agrees_with_the_check_of_the_package(zoo: Zoo) -> None:
    """AOTI_RUNTIME_CHECK_INPUTS refuses exactly the calls with a difference (torch 2.13)."""
    package = zoo("logarithm")
    calls = [[(t.dtype, t.shape, t.strides) for t in call] for call in CALLS]
    done = output_of(
        [sys.executable, "-W", "ignore", "-c", CHECK_SCRIPT, str(package), json.dumps(calls)],
        env={**torch_environment(), "AOTI_RUNTIME_CHECK_INPUTS": "1"},
        check=True,
    )
    refused = [line != "ok" for line in done.stdout.splitlines()]
    signature = open_package(package).signature
    assert [bool(compare_inputs(signature, call)) for call in CALLS] == refused
    assert refused == [False] * 3 + [True] * 7
