"""A digest of a tensor's values, for equality: of tensors on the same type of device only."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

CHUNK = 1 << 24  # elements looked at together: bounds the temporaries
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: torch.Tensor) -> str:
    """A digest of the values in logical order, with their dtype and shape.

    Of a tensor in host memory a hash of its bytes. Elsewhere two sums over its bits, one weighted by place,
    made on the device: what is not copied need not be waited for.
    """
    digest = hashlib.blake2b(digest_size=12)
    digest.update("{} {}".format(tensor.dtype, list(tensor.shape)).encode())
    for part in tensor.reshape(-1).split(CHUNK) if tensor.numel() else ():
        flat = part.resolve_conj().resolve_neg()
        digest.update(_bytes(flat.contiguous()) if flat.device.type == "cpu" else _sums(flat))
    return digest.hexdigest()


def _bytes(flat: torch.Tensor) -> bytes:
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def _sums(flat: torch.Tensor) -> bytes:
    """Sums that wrap around at 64 bits."""
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    bits = real.contiguous().view(INTEGERS[real.element_size()])
    places = torch.arange(1, bits.numel() + 1, device=bits.device)
    sums: "list[Any]" = torch.stack([bits.sum(), (bits * places).sum()]).tolist()
    return repr(sums).encode()
