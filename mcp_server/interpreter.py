"""Finds the Python that has the user's torch if a call names none. torch is never imported here.

The server has its own environment, and looks for the user's: the active one, the one in the folder, or the
one of `python3`. The first with torch is used.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from mcp_server.errors import argument, here
from mcp_server.jobs.child import child_environment

VARIABLE = "AOTI_DEBUG_PYTHON"

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")
"""Variables that name the environment in use; UV_PROJECT_ENVIRONMENT may be relative to the project."""
LOCAL = (".venv", "venv", ".pixi/envs/default")
"""Where uv, venv, poetry and pixi put the environment of a folder."""
NAMES = ("python3", "python")
MOST_ON_PATH = 6
ASKING_S = 5.0  # an interpreter starts in 20 ms; from a network disk, in a second or two
_ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def interpreter_help() -> str:
    """Say what to do if no torch is found. Arguments are spelled as for the caller: MCP or command line."""
    return f"pass {argument('python')}, or set {VARIABLE}, to a Python 3.9 or later that has torch"


def default_python(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Path:
    """AOTI_DEBUG_PYTHON, or else the first candidate with torch, for a call that names none.

    If none has torch, the first candidate is returned, so that the error names what the user would expect.
    This may start a few interpreters, each for up to `ASKING_S`, so do not call it in the event loop.
    """
    env = os.environ if environ is None else environ
    if env.get(VARIABLE):
        return Path(env[VARIABLE]).expanduser()
    found = candidates(env, folder or here())
    return next((python for python in found if has_torch(python)), found[0])


def candidates(environ: Mapping[str, str], folder: Path) -> list[Path]:
    """List existing interpreters, each once: the active environment's, our own, the folder's, those on PATH.

    The parents of the folder are searched as well, up to the root of its repository.
    """
    above = [folder, *folder.parents]
    root = next((number for number, path in enumerate(above) if (path / ".git").exists()), 0)
    on_path = (Path(entry) for entry in environ.get("PATH", "").split(os.pathsep))
    programs = (e / name for e in on_path if e.is_absolute() for name in NAMES if (e / name).exists())
    places = [
        *(folder / environ[name] / "bin" / "python" for name in ACTIVE if environ.get(name)),
        Path(sys.executable),
        *(path / local / "bin" / "python" for path in above[: root + 1] for local in LOCAL),
        *islice(programs, MOST_ON_PATH),
    ]
    return list(dict.fromkeys(path for path in places if os.access(path, os.X_OK) and path.is_file()))


def has_torch(python: Path) -> bool:
    """Whether `import torch` would find something. No process is started if torch's files are found."""
    if python == Path(sys.executable):
        return importlib.util.find_spec("torch") is not None
    if any(python.parent.parent.glob("lib/python3*/site-packages/torch/version.py")):
        return True
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK],
            cwd="/",
            env=child_environment({}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASKING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # no working Python
        return False
    return done.returncode == 0
