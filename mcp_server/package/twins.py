"""Models of a package that are one and the same under several names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_server.package.layout import ModelFiles, find_models
from mcp_server.package.members import ZipContainer

if TYPE_CHECKING:
    from mcp_server.package.archive import Package


def twins(package: Package) -> tuple[str, ...]:
    """The other models whose files are all those of this one: by name, size and recorded checksum."""
    container = package.container
    if len(package.models) < 2 or not isinstance(container, ZipContainer):
        return ()
    models = find_models(container)
    mine = _content(package.files, container)
    others = [name for name in models if name != package.model_name]
    return tuple(name for name in others if _content(models[name], container) == mine)


def _content(files: ModelFiles, container: ZipContainer) -> frozenset[tuple[str, int, int]]:
    """Every file of a model: its path below the model's own folder, its size and its checksum."""
    folder = f"data/aotinductor/{files.name}/"
    return frozenset(
        (member.name.partition(folder)[2], member.size, container.checksum(member.name))
        for member in files.members
    )
