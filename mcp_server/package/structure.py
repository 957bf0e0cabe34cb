"""The tree of a call's arguments against the exported one.

`AOTICompiledModel.__call__` flattens what it is given without comparing the tree (torch 2.8-2.15): a
dictionary with its keys in another order swaps values silently.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.model import Fix
from mcp_server.package.mismatch import Mismatch
from mcp_server.package.signature import Signature
from mcp_server.package.treespec import leaf_paths

_KEYWORD = "kwargs["


def compare_structure(signature: Signature, given: Sequence[str]) -> list[Mismatch]:
    """Differences between the paths of the caller's leaves and the exported ones, tensors and others.

    Only dictionaries are compared: a flat list of tensors says nothing about structure. Keyword arguments
    come in any order, since the loader sorts them.
    """
    if signature.in_spec is None or not any("['" in path for path in given):
        return []
    expected = leaf_paths(signature.in_spec)
    renamed = _as_exported(given, expected)
    actual = tuple(renamed[i] for i in _sorted_keywords(renamed, expected))
    if actual == expected:
        return []
    return [_reordered(expected, actual) if set(actual) == set(expected) else _other_leaves(expected, actual)]


def calling_order(signature: Signature, given: Sequence[str]) -> tuple[int, ...]:
    """The places of the caller's leaves in the order in which the loader passes them on."""
    expected = leaf_paths(signature.in_spec) if signature.in_spec is not None else ()
    return _sorted_keywords(_as_exported(given, expected), expected)


def _sorted_keywords(paths: Sequence[str], expected: Sequence[str]) -> tuple[int, ...]:
    """Keyword arguments in the exported order behind the positional ones, which stay as they are."""
    names = [_top(path) for path in expected if path.startswith(_KEYWORD)]
    rank = {name: place for place, name in enumerate(dict.fromkeys(names))}
    places = range(len(paths))
    positional = [i for i in places if not paths[i].startswith(_KEYWORD)]
    keywords = [i for i in places if paths[i].startswith(_KEYWORD)]
    return (*positional, *sorted(keywords, key=lambda i: rank.get(_top(paths[i]), len(rank))))


def _top(path: str) -> str:
    return path[: path.find("]") + 1]


def _as_exported(given: Sequence[str], expected: Sequence[str]) -> tuple[str, ...]:
    """One dictionary of tensors whose keys are the keyword arguments stands for them."""
    keywords = tuple(path.replace("args[0][", _KEYWORD, 1) for path in given)
    return keywords if set(keywords) == set(expected) else tuple(given)


def _reordered(expected: tuple[str, ...], actual: tuple[str, ...]) -> Mismatch:
    first = next(i for i, (want, got) in enumerate(zip(expected, actual, strict=True)) if want != got)
    return Mismatch(
        category="input_mismatch",
        aspect="structure",
        severity="fatal",
        sentence=f"the dictionary's keys are in another order than at export: {actual[first]} stands where "
        f"{expected[first]} was; AOTInductor passes tensors by position, so that values are swapped silently",
        expected=", ".join(expected),
        got=", ".join(actual),
        fix=Fix(
            action="build the dictionary in the exported order",
            before=", ".join(actual),
            after=", ".join(expected),
        ),
        input_index=first,
    )


def _other_leaves(expected: tuple[str, ...], actual: tuple[str, ...]) -> Mismatch:
    missing = [path for path in expected if path not in actual]
    extra = [path for path in actual if path not in expected]
    return Mismatch(
        category="input_mismatch",
        aspect="structure",
        severity="fatal",
        sentence=f"the arguments are not those of the export: missing {', '.join(missing) or 'none'}, "
        f"unknown {', '.join(extra) or 'none'}; AOTInductor compares neither keys nor structure",
        expected=", ".join(expected),
        got=", ".join(actual),
        fix=Fix(action="pass the arguments with the names and the nesting of the exported call"),
    )
