"""The memory of a process: what a tensor names and is gone, what the model owns, a call's limit."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mcp_server.worker.probes import _Shim
from mcp_server.worker.process import headroom, limited, unmapped

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
