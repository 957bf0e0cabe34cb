"""Memory that a tensor names and the process does not have."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mcp_server.worker.process import unmapped

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
    """A tensor of unmapped pages, or one that runs into them, is told; one before them is not."""
    gone, into, whole = at(pages + 2 * PAGE, 8), at(pages + PAGE, PAGE // 2), at(pages, PAGE // 2)
    assert unmapped([whole, gone, torch.ones(3), into]) == [1, 3]
    assert unmapped([into[: PAGE // 8], into[::2]]) == [1]


def test_a_file_that_was_cut_while_it_was_mapped(tmp_path: Path) -> None:
    """Pages behind the new end of a mapped file are gone, though still mapped."""
    path = tmp_path / "frames.bin"
    np.ones(PAGE, np.float32).tofile(path)
    frames = torch.from_numpy(np.memmap(path, np.float32, "r+"))
    assert unmapped([frames]) == []
    os.truncate(path, PAGE)
    assert unmapped([frames]) == [0] and unmapped([frames[:8]]) == []


def test_tensors_without_memory_are_none_of_its_affair() -> None:
    """Empty, sparse and meta tensors are passed over."""
    assert unmapped([torch.ones(0, 4), torch.ones(2, device="meta"), torch.ones(2).to_sparse()]) == []
    assert unmapped([]) == []
