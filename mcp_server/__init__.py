"""aoti-debug diagnoses AOTInductor failures by running the workload. Here: its version and torch's releases.

The supported releases are defined only here; `python -m benchmarks.releases` tries every tool with each. A
comment such as "torch 2.8-2.15" elsewhere says in which releases a fact was read or measured.
"""

import re

__version__ = "0.1.0"

Release = tuple[int, int]
"""Major and minor number: patch releases of torch change nothing that matters here."""

FIRST: Release = (2, 8)
LAST: Release = (2, 15)


def release_text(release: Release) -> str:
    """`2.8` for (2, 8)."""
    return f"{release[0]}.{release[1]}"


RANGE = f"{release_text(FIRST)} to {release_text(LAST)}"  # for sentences: `torch 2.8 to 2.15`


def release_of(version: str) -> Release | None:
    """The release of a `torch.__version__` such as `2.13.0+cpu` or `2.15.0a0+git1234`, or None."""
    found = re.match(r"(?P<major>\d+)\.(?P<minor>\d+)", version)
    return (int(found["major"]), int(found["minor"])) if found else None


def is_supported(version: str) -> bool:
    """Whether a version, as torch writes it, belongs to a supported release."""
    release = release_of(version)
    return release is not None and FIRST <= release <= LAST
