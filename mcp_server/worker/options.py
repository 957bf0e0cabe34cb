"""Options of a compile, as JSON and back."""

from __future__ import annotations

from typing import Any

import torch

from .report import plain

# The one option of torch._inductor.config (2.8-2.15) whose value has operators as keys.
BY_OPERATOR = "aot_inductor.custom_ops_to_c_shims"


def encode(configs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """`configs` as JSON, and whether `decode` gives them back as they were."""
    named = dict(configs)
    if isinstance(named.get(BY_OPERATOR), dict):
        named[BY_OPERATOR] = {str(operator): shims for operator, shims in named[BY_OPERATOR].items()}
    return plain(named), plain(named) == named


def decode(configs: dict[str, Any]) -> dict[str, Any]:
    """The options for torch; an operator that is not registered raises AttributeError, as in a script."""
    found = dict(configs)
    if isinstance(found.get(BY_OPERATOR), dict):
        found[BY_OPERATOR] = {_operator(name): shims for name, shims in found[BY_OPERATOR].items()}
    return found


def _operator(name: str) -> Any:
    """`namespace.name.overload` as the operator itself."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found
