"""Tensors made of handles that the model owns."""

from __future__ import annotations

import ctypes

import torch

from mcp_server.worker.probes import _Shim


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
