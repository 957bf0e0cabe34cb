"""The table of interventions by category."""

from __future__ import annotations

from typing import get_args

from mcp_server.diagnosis.interventions.categories import INTERVENTIONS
from mcp_server.model import Category


def test_every_category_has_an_intervention_or_a_reason() -> None:
    """Kinds come with constructors, and a category without either says why none can exist."""
    assert set(INTERVENTIONS) == set(get_args(Category))
    for category, available in INTERVENTIONS.items():
        assert available.constructors or available.otherwise, category
        assert bool(available.kinds) == bool(available.constructors), category
