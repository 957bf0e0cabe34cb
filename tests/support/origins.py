"""Packages whose index has a known origin, and recorded ones."""

from __future__ import annotations

from pathlib import Path

from mcp_server.package.view import PackageView, view_package
from tests.conftest import CACHE, compiled_once
from tests.package.archives import write
from tests.recorded import RECORDINGS


def build(name: str) -> Path:
    """The package of a model of `tests.zoo.origins`."""
    return compiled_once(CACHE / f"{name}.pt2", "tests.zoo.origins", name)


WRAPPERS = RECORDINGS / "wrappers"


def recorded(name: str, folder: Path) -> PackageView:
    """A package that holds a recorded wrapper and no library."""
    text = (WRAPPERS / f"{name}.torch-2.11-cuda.cpp").read_bytes()
    members = {
        f"{name}/archive_format": b"pt2",
        f"{name}/data/aotinductor/model/abc.wrapper.cpp": text,
        f"{name}/data/aotinductor/model/abc.wrapper_metadata.json": b'{"AOTI_DEVICE_KEY": "cuda"}',
    }
    return view_package(write(folder / f"{name}.pt2", members))
