"""Stands in for a user's operator where only its schema and its results' layouts matter: a failed compile."""

from __future__ import annotations

from typing import Any

import torch

from ..promises import layout
from .cut import Cut, Uncuttable, users_operators


def stand_ins(found: Cut, symbols: dict[Any, int]) -> tuple[str, ...]:
    """A line for each user's operator of the cut, that defines it without the user's code.

    `symbols` are the values of the size symbols in this call. Raises `Uncuttable` for an operator whose
    results are no tensors and plain values, depend on the data in size, or differ between two uses.
    """
    lines: dict[str, str] = {}
    for node, operator in users_operators(found):
        if operator is not node.target:
            raise Uncuttable("{} changes its arguments in place".format(operator))
        schema = str(operator._schema)
        name = schema.partition("(")[0]
        results = _text(node.meta.get("val"), symbols)
        tags = ", ".join("torch." + str(tag) for tag in operator.tags)
        line = "stand_in({!r}, {!r}, [{}], lambda: {})".format(name, schema[len(name) :], tags, results)
        if lines.setdefault(name, line) != line:
            raise Uncuttable("the results of {} differ between its uses".format(name))
    return tuple(lines.values())


def _text(value: Any, symbols: dict[Any, int]) -> str:
    """What gives results like these: memory of the same layouts, plain values as they are."""
    if isinstance(value, (list, tuple)):
        inner = "".join(_text(item, symbols) + ", " for item in value)
        return "[{}]".format(inner) if isinstance(value, list) else "({})".format(inner)
    if isinstance(value, torch.Tensor):
        seen = layout(value, symbols)
        if None in seen["shape"] or None in seen["stride"]:
            raise Uncuttable("the size of a result depends on the data")
        sizes = tuple(seen["shape"]), tuple(seen["stride"])
        return "torch.empty_strided({}, {}, dtype={}, device={!r})".format(
            *sizes, seen["dtype"], seen["device"]
        )
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise Uncuttable("a result is neither a tensor nor a plain value")


# ---- from here on copied ----


def stand_in(name: str, schema: str, tags: Any, results: Any) -> None:
    """Define an operator that gives memory of fixed layouts: it stands in for one that is not torch's."""

    def give(*_args: Any, **_kwargs: Any) -> Any:
        return results()

    torch.library.define(name, schema, tags=tags)
    torch.library.impl(name, "default")(give)
    torch.library.register_fake(name)(give)
