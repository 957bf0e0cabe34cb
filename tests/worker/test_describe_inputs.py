"""Facts of inputs files, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcp_server.worker.inputs import load_file
from mcp_server.worker.report import Refused
from tests.worker.support import here, saved


def test_every_leaf_of_a_tree_has_its_facts(tmp_path: Path) -> None:
    """Paths, layouts, ranges, NaN counts and sharing are told for tensors; other leaves by their value."""
    base = torch.arange(12.0).reshape(3, 4)
    base[0, 0] = float("nan")
    tree = {"args": [base.t(), {"ids": torch.tensor([3, -5])}, 7], "kwargs": {"mask": base[1:]}}
    (inputs,) = here(tmp_path, "describe_inputs", {"inputs": saved(tmp_path, "tree.pt", tree)})
    first, ids, number, mask = inputs["leaves"]
    assert first["stride"] == [1, 4] and not first["contiguous"] and first["nan"] == 1
    assert ids["path"].endswith("['ids']") and (ids["min"], ids["max"], ids["dtype"]) == (-5, 3, "int64")
    assert number["kind"] == "int" and number["value"] == "7"
    assert mask["storage_offset"] == 4 and mask["path"].startswith("[1]['mask']")
    assert inputs["sharing"] == [[0, 2]]


def test_a_file_from_a_gpu_is_described_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that tensors were saved from is told on any machine; loading them says why it cannot."""
    if torch.cuda.is_available():
        pytest.skip("the second half needs a machine without CUDA")
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
    file = saved(tmp_path, "gpu.pt", [torch.ones(3), torch.zeros(2)])
    (inputs,) = here(tmp_path, "describe_inputs", {"inputs": file})
    assert [leaf["device"] for leaf in inputs["leaves"]] == ["cuda:1", "cuda:1"]
    assert inputs["leaves"][0]["mean"] == 1
    with pytest.raises(Refused, match="a device that is not available here"):
        load_file(str(file))


def test_made_up_inputs_keep_to_their_specs(tmp_path: Path) -> None:
    """Shape, dtype, stride and bounds of specs hold, whole numbers include the upper bound, values repeat."""
    specs = [
        {"shape": [50, 4], "dtype": "int64", "low": 3, "high": 5},
        {"shape": [4, 3], "dtype": "float16", "low": -1, "high": 1, "stride": [1, 8]},
        {"shape": [0, 2], "dtype": "bool"},
        {"shape": [5, 3], "dtype": "float32", "stride": [0, 1]},
    ]
    runs = [here(tmp_path, "describe_inputs", {"inputs": specs})[0] for _ in range(2)]
    ids, strided, empty, shared = runs[0]["leaves"]
    assert (ids["min"], ids["max"]) == (3, 5) and ids["shape"] == [50, 4]
    assert strided["stride"] == [1, 8] and -1 <= strided["min"] < strided["max"] <= 1
    assert empty["shape"] == [0, 2] and shared["stride"] == [0, 1]
    sums = [[leaf["checksum"] for leaf in run["leaves"]] for run in runs]
    assert sums[0] == sums[1]
