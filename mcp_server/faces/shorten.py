"""Makes a result fit a client's limit: the largest part is halved first, and every cut is said."""

from __future__ import annotations

import copy
import json
from typing import Any

LIMIT = 10_000
"""Characters of a result. Codex cuts at about 12,000, and Claude Code cuts big errors at about 10,000."""

SHORTEST_STRING = 80
WIDEST_MAPPING = 32

Path = tuple[str | int, ...]
Cuts = dict[Path, int]
"""Original length of what was cut."""


def compact(value: object) -> str:
    """The JSON text that both channels carry."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shorten(
    result: dict[str, Any], *, limit: int = LIMIT, full: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`result` itself when it fits, else a copy with `shortened: {cut: [...], full: file}` that does."""
    if len(compact(result)) <= limit:
        return result
    short = _without_nulls(copy.deepcopy(result))
    cuts: Cuts = {}
    while len(compact(_with_note(short, cuts, full))) > limit and _halve_largest(short, (), cuts):
        pass
    return _with_note(short, cuts, full)


def middle_cut(text: str, keep: int) -> str:
    """Head and tail of `text`, together about `keep` characters."""
    half = max(keep // 2 - 2, 1)
    return text if len(text) <= keep else f"{text[:half]} … {text[-half:]}"


def _with_note(short: dict[str, Any], cuts: Cuts, full: dict[str, Any] | None) -> dict[str, Any]:
    note: dict[str, Any] = {"cut": [*_cut_lines(short, cuts), "absent fields are null"]}
    if full:
        note["full"] = full
    return {**short, "shortened": note}


def _cut_lines(short: dict[str, Any], cuts: Cuts) -> list[str]:
    """One line per cut that is still visible: a later cut may have dropped an item that was cut before."""
    found = ((path, size, _find(short, path)) for path, size in cuts.items())
    return [_cut_line(path, size, value) for path, size, value in found if value is not None]


def _cut_line(path: Path, size: int, value: Any) -> str:
    unit = "characters" if isinstance(value, str) else "items"
    return f"{'.'.join(map(str, path))}: {len(value)} of {size} {unit}"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _halve_largest(value: Any, path: Path, cuts: Cuts) -> bool:
    """Halve the largest list, mapping or string inside `value`; False when nothing more can be cut."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    keys.sort(key=lambda key: -len(compact(value[key])))
    return any(_halve_at(value, key, (*path, key), cuts) for key in keys)


def _halve_at(value: Any, key: Any, path: Path, cuts: Cuts) -> bool:
    item = value[key]
    if isinstance(item, dict | list) and not _is_many(item):
        return _halve_largest(item, path, cuts)
    half = _half(item)
    if half is None:
        return False
    cuts.setdefault(path, len(item))
    value[key] = half
    return True


def _half(item: Any) -> Any:
    """The first half of a list or mapping, head and tail of a long string, else None."""
    if isinstance(item, str):
        return middle_cut(item, len(item) // 2) if len(item) > SHORTEST_STRING else None
    if isinstance(item, list):
        return item[: len(item) // 2]
    return dict(list(item.items())[: len(item) // 2]) if isinstance(item, dict) else None


def _is_many(items: Any) -> bool:
    """Dropping items helps, unless one item holds most of the text: then that item is cut."""
    if len(items) < (WIDEST_MAPPING if isinstance(items, dict) else 2):
        return False
    sizes = [len(compact(item)) for item in (items.values() if isinstance(items, dict) else items)]
    return max(sizes) * 2 <= sum(sizes) or max(sizes) <= SHORTEST_STRING


def _find(value: Any, path: Path) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value
