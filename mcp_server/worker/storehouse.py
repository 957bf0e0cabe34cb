"""Files of a capture: inputs, constants, packages. Every one has a size cap."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections import deque
from typing import Any, Optional

import torch

from .journal import Journal
from .ranks import identity

DEFAULT_CAP = 1 << 30  # bytes of one saved call, update or program; AOTI_DEBUG_CAPTURE_CAP overrides
KEPT = 2  # finished calls of one loaded model whose inputs stay, whatever their size
LATEST = 32  # more of its latest, and
FIRST = 32  # of the first calls of the process: a check may come after all of them; as far as these
BYTES = 128 << 20  # suffice for each of the two
ODD = 4  # finished calls whose inputs stay because their outputs are not finite or not readable
COPY = 256 << 20  # a larger package is linked, not copied

_torch_save = torch.save


class Storehouse:
    """Saves into the journal's directory. `number` gives names that are unique within the process."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.cap = int(os.environ.get("AOTI_DEBUG_CAPTURE_CAP") or DEFAULT_CAP)
        self.finished: dict[int, deque[tuple[str, int]]] = {}
        self.latest_bytes = self.first = self.first_bytes = self.odd = 0

    def save(self, kind: str, number: int, record: Any) -> str:
        """Write `record` with torch.save; the path."""
        path = self.journal.path("{}-{}-{}.pt".format(kind, identity(), number))
        _torch_save(record, path)
        return path

    def retire(self, path: Optional[str], load: int, odd: bool) -> None:
        """A call came back: keep the inputs of the first calls, the model's latest and the first odd ones."""
        if path is None:
            return
        if odd and self.odd < ODD:
            self.odd += 1
            return
        size = os.path.getsize(path)
        if self.first < FIRST and self.first_bytes + size <= BYTES:
            self.first += 1
            self.first_bytes += size
            return
        kept = self.finished.setdefault(load, deque())
        kept.append((path, size))
        self.latest_bytes += size
        while len(kept) > KEPT and (len(kept) > LATEST or self.latest_bytes > BYTES):
            oldest, freed = kept.popleft()
            self.latest_bytes -= freed
            os.unlink(oldest)

    def forget(self) -> None:
        """In a forked child: what its parent keeps is not its to delete."""
        self.finished.clear()
        self.latest_bytes = self.first = self.first_bytes = self.odd = 0

    def package(self, path: str) -> dict[str, Any]:
        """Keep the package as it is now, named by its content: size, sha256 and copy (None if not kept).

        What cannot be copied, a disk or a limit on the size of files being in the way, is linked; of what can
        be neither, `largest` tells the size of the largest member, and `notice` why.
        """
        facts: dict[str, Any] = {"bytes": os.path.getsize(path), "sha256": "", "copy": None}
        why = "larger than is copied, and on another disk"
        if facts["bytes"] <= COPY:
            facts["sha256"] = sha256(path)
            try:
                return {**facts, "copy": self._copied(path, facts["sha256"])}
            except OSError as error:
                why = str(error)
        link = self._link(path)
        kept = {"copy": link} if link is not None else {"largest": largest_member(path), "notice": why}
        return {**facts, **kept}

    def _copied(self, path: str, content: str) -> str:
        directory = self.journal.path("package-" + content[:16])
        copy = os.path.join(directory, os.path.basename(path))
        if not os.path.exists(copy):
            os.makedirs(directory, exist_ok=True)
            partial = "{}.partial-{}".format(copy, identity())  # other ranks may keep the same package
            try:
                shutil.copyfile(path, partial)
            except OSError:
                if os.path.exists(partial):
                    os.unlink(partial)
                raise
            os.replace(partial, copy)
        return copy

    def _link(self, path: str) -> Optional[str]:
        """A hard link: it outlives the removal of a large file, though not its being rewritten in place."""
        state = os.stat(path)
        directory = self.journal.path("package-{}-{}".format(state.st_dev, state.st_ino))
        link = os.path.join(directory, os.path.basename(path))
        os.makedirs(directory, exist_ok=True)
        try:
            os.link(path, link)
        except FileExistsError:
            pass
        except OSError:
            return None
        return link


def largest_member(path: str) -> Optional[int]:
    """Bytes of the largest member of a zip archive, unpacked; None for what is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return max((member.file_size for member in archive.infolist()), default=None)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
