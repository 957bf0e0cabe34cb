"""The supported torch releases: one range, in the code and in the requirements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_server import versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def test_the_package_requires_the_supported_releases() -> None:
    """`pip install 'aoti-debug[torch]'` takes no torch that the tools do not support."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, (major, minor) = versions.text(versions.FIRST), versions.LAST
    assert project["optional-dependencies"]["torch"] == [f"torch>={first},<{major}.{minor + 1}"]


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.8.0", True),
        ("2.15.0a0+git1234", True),
        ("2.13.0+cpu", True),
        ("2.7.1", False),
        ("2.16.0", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_which_versions_are_supported(version: str, supported: bool) -> None:
    """Both ends belong to the range; local and pre-release parts do not matter."""
    assert versions.is_supported(version) is supported
