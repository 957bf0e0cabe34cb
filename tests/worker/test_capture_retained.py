"""What a program still holds: outputs by their memory, and constants whose mapped file was cut."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from mcp_server.worker.capture.memory import Managed, Outputs

FLOATS = 1000
BYTES = 4 * FLOATS


def test_a_view_holds_the_whole_output_and_released_outputs_count_no_more() -> None:
    """Memory counts, once, as long as anything uses it; watching it keeps nothing alive."""
    outputs, kept = Outputs(), []
    for call in range(3):
        output = torch.zeros(FLOATS)
        outputs.add(call, [output, output[:2], 7])
        kept.append(output[:1])
        del output
    found = outputs.retained()["cpu"]
    assert (found.calls, found.bytes) == (3, 3 * BYTES)
    kept.pop()
    found = outputs.retained()["cpu"]
    assert (found.calls, found.bytes) == (2, 2 * BYTES)
    kept.clear()
    assert outputs.retained() == {}


class Overview:
    """As a program may have one."""

    def __init__(self) -> None:
        self.tiles: list[torch.Tensor] = []


def test_the_holder_of_outputs_is_named() -> None:
    """A list in an attribute, a variable of a running function, an attribute itself: most tensors first."""
    outputs, overview, latest = Outputs(), Overview(), {}
    for call in range(4):
        output = torch.zeros(FLOATS)
        outputs.add(call, [output])
        if call < 3:
            overview.tiles.append(output[:2])
        else:
            latest["last"] = output
    del output
    frame = sys._getframe()
    assert outputs.holders([frame]) == [
        "Overview.tiles, a list, holds 3 views of [2]",
        f"latest, a dict in test_the_holder_of_outputs_is_named(), holds 1 tensor of [{FLOATS}]",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_constant_of_a_cut_file_is_lost_and_not_read(tmp_path: Path) -> None:
    """The pages behind the end of the file end whoever reads them; the hook asks the kernel instead."""
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(BYTES * 4))
    mapped = torch.from_file(str(file), shared=True, size=4 * FLOATS)
    own = torch.zeros(FLOATS)
    managed = Managed()
    managed.update(1, {"mapped": mapped, "own": own}, True, {"mapped": "digest", "own": "digest"})
    assert managed.lost(1) == {}
    os.truncate(file, 0)
    assert managed.lost(1) == {"mapped": str(file)}
    assert managed.lost(2) == {}
