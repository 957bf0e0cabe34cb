"""Where `make`, the tests and the benchmarks keep what they make: outside of this folder.

`npx skills add` copies the whole folder, so that an environment of 1 GB in it would come along. A folder for
each checkout, named after its path; AOTI_DEBUG_MADE takes its place, and is what the Makefile sets.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def made_below(root: Path) -> Path:
    """The folder for the checkout at `root`; the Makefile computes the same."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    return Path(home) / "aoti-debug" / f"dev-{name}"


MADE = Path(os.environ.get("AOTI_DEBUG_MADE") or made_below(ROOT))
