"""The files of the project: those that git tracks, or outside a clone all that are not made."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = frozenset({".git", ".venv", ".cache", "__pycache__", "build", "dist", ".hypothesis"})


def tracked() -> list[str]:
    """The paths relative to the root, sorted."""
    argv = ["git", "ls-files", "-z"]
    try:
        listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if _ours(path))
    return sorted(name for name in listed.stdout.split("\0") if (ROOT / name).is_file())


def _ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    made = any(part in MADE or part.endswith(("_cache", ".egg-info")) for part in parts)
    return path.is_file() and not made
