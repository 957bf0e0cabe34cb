"""Lays out the recorded outputs of `tests/recordings`, each as a file.

`texts.txt` has the texts: after `@@` the name of a file, then its lines. Each number after one `@` stands
for a line of the first part, which has the lines that occur several times, or, if negative, for empty lines.
`objects.jsonl` has one file in each row: its JSON objects, the events of a worker's report, or the name of an
equal file.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from tools.made import MADE

HOME = Path(__file__).resolve().parent / "recordings"


def _texts() -> dict[str, str]:
    """The text of each file by its name."""
    first, *parts = (HOME / "texts.txt").read_text().removesuffix("\n").split("\n@@ ")
    shared, texts = first.split("\n")[1:], {}
    for name, *rows in (part.split("\n") for part in parts):
        lines: list[str] = []
        for row in rows:
            if row.startswith("@"):
                for place in map(int, row[1:].split()):
                    lines += [shared[place]] if place >= 0 else [""] * -place
            else:
                lines.append(row)
        texts[name] = "\n".join(lines)
    for row in map(json.loads, (HOME / "objects.jsonl").read_text().splitlines()):
        objects = [json.dumps(each, separators=(",", ":")) for each in row.get("objects", ())]
        report = [json.dumps(each) + "\n" for each in row.get("report", ())]  # as the worker writes it
        same = row.get("same_as")
        texts[row["file"]] = texts[same] if same else "\n".join(objects) + "".join(report)
    return texts


def _laid_out() -> Path:
    """A folder with all files, made once for each state of the recordings."""
    files = sorted(path for path in HOME.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(bytes(path) + path.read_bytes() for path in files)).hexdigest()[:12]
    target = MADE / "recordings" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            new = Path(shutil.copytree(HOME, Path(work) / "new"))
            for name, text in _texts().items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_text(text)
            try:
                new.rename(target)
            except OSError:  # another process was faster, so the folder is not empty
                if not target.is_dir():
                    raise
    return target


RECORDINGS = _laid_out()

if __name__ == "__main__":
    print(RECORDINGS)
