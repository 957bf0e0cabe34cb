"""On which CUDA device a captured load and call are made again."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.logs.captured import Captured, CapturedCall, CapturedLoad
from mcp_server.tools.requests import plan_replay


def load(**more: Any) -> CapturedLoad:
    return CapturedLoad.model_validate(
        {"pid": 1, "n": 1, "number": 1, "loader": "AOTIModelPackageLoader", "package": "m.pt2", **more}
    )


@pytest.mark.parametrize(
    ("options", "current", "made_with"),
    [
        ({}, None, {}),
        ({}, 0, {}),
        ({}, 1, {"device_index": 1}),
        ({"device_index": -1}, 1, {"device_index": 1}),
        ({"device_index": 2}, 1, {"device_index": 2}),
        ({"device_index": 0}, 1, {"device_index": 0}),
    ],
)
def test_a_load_that_took_the_current_device_names_it(
    options: dict[str, Any], current: int | None, made_with: dict[str, Any]
) -> None:
    """The worker's own current device is the first; what the program named stays."""
    made = load(options=options, current_device=current)
    request = plan_replay(Captured(loads=[made]), made)
    assert request == {"package": str(made.package), "steps": [], "extra_imports": [], **made_with}


@pytest.mark.parametrize("current", [None, 0, 1])
def test_a_call_is_made_on_the_device_of_its_thread(current: int | None) -> None:
    """Kernels of custom operators go to the current device, wherever the package was loaded."""
    call = CapturedCall.model_validate(
        {"pid": 1, "n": 2, "number": 1, "load": 1, "thread": 1, "file": "i.pt", "current_device": current}
    )
    seen = Captured(loads=[load(options={"device_index": 1})], calls=[call])
    request = plan_replay(seen, call)
    assert request["device_index"] == 1
    assert request.get("current_device") == current
