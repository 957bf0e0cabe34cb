"""The value printer's output."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.logs.log import read_log
from mcp_server.logs.printer import MAX_SAVED, PrintedScalar, PrintedTensor, read_printer, read_saved
from tests.logs.support import lines_of

BLOCK = (
    "[  {when} - {kernel} - {argument}  ]:",
    " {value}",
    "[ CUDAFloatType{{1}} ]",
    "Number of elements: 1",
    "Dtype: float32",
    "Mean value: {value}",
    "Min value: {value}",
    "Max value: {value}",
    "Device: cuda:0",
    "Size: [1]",
    "Stride: [1]",
    "Layout: Strided",
    "Is contiguous: 1",
    "Requires grad: 0",
    "",
)


def block(when: str, argument: str, value: str, kernel: str = "k_0") -> list[str]:
    """One block as level 2 prints it."""
    return [line.format(when=when, kernel=kernel, argument=argument, value=value) for line in BLOCK]


def test_recorded_statistics() -> None:
    """A recorded level 2 run gives its inputs and arguments with sizes and statistics."""
    tensors = [
        record for record in read_printer(lines_of("printer2.txt")) if isinstance(record, PrintedTensor)
    ]
    first, second, third = tensors[:3]
    assert (first.when, first.argument, first.size, first.stride) == (
        "aoti_model_inputs",
        "arg18_1",
        (8, 64),
        (64, 1),
    )
    assert (second.values, second.mean, second.device) == ((50.0,), 50.0, "cuda:0")
    assert (third.kernel, third.elements) == ("triton_per_fused_native_layer_norm_0", 512)
    assert len(tensors[3].values) == 64


def test_recorded_files() -> None:
    """A recorded level 1 run gives kernel and argument of each file, of weights too."""
    saved, _ = read_saved(lines_of("printer1.txt"))
    assert {record.kernel for record in saved} == {
        "triton_per_fused_native_layer_norm_0",
        "aoti_torch_cuda_mm_out",
        "triton_poi_fused_addmm_gelu_1",
    }
    assert saved[1].argument == "blocks_0_ln_weight"
    assert (saved[1].when, saved[1].device) == ("before_launch", "cuda:0")


@pytest.mark.parametrize("directory", ["/a/tmp/aoti_torch/", "/a/tmp/aoti_torch"])
def test_paths_with_and_without_separator(directory: str) -> None:
    """The file name is read with the missing separator of 2.11-2.13 and without."""
    path = f"{directory}after_launch_at::_ops::nonzero::call_buf3_cpu.pt"
    line = f"aoti_torch_save_tensor_handle: Saved tensor to {path}"
    ((record,), _) = read_saved([line])
    assert (record.kernel, record.argument, record.device) == ("at::_ops::nonzero::call", "buf3", "cpu")


def test_scalars_share_a_line() -> None:
    """The literal backslash-n after a scalar does not hide the header that follows on the same line."""
    names = ("s77: 12  ]", "c: -3  ]", "arg0_1  ]:")
    line = r"\n".join(f"[  before_launch - k_0 - {name}" for name in names)
    records = list(read_printer([line, " nan", "Number of elements: 1"]))
    assert [(type(r), r.argument) for r in records if not isinstance(r, PrintedTensor)] == [
        (PrintedScalar, "s77"),
        (PrintedScalar, "c"),
    ]
    assert isinstance(records[2], PrintedTensor) and math.isnan(records[2].values[0])


def tensors(lines: list[str]) -> list[PrintedTensor]:
    """The tensors of level 2."""
    return [record for record in read_printer(lines) if isinstance(record, PrintedTensor)]


def test_values_that_are_not_finite() -> None:
    """NaN and infinity are read as such, in the order of the run."""
    lines = block("after_launch", "buf1", "nan") + block("after_launch", "buf2", "-inf")
    first, second = tensors(lines)
    assert first.minimum is not None and math.isnan(first.minimum)
    assert (first.argument, second.argument, second.minimum) == ("buf1", "buf2", -math.inf)


def test_outputs_before_their_launch_are_uninitialised() -> None:
    """An output before anything wrote it is uninitialised memory; after a launch it is not."""
    lines = (
        block("before_launch", "buf1", "nan")
        + block("after_launch", "buf1", "2")
        + block("before_launch", "buf1", "nan", "k_1")
    )
    assert [record.uninitialised for record in tensors(lines)] == [True, False, False]


def test_empty_tensor_has_no_statistics() -> None:
    """An empty tensor has a size and no mean."""
    lines = [
        "[  after_launch - k - buf0  ]:",
        "[ CPUFloatType{0} ]",
        "Number of elements: 0",
        "Size: [0, 8]",
        "Requires grad: 0",
    ]
    (record,) = tensors(lines)
    assert (record.elements, record.size, record.mean) == (0, (0, 8), None)


def test_cut_block_is_kept() -> None:
    """A block that the process's death cut off gives what it held."""
    (record,) = tensors(block("after_launch", "buf0", "nan")[:6])
    assert record.mean is not None and math.isnan(record.mean) and record.maximum is None


def test_saved_files_are_bounded() -> None:
    """Files beyond the limit are counted."""
    line = "aoti_torch_save_tensor_handle: Saved tensor to /a/after_launch_k_0_buf3_cpu.pt"
    saved, dropped = read_saved([line] * (MAX_SAVED + 3))
    assert (len(saved), dropped) == (MAX_SAVED, 3)


def test_launch_names_on_one_line() -> None:
    """Level 3 names that share a line are all counted."""
    found = read_log(
        ["[ before_launch: a ][ after_launch: a ]", "text [ before_launch: at::_ops::x::call ] t"]
    )
    assert found.last_launch is not None and found.last_launch.kernel == "at::_ops::x::call"
    assert (found.launches, found.last_launch.finished, found.last_launch.line) == (1, 1, 2)


ODD = [*block("after_launch", "buf0", "nan"), "Size: [1, 2, x]", "Number of elements: ²"]


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(max_size=50), st.sampled_from(ODD)), max_size=60))
def test_never_raises(lines: list[str]) -> None:
    """Any mixture of lines gives records with at most 64 values."""
    assert all(len(record.values) <= 64 for record in tensors(lines))
    assert read_saved(lines)[1] == 0
