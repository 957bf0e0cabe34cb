"""Which members of a package belong to which model, and what each of them is.

Layouts: `<stem>/data/aotinductor/<model>/<hash>.wrapper.{cpp,so}` (torch 2.7-2.15), the same without
`.wrapper` (torch 2.6), and a flat directory as `aot_compile` or the Inductor cache leaves it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from mcp_server.package.members import Container, Member

_MODEL = re.compile(r"(?:^|/)data/aotinductor/([^/]+)/")
KERNEL_BINARIES = (".cubin", ".fatbin", ".hsaco", ".spv")
FLAT_MODEL = "model"


@dataclass(frozen=True)
class ModelFiles:
    """The members of one model."""

    name: str
    members: tuple[Member, ...]

    @cached_property
    def wrapper_source(self) -> Member | None:
        return self.ending(".wrapper.cpp") or self._only(".cpp")

    @cached_property
    def kernel_source(self) -> Member | None:
        return self.ending(".kernel.cpp")

    @cached_property
    def library(self) -> Member | None:
        return self.ending(".wrapper.so") or self._only(".so")

    @cached_property
    def libraries(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.name.endswith(".wrapper.so"))

    @cached_property
    def metadata(self) -> Member | None:
        return self.ending(".wrapper_metadata.json") or self.ending("_metadata.json")

    @cached_property
    def proxy_nodes(self) -> Member | None:
        return self.ending(".wrapper.json")

    @cached_property
    def kernel_information(self) -> Member | None:
        return self.ending("/kernel_information.json") or self.named("kernel_information.json")

    @cached_property
    def kernel_binaries(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.name.endswith(KERNEL_BINARIES))

    @cached_property
    def weights_blob(self) -> Member | None:
        return self.ending("_weights.blob")

    @cached_property
    def weights_config(self) -> Member | None:
        return self.ending("/weights_config.json") or self.named("weights_config.json")

    @property
    def built_at_load(self) -> bool:
        """Whether this is a `package_cpp_only` package: sources and flags, compiled by the loader."""
        return self.library is None and self.ending("_compile_flags.json") is not None

    def ending(self, suffix: str) -> Member | None:
        return next((m for m in self.members if m.name.endswith(suffix)), None)

    def named(self, name: str) -> Member | None:
        return next((m for m in self.members if m.name == name), None)

    def _only(self, suffix: str) -> Member | None:
        found = [
            m for m in self.members if m.name.endswith(suffix) and not m.name.endswith(f".kernel{suffix}")
        ]
        return found[0] if len(found) == 1 else None


def find_models(container: Container) -> dict[str, ModelFiles]:
    """The models of an archive or an unpacked directory, by name, in the order of the archive."""
    groups: dict[str, list[Member]] = {}
    for member in container.members:
        if match := _MODEL.search(member.name):
            groups.setdefault(match[1], []).append(member)
    return {name: ModelFiles(name, tuple(members)) for name, members in groups.items()}


def flat_model(container: Container, stem: str | None = None) -> dict[str, ModelFiles]:
    """The one model of a flat directory; `stem` picks the files of one library among several."""
    members = tuple(m for m in container.members if "/" not in m.name)
    if stem is not None and any(m.name == f"{stem}.cpp" for m in members):
        members = tuple(m for m in members if not _other_model(m.name, stem))
    files = ModelFiles(FLAT_MODEL, members)
    return {FLAT_MODEL: files} if files.wrapper_source is not None else {}


def _other_model(name: str, stem: str) -> bool:
    """Whether `name` is a wrapper or library of another stem than `stem` (`x.wrapper` or `x`)."""
    path = PurePosixPath(name)
    mine = stem.removesuffix(".wrapper")
    is_wrapper = path.suffix == ".so" or name.endswith((".wrapper.cpp", ".wrapper.json", "_metadata.json"))
    return is_wrapper and not name.startswith((f"{stem}.", f"{stem}_", f"{mine}."))
