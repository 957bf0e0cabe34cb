"""One name for each GPU, however it is named: by index, by UUID, by the first digits of a UUID."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mcp_server.errors import ProblemError

DRIVER = Path("/proc/driver/nvidia/gpus")
LISTING_LIMIT_S = 10.0  # the driver is loaded anew for it where nothing keeps it loaded

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine; `parts` are the UUIDs of its MIG devices, if it is divided."""

    index: int
    uuid: str
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """CUDA sees only the first part of a divided GPU (NVIDIA MIG User Guide)."""
        return self.parts[0] if self.parts else str(self.index)


def device_names(gpus: Iterable[int], visible: str | None, known: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """What the child's device indices are called outside: its index i is entry i of CUDA_VISIBLE_DEVICES.

    An index beyond the entries keeps its own name: the workload will fail, which is a result. An entry that
    `known` does not have keeps its own, too. Raises ProblemError for a negative index.
    """
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    wanted = sorted(set(gpus))
    if wanted and wanted[0] < 0:
        raise ProblemError("not the index of a GPU", value=wanted[0], allowed="0 and above")
    asked = {entries[i] if i < len(entries) else str(i) for i in wanted}
    return tuple(sorted({one_name(entry, known) for entry in asked}))


def one_name(entry: str, known: Sequence[Gpu]) -> str:
    """The name of what an entry of CUDA_VISIBLE_DEVICES means; the entry itself where that is not known.

    Indices are taken in the order of the bus, as `nvidia-smi` has them. CUDA's own order differs on a machine
    with unlike GPUs unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    wanted = entry.lower()
    parts = [part for gpu in known for part in gpu.parts if part.lower().startswith(wanted)]
    if wanted.startswith("mig-") and len(parts) == 1:
        return parts[0]
    found = [gpu for gpu in known if entry == str(gpu.index) or _begins(gpu.uuid, wanted)]
    return found[0].name if len(found) == 1 else entry


def _begins(uuid: str, wanted: str) -> bool:
    return wanted.startswith("gpu-") and uuid.lower().startswith(wanted)


@lru_cache(maxsize=1)
def known_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, without CUDA; looked at once. Empty where nobody lists them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return read_driver(DRIVER)
    asked = [tool, "-L"]
    try:
        done = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LISTING_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return read_driver(DRIVER)
    return read_listing(done.stdout) or read_driver(DRIVER)


def read_listing(text: str) -> tuple[Gpu, ...]:
    """What `nvidia-smi -L` prints: a line for each GPU, below it one for each of its MIG devices."""
    found: list[Gpu] = []
    for line in text.splitlines():
        gpu, part = _GPU.match(line), _PART.match(line)
        if gpu:
            found.append(Gpu(int(gpu[1]), gpu[2]))
        elif part and found:
            last = found.pop()
            found.append(Gpu(last.index, last.uuid, (*last.parts, part[1])))
    return tuple(found)


def read_driver(directory: Path) -> tuple[Gpu, ...]:
    """The driver's own files: a directory for each GPU, named after its place on the bus. No MIG devices."""
    texts = [path.read_text("utf-8", "replace") for path in sorted(directory.glob("*/information"))]
    found = [uuid[1] if (uuid := _UUID.search(text)) else "" for text in texts]
    return tuple(Gpu(index, uuid) for index, uuid in enumerate(found))
