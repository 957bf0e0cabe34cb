"""Where `make`, the tests and the benchmarks keep what they make: outside of this folder.

`npx skills add` copies the whole folder, and an environment in it would add 1 GB. Each checkout has its own
folder, named after the checkout's path; AOTI_DEBUG_MADE, which the Makefile sets, replaces it.
"""

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
