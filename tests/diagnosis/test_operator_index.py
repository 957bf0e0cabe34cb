"""An operator that refused an index which another launch had computed."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes import index_out_of_bounds, log_text
from mcp_server.diagnosis.ranking import confidence, ranked
from mcp_server.diagnosis.value_sources import OperatorIndex
from tests.conftest import ZooPackage
from tests.diagnosis.support import failing, package_case

REFUSED = "RuntimeError: Index 11 of input takes value 1041 which is not in the valid range [0, 1024)"


def test_the_launch_that_computed_it_comes_before_the_bare_text(
    zoo: ZooPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and wrapper are two sources; the verdict gets a launch, the value and what it depends on."""
    case = failing(package_case(zoo("logarithm")), REFUSED)
    assert case.view is not None
    launch = case.view.wrapper.launches[0]
    index = OperatorIndex(launch, launch.tensors[0], 1024, None, (0,))
    monkeypatch.setattr(index_out_of_bounds, "operator_indices", lambda _case: [index])
    best = ranked([*log_text.detect_from_log(case), *index_out_of_bounds.detect_operator_index(case)], case)[
        0
    ]
    assert best.guilty.launch_index == 0 and best.guilty.value == "1041, where 0 to 1023 are allowed"
    assert "input 0" in best.summary and confidence(best, case) == "likely"
