"""The recorded outputs below `tests/recordings`, each in a file of its own."""

from __future__ import annotations

from pathlib import Path

from tools.packed import unpacked

RECORDINGS = unpacked(Path(__file__).resolve().parent / "recordings")
