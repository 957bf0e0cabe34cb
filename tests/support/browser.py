"""A page, loaded by a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CHROMIUM = os.environ.get("AOTI_DEBUG_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

QUIET = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update")


def browsed(directory: Path, text: str, *options: str) -> str:
    """What the browser prints after it has loaded `text`; as root it has no sandbox."""
    file = directory / "report.html"
    file.write_text(text)
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    profile = f"--user-data-dir={directory / 'profile'}"
    argv = [
        CHROMIUM,
        "--headless",
        *root,
        *QUIET,
        profile,
        "--enable-logging=stderr",
        *options,
        file.as_uri(),
    ]
    done = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, timeout=60, check=True
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
