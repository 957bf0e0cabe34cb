"""Tensors written by the worker, read back with the safetensors package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from mcp_server.worker.observe import _NAMES, Saver, Where, stem, write
from mcp_server.worker.protocol import ArgumentFacts

DTYPES = [getattr(torch, name) for name in _NAMES]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES), st.booleans())
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


def test_the_same_launch_again_does_not_overwrite(tmp_path: Path) -> None:
    """A second tensor of one name gets a file of its own, and the first stays as it was."""
    paths = [write(str(tmp_path), "3-k-buf1-after", "buf1", torch.tensor([x]), {}) for x in (1, 2, 3)]
    assert [Path(path).name.removeprefix("3-k-buf1-after") for path in paths] == [
        ".safetensors",
        ".2.safetensors",
        ".3.safetensors",
    ]
    assert [load_file(path)["buf1"].item() for path in paths] == [1, 2, 3]


def test_metadata_says_where_the_tensor_was(tmp_path: Path) -> None:
    """Launch, kernel, stride and device lie in the file as text."""
    saver = Saver(str(tmp_path), 1 << 20)
    facts: ArgumentFacts = {"name": "buf1", "parameter": "in_ptr0", "stride": [2, 1], "device": "cpu"}
    path = saver.save(Where(4, 0, 0, None, "at::_ops::sort"), "before", facts, torch.ones(2, 2))
    assert path is not None and Path(path).name == "4-at___ops__sort-buf1-before.safetensors"
    with safe_open(path, "pt") as file:
        assert file.metadata()["stride"] == "[2, 1]" and file.metadata()["launch"] == "4"


def test_nothing_is_saved_beyond_the_cap(tmp_path: Path) -> None:
    """A tensor that would break the cap, and a dtype that the format lacks, are counted and left out."""
    saver = Saver(str(tmp_path), 10)
    facts: ArgumentFacts = {"name": "a", "parameter": ""}
    where = Where(0, 0, 0, None, "k")
    assert saver.save(where, "after", facts, torch.ones(3)) is None
    assert saver.save(where, "after", facts, torch.ones(2)) is not None
    assert saver.refused == 1 and saver.left == 2


def test_names_stay_within_what_a_disk_takes() -> None:
    """A fused kernel's name can be longer than a file's name may be."""
    assert len(stem(999, "triton_" + "x" * 400, "y" * 100, "before")) < 230
