"""Tensors in files, as text and in memory: packed for a replay, described, counted; a call's limit."""

from __future__ import annotations

import ctypes
import io
import json
import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from mcp_server.worker import inputs as worker_inputs
from mcp_server.worker.encode import encode_layout, encode_output
from mcp_server.worker.events import Argument, Inputs
from mcp_server.worker.observe import _NAMES, Saver, write
from mcp_server.worker.probes import _Shim
from mcp_server.worker.process import headroom, limited, unmapped
from mcp_server.worker.report import Refused, encode, plain
from mcp_server.worker.saved_calls import pack, pack_leaves, restore
from mcp_server.worker.tensors import layout, storage_bytes
from tests.worker.support import here, saved
from tests.zoo.names import few

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.bool]


def described(directory: Path, request: dict[str, object]) -> Inputs:
    (found,) = here(directory, "describe_inputs", request)
    assert isinstance(found, Inputs)
    return found


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view into a larger storage: sliced, stepped, permuted, expanded."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    base = torch.arange(4 * 3 * max(1, torch.Size(shape).numel())).to(draw(st.sampled_from(DTYPES)))
    whole = base[draw(st.integers(0, 7)) :][: torch.Size(shape).numel()].reshape(shape)
    steps = tuple(slice(None, None, draw(st.integers(1, 3))) for _ in shape)
    view = whole[steps].permute(draw(st.permutations(range(len(shape)))))
    return view.unsqueeze(0).expand(2, *view.shape) if draw(st.booleans()) else view


@settings(max_examples=few(80), deadline=None)
@given(views(), st.sampled_from(["whole", "cut"]))
def test_layout_survives(tensor: torch.Tensor, how: str) -> None:
    """Whether whole storages or touched spans are kept, shape, stride and values are the same afterwards."""
    spare = torch.empty(storage_bytes([tensor]) + 1024, dtype=torch.uint8)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    tight = max(span, 0) * tensor.element_size()
    leaves = [tensor] if how == "whole" or tight >= storage_bytes([tensor]) else [tensor, spare[:0]]
    cap = storage_bytes([tensor]) if len(leaves) == 1 else max(tight, 1)
    back = through_a_file(pack_leaves(leaves, cap))[0]
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(back, tensor)
    item = tensor.element_size()
    assert (back.storage_offset() - tensor.storage_offset()) * item % 64 == 0


def test_the_tree_and_sharing_survive() -> None:
    """Arguments of any built-in structure come back, with views that share storage; of others the leaves."""
    base = torch.arange(10.0)
    args, kwargs = ({"b": base[2:5], "a": [base[4:], 3]},), {"flag": True}
    leaves, tree = restore(through_a_file(pack(args, kwargs, 1 << 20)))
    assert tree is not None and tree[1] == {"flag": True}
    assert list(tree[0][0]) == ["b", "a"] and tree[0][0]["a"][1] == 3 and len(leaves) == 4
    leaves[0][2] = 77
    assert leaves[1][0] == 77
    assert restore(through_a_file(pack((object(), base), {}, 1 << 20)))[1] is None


def test_every_leaf_of_a_tree_has_its_facts(tmp_path: Path) -> None:
    """Paths, layouts, ranges and NaN counts are told for tensors; other leaves by their value."""
    base = torch.arange(12.0).reshape(3, 4)
    base[0, 0] = float("nan")
    tree = {"args": [base.t(), {"ids": torch.tensor([3, -5])}, 7], "kwargs": {"mask": base[1:]}}
    inputs = described(tmp_path, {"inputs": saved(tmp_path, "tree.pt", tree)})
    first, ids, number, mask = inputs.leaves
    assert first.stride == [1, 4] and not first.contiguous and first.nan == 1
    assert (ids.path or "").endswith("['ids']") and (ids.min, ids.max, ids.dtype) == (-5, 3, "int64")
    assert number.kind == "int" and number.value == "7"
    assert mask.storage_offset == 4 and (mask.path or "").startswith("[1]['mask']")


