"""A real disk of 1 MB: a tmpfs in a user's mount namespace, which needs no root if the system allows it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

MOUNT = """
for folder in $2; do
    mount --bind "$folder" "$folder" && mount -o remount,bind,ro "$folder" || exit 1
done
mount -t tmpfs -o size="$1" none "$0" && echo mounted && exec sleep 1000
"""


@dataclass(frozen=True)
class SmallDisk:
    """A small disk. It is at `path` for processes started with `command`, and at `seen` for this process."""

    path: Path
    pid: int

    @property
    def seen(self) -> Path:
        return Path(f"/proc/{self.pid}/root") / self.path.relative_to("/")

    def command(self, folder: Path, *argv: str) -> list[str]:
        """A command line that runs `argv` in `folder`, where the disk is mounted."""
        enter = ["nsenter", "-t", str(self.pid), "-U", "-m", "--preserve-credentials"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder), *argv]

    def fill(self) -> None:
        """Fill the disk."""
        ballast = (self.seen / "ballast").open("ab", buffering=0)
        with ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        (self.seen / "ballast").unlink()


@contextmanager
def small_disk(path: Path, size: str = "1m", *, alone: bool = False) -> Iterator[SmallDisk]:
    """Mount a disk of `size` at `path`. `alone`: the directories for temporary files are read-only.

    Skip the test if neither root nor user namespaces may mount one.
    """
    path.mkdir()
    read_only = " ".join(name for name in ("/tmp", "/var/tmp") if alone and Path(name).is_dir())
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(path), size, read_only]
    try:
        holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare here (util-linux)")
    with holder:
        try:
            assert holder.stdout is not None and holder.stderr is not None
            if holder.stdout.readline() != "mounted\n":
                pytest.skip(f"no disk can be mounted here: {holder.stderr.read().strip()}")
            yield SmallDisk(path, holder.pid)
        finally:
            holder.kill()
