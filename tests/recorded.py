"""Lays out the recorded outputs of `tests/recordings`, each as a file.

Long outputs are files already. Short ones are rows of `texts.jsonl`: the name of the file, and its lines, its
JSON objects, the events of a worker's report, or the name of an equal file. A number refers to a line in the
first row, which has the lines that occur several times.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from tools.made import MADE

HOME = Path(__file__).resolve().parent / "recordings"
TEXTS = HOME / "texts.jsonl"


def _laid_out() -> Path:
    """A folder with all files, made once for each state of the recordings."""
    files = sorted(path for path in HOME.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(bytes(path) + path.read_bytes() for path in files)).hexdigest()[:12]
    target = MADE / "recordings" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            new = Path(shutil.copytree(HOME, Path(work) / "new"))
            head, *rows = map(json.loads, TEXTS.read_text().splitlines())
            for row in rows:
                (new / row["file"]).parent.mkdir(parents=True, exist_ok=True)
                objects = [json.dumps(each, separators=(",", ":")) for each in row.get("objects", ())]
                report = [json.dumps(each) for each in row.get("report", ())]  # as the worker writes it
                same, given = row.get("same_as"), row.get("lines", [*report, ""] if report else objects)
                lines = [head["shared"][e] if isinstance(e, int) else e for e in given]
                text = (HOME / same).read_text() if same else "\n".join(lines)
                (new / row["file"]).write_text(text)
            try:
                new.rename(target)
            except OSError:  # another process was faster, so the folder is not empty
                if not target.is_dir():
                    raise
    return target


RECORDINGS = _laid_out()