def test_a_file_from_a_gpu_is_described_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that tensors were saved from is told on any machine; loading them says why it cannot."""
    if torch.cuda.is_available():
        pytest.skip("the second half needs a machine without CUDA")
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
    file = saved(tmp_path, "gpu.pt", [torch.ones(3), torch.zeros(2)])
    inputs = described(tmp_path, {"inputs": file})
    assert [leaf.device for leaf in inputs.leaves] == ["cuda:1", "cuda:1"]
    assert inputs.leaves[0].mean == 1
    with pytest.raises(Refused, match="a device that is not available here"):
        worker_inputs.load_file(str(file))


def test_made_up_inputs_keep_to_their_specs(tmp_path: Path) -> None:
    """Shape, dtype, stride and bounds of specs hold, whole numbers include the upper bound, values repeat."""
    specs = [
        {"shape": [50, 4], "dtype": "int64", "low": 3, "high": 5},
        {"shape": [4, 3], "dtype": "float16", "low": -1, "high": 1, "stride": [1, 8]},
        {"shape": [0, 2], "dtype": "bool"},
        {"shape": [5, 3], "dtype": "float32", "stride": [0, 1]},
    ]
    runs = [described(tmp_path, {"inputs": specs}) for _ in range(2)]
    ids, strided, empty, shared = runs[0].leaves
    assert (ids.min, ids.max) == (3, 5) and ids.shape == [50, 4]
    assert strided.stride == [1, 8]
    assert strided.min is not None and strided.max is not None and -1 <= strided.min < strided.max <= 1
    assert empty.shape == [0, 2] and shared.stride == [0, 1]
    sums = [[leaf.checksum for leaf in run.leaves] for run in runs]
    assert sums[0] == sums[1]


SAVED_DTYPES = [getattr(torch, name) for name in _NAMES]


@settings(max_examples=few(60), deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(SAVED_DTYPES), st.booleans())
def test_the_package_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: torch.dtype, turned: bool
) -> None:
    """Shape, dtype and values in logical order come back, of empty and of strided tensors too."""
    tensor = (torch.rand(shape) * 4).to(dtype)
    tensor = tensor.permute(list(reversed(range(len(shape))))) if turned else tensor
    path = write(str(tmp_path_factory.mktemp("t")), "0-k-a-after", "a", tensor, {"stride": [1]})
    (back,) = load_file(path).values()
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (back, tensor)))


def test_a_saved_tensor_says_where_it_was_and_is_not_overwritten(tmp_path: Path) -> None:
    """Launch, kernel and stride lie in the file as text; the same launch again gets a file of its own."""
    saver = Saver(str(tmp_path), 1 << 20)
    facts = Argument(launch=4, kernel="at::_ops::sort", name="buf1", phase="before", stride=[2, 1])
    paths = [saver.save(facts, torch.full((2, 2), n)) for n in (1, 2, 3)]
    names = [Path(path or "").name.removeprefix("4-at___ops__sort-buf1-before") for path in paths]
    assert names == [".safetensors", ".2.safetensors", ".3.safetensors"]
    for n, path in enumerate(paths, start=1):
        with safe_open(path, "pt") as file:
            assert file.get_tensor("buf1").tolist() == [[n, n], [n, n]]
            assert file.metadata()["stride"] == "[2, 1]" and file.metadata()["launch"] == "4"


# The short ways to JSON give what the long way gives.

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner))


@given(_JSON)
def test_encoding_is_that_of_json(value: Any) -> None:
    """Whatever the value, the text reads as its plain form."""
    assert json.loads(encode(value)) == json.loads(json.dumps(plain(value)))


BASE = torch.zeros(64)
VIEWS = [BASE[:4], BASE[1:5], BASE[16:20], BASE[:8:2], BASE[:4].to(torch.int32), BASE[:4].double()]
OTHERS = [torch.zeros(8, 8)[1:, ::2], torch.zeros(0, 5), torch.zeros(2, 2).to_sparse(), torch.tensor(1.5)]


def test_a_told_layout_is_the_layout() -> None:
    """Told twice, so that the second text is the remembered one; those that differ in one fact are two."""
    for tensor in (*VIEWS, *OTHERS):
        assert [json.loads(encode_layout(tensor)) for _ in range(2)] == [plain(layout(tensor))] * 2
    assert len({encode_layout(view) for view in VIEWS}) == len(VIEWS)


HALVES = [400.0] * 100


@pytest.mark.parametrize(
    ("values", "dtype", "nan", "inf"),
    [
        pytest.param([1.0, -2.0], torch.float32, 0, 0, id="finite"),
        pytest.param([math.nan, 1.0], torch.float32, 1, 0, id="nan"),
        pytest.param([math.inf, -math.inf, 1.0], torch.float32, 0, 2, id="infinities that cancel"),
        pytest.param([3e38, 3e38], torch.float32, 0, 0, id="a sum that overflows"),
        pytest.param(HALVES, torch.float16, 0, 0, id="large halves"),
        pytest.param(HALVES, torch.bfloat16, 0, 0, id="large short floats"),
        pytest.param(HALVES, torch.complex64, 0, 0, id="complex"),
        pytest.param(HALVES, torch.float8_e4m3fn, 0, 0, id="small floats"),
    ],
)
def test_counts_of_outputs(values: list[float], dtype: torch.dtype, nan: int, inf: int) -> None:
    """A sum that is not finite is counted again, element by element."""
    told = encode_output(torch.tensor(values).to(dtype), "", True)
    assert (json.loads(told.text)["nan"], json.loads(told.text)["inf"]) == (nan, inf)
    assert told.odd is bool(nan or inf)


PAGE = mmap.PAGESIZE


def at(address: int, floats: int) -> torch.Tensor:
    """A tensor over that memory, which it does not own."""
    view = (ctypes.c_float * floats).from_address(address)
    return torch.from_numpy(np.ctypeslib.as_array(view))


@pytest.fixture
def pages() -> int:
    """The address of two mapped pages that nothing follows: the third is given back."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found = libc.mmap(
        None, 3 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0
    )
    assert libc.munmap(found + 2 * PAGE, PAGE) == 0
    return int(found)


