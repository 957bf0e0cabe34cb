"""The metadata file of a package: where it was compiled, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp_server.json_text import read_json

_PREFIX = "AOTI_"


@dataclass(frozen=True)
class Metadata:
    """`*_metadata.json`. torch 2.8 and 2.9 write the device only; from 2.10 on all of these.

    `isa` is the vector instruction sets of the compiling CPU ("AVX512 AVX512_VNNI"), `compute_capability`
    digits such as "90", None on the CPU. `user` holds `aot_inductor.metadata` of the caller.
    """

    device: str | None = None
    platform: str | None = None
    machine: str | None = None
    isa: tuple[str, ...] = ()
    compute_capability: str | None = None
    user: Mapping[str, str] = field(default_factory=dict)


def read_metadata(text: str) -> Metadata:
    """Raises `ValueError` when the text is not a JSON object."""
    raw = read_json(text)
    if not isinstance(raw, dict):
        raise ValueError("metadata is not a JSON object")
    values = {str(key): str(value) for key, value in raw.items()}
    return Metadata(
        device=values.get("AOTI_DEVICE_KEY") or None,
        platform=values.get("AOTI_PLATFORM") or None,
        machine=values.get("AOTI_MACHINE") or None,
        isa=tuple(values.get("AOTI_CPU_ISA", "").split()),
        compute_capability=values.get("AOTI_COMPUTE_CAPABILITY") or None,
        user={key: value for key, value in values.items() if not key.startswith(_PREFIX)},
    )
