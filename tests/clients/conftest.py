"""Installed clients, with a home directory and an environment for each test."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

VARIABLE = "AOTI_DEBUG_CLIENTS"
LIMIT_S = 500
PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "LANG")


@dataclass(frozen=True)
class Clients:
    """Where the clients are installed, and the home directory that they may write to."""

    folder: Path
    home: Path

    @property
    def node(self) -> Path:
        return self.folder / "node_modules"

    @property
    def work(self) -> Path:
        """The directory in which clients are started."""
        path = self.home / "work"
        path.mkdir(exist_ok=True)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """The client's environment, without variables of this process that have a key."""
        path = [self.node / ".bin", self.folder / "python" / "bin", "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self.home),
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "AOTI_DEBUG_STATE": str(self.home / "state"),
            "DISABLE_TELEMETRY": "1",
            **more,
        }

    def run(self, *argv: str, **env: str) -> str:
        """Return the client's output on both streams. Fail the test if the client fails."""
        done = subprocess.run(
            argv,
            cwd=self.work,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    """The clients. Skips the test if `make test-clients` did not install them."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        pytest.skip(f"{VARIABLE} is not set; `make test-clients` installs the clients and sets it")
    home = tmp_path / "home"
    home.mkdir()
    return Clients(Path(folder).resolve(), home)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this repository, without untracked files."""
    path = tmp_path / "aoti-debug"
    subprocess.run(["git", "clone", "-q", "--depth=1", ROOT.as_uri(), str(path)], check=True)
    return path


def tracked(clone: Path) -> set[str]:
    """The files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=clone, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def checkout_server() -> list[str]:
    """The command of a server from this checkout."""
    return [sys.executable, str(ROOT / "tools" / "aoti_debug.py"), "serve"]