def test_memory_that_was_given_back(pages: int) -> None:
    """A tensor of unmapped pages, or one that runs into them, is told; one without memory is not."""
    gone, into, whole = at(pages + 2 * PAGE, 8), at(pages + PAGE, PAGE // 2), at(pages, PAGE // 2)
    assert unmapped([whole, gone, torch.ones(3), into]) == [1, 3]
    assert unmapped([into[: PAGE // 8], into[::2]]) == [1]
    assert unmapped([torch.ones(0, 4), torch.ones(2, device="meta"), torch.ones(2).to_sparse()]) == []


def test_a_file_that_was_cut_while_it_was_mapped(tmp_path: Path) -> None:
    """Pages behind the new end of a mapped file are gone, though still mapped."""
    path = tmp_path / "frames.bin"
    np.ones(PAGE, np.float32).tofile(path)
    frames = torch.from_numpy(np.memmap(path, np.float32, "r+"))
    assert unmapped([frames]) == []
    os.truncate(path, PAGE)
    assert unmapped([frames]) == [0] and unmapped([frames[:8]]) == []


def test_looking_at_a_tensor_does_not_keep_its_memory() -> None:
    """Each look gives the very tensor, and leaves no reference behind: a thousand launches would add up."""
    owned = torch.ones(4)
    (capsule,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([owned])
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handle = get(capsule, None)
    before, shim = owned._use_count(), _Shim()
    for _ in range(5):
        tensor = shim.tensor(handle)
        assert tensor is not None and tensor.data_ptr() == owned.data_ptr()
        del tensor
    assert owned._use_count() == before


LEFT = 1 << 30


@pytest.mark.skipif(headroom()[0] is not None, reason="the tests themselves run under such a limit")
def test_a_call_has_what_the_program_had_left() -> None:
    """Within the limit a larger request is refused, as it was in the program; behind it all is as before."""
    with limited(LEFT):
        left, limit = headroom()
        assert left is not None and left <= LEFT and limit == "RLIMIT_AS"
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(2 * LEFT, dtype=torch.uint8)
    assert headroom() == (None, "")
    assert torch.empty(2 * LEFT, dtype=torch.uint8).numel() == 2 * LEFT
