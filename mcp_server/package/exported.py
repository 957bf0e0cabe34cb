"""Reads facts from a `torch.export.save` file without loading the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcp_server.errors import read_json
from mcp_server.model import ModelLocation
from mcp_server.package.members import ZipContainer, read_bytes
from mcp_server.package.problems import PackageError
from mcp_server.package.provenance import innermost, read_stack

# models/<name>.json from torch 2.8 on; a tensor's device is {"type": "cuda", "index": 0}.
_GRAPH = re.compile(r"(?:^|/)models/[^/]+\.json$")
_METADATA = re.compile(r"_metadata\.json$")
# Operators that mutate an argument end in "_". The listed namespaces are those of torch and of Python.
_IN_PLACE = re.compile(r"aten\.\w*[^_\W]_\.\w+$")
_SPECIAL = re.compile(rf"{_IN_PLACE.pattern}|(?!aten\.|prims?\.|_?operator\.|torch\.|math\.)\w+\.\w+\.\w+$")
_DEVICE = re.compile(rb'"device":\s*\{\s*"type":\s*"(\w+)"')


def exported_device(path: Path) -> Literal["cpu", "cuda"] | None:
    """Return the device of the program's tensors: cuda if mixed, None if unknown."""
    types = {found for text in _texts(path, _GRAPH) for found in _DEVICE.findall(text)}
    return "cuda" if b"cuda" in types else "cpu" if types == {b"cpu"} else None


def package_device(path: Path) -> Literal["cpu", "cuda"] | None:
    """Return the device for which a package was compiled; None if the package does not say."""
    texts = _texts(path, _METADATA)
    return ("cuda" if any(b'"cuda"' in text for text in texts) else "cpu") if texts else None


def _texts(path: Path, name: re.Pattern[str]) -> list[bytes]:
    """Read the members whose names match; empty if the file is not an archive."""
    try:
        archive = ZipContainer(path)
        return [read_bytes(archive, m.name) for m in archive.members if name.search(m.name)]
    except PackageError:
        return []


@dataclass(frozen=True)
class ExportedFacts:
    """Facts from the graph of an exported program.

    `state` lists fully qualified names of parameters and buffers. `fixed` maps the flat index of each
    non-tensor argument to its value at export; AOTInductor uses that value in every call. `names` are the
    flat argument names, "" for non-tensors. `ranges` are inclusive bounds of dynamic dimensions by symbol.
    `special` are operators that mutate an argument or are not torch's own, each with its model line.
    """

    state: tuple[str, ...] = ()
    fixed: tuple[tuple[int, object], ...] = ()
    names: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    special: tuple[tuple[str, ModelLocation], ...] = ()

    @property
    def in_place(self) -> list[ModelLocation]:
        """The lines at which the model mutates a tensor in place."""
        return list(dict.fromkeys(line for target, line in self.special if _IN_PLACE.match(target)))


def read_exported(path: Path) -> ExportedFacts:
    """Read the graph's facts. Raise `PackageError` for another kind of file.

    Schema: torch/_export/serde/schema.py (2.8-2.15).
    """
    graph = _graph(path)
    if not graph:
        raise PackageError("no_model", f"{path} holds no exported graph")
    specs = graph.get("graph_module", {}).get("signature", {}).get("input_specs", [])
    states = (spec.get(kind, {}).get(f"{kind}_name") for spec in specs for kind in ("parameter", "buffer"))
    fixed: list[tuple[int, object]] = []
    names: list[str] = []
    for spec in specs:
        if "user_input" not in spec and "constant_input" not in spec:
            continue
        argument = spec.get("user_input", {}).get("arg") or {}
        # either a value such as `{"as_int": 7}`, or a `constant_input`
        values = argument or spec.get("constant_input", {}).get("value") or {}
        kind, value = next(iter(values.items()), ("", None))
        if kind in ("as_int", "as_float", "as_bool", "as_string", "as_none"):
            fixed.append((len(names), None if kind == "as_none" else value))
        names.append(str(argument.get("as_tensor", {}).get("name") or ""))
    ranges = graph.get("range_constraints", {}).items()
    return ExportedFacts(
        state=tuple(str(name) for name in states if name),
        fixed=tuple(fixed),
        names=tuple(names),
        ranges={symbol: (bounds.get("min_val"), bounds.get("max_val")) for symbol, bounds in ranges},
        special=tuple(_lines(graph, _SPECIAL)),
    )


def node_lines(path: Path) -> tuple[tuple[str, ModelLocation], ...]:
    """List each node's operator (`aten.index.Tensor`) with the innermost model line that produced it.

    Raise `PackageError` for another kind of file.
    """
    return tuple(_lines(_graph(path), re.compile("")))


def _graph(path: Path) -> dict[str, Any]:
    """Read the serialised program, in torch's own JSON; empty if the archive has none."""
    archive = ZipContainer(path)
    name = next((m.name for m in archive.members if _GRAPH.search(m.name)), None)
    return read_json(read_bytes(archive, name)) if name is not None else {}


def _lines(graph: Mapping[str, Any], wanted: re.Pattern[str]) -> Iterator[tuple[str, ModelLocation]]:
    """Yield the operators that match `wanted`, each with its line."""
    for node in graph.get("graph_module", {}).get("graph", {}).get("nodes", ()):
        target = str(node.get("target", "")).removeprefix("torch.ops.")
        if not wanted.match(target):
            continue
        line = innermost(read_stack(str(node.get("metadata", {}).get("stack_trace") or "")))
        if line is not None:
            yield target, line
