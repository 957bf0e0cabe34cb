"""The table of interventions by category."""

from __future__ import annotations

import importlib
from typing import get_args

from mcp_server.diagnosis.interventions.categories import INTERVENTIONS
from mcp_server.model import Category


def test_every_category_has_an_intervention_or_a_reason() -> None:
    """Each of the table's names is a constructor of a module of its kinds."""
    assert set(INTERVENTIONS) == set(get_args(Category))
    for category, available in INTERVENTIONS.items():
        assert available.names or available.otherwise, category
        kinds = {kind.value for kind in available.kinds}
        assert kinds == {name.partition(".")[0].rstrip("_") for name in available.names}, category
        for name in available.names:
            module, _, function = name.partition(".")
            found = importlib.import_module(f"mcp_server.diagnosis.interventions.{module}")
            assert callable(getattr(found, function)), name
