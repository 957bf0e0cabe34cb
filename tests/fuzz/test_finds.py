"""Inputs that once broke a reader, and hostile or damaged inputs for every reader."""

import json
import random
import re
from pathlib import Path

import pytest

from tests.fuzz.made import damaged, packages
from tests.fuzz.targets import FINDS, TARGETS, Readings, seeds
from tests.zoo.names import THOROUGH

KEPT = [json.loads(line) for line in FINDS.read_text().splitlines()]
HOSTILE = (b"", b"\0", b"\xff" * 100, b"[" * 5000, b"(" * 5000 + b")" * 5000, b"9" * 5000, b"a\r" * 2000)


@pytest.mark.parametrize("find", KEPT, ids=[f"{find['target']}-{find['name']}" for find in KEPT])
def test_finds_stay_corrected(find: dict[str, str]) -> None:
    """An input that a fuzzer found is read, or rejected with a message."""
    TARGETS[find["target"]].tolerates(bytes.fromhex(find["hex"]))


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name: str) -> None:
    """Every reader tolerates nothing, zeros, deep nesting and endless numbers."""
    for data in HOSTILE:
        TARGETS[name].tolerates(data)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.seeds])
def test_cut_recordings(name: str) -> None:
    """Every reader tolerates real output that ends anywhere."""
    for data in list(seeds(TARGETS[name]))[:3]:
        for end in range(0, min(len(data), 20_000), 997):
            TARGETS[name].tolerates(data[:end])


LARGE = ("wrapper", "recording")  # their smallest file is large
PIECES = (
    *(b"(", b")", b"{", b"}", b'"', b"'", b"/*", b"*/", b'R"('),
    *(b",", b"\n", b"\\", b"=", b"0", b"-"),
)


def changed(data: bytes, dice: random.Random) -> bytes:
    """Insert pieces, or double or remove ranges, in one to four places."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        data = data[:at] + dice.choice((*PIECES, data[at : at + 40] * 2)) + data[at + dice.randrange(30) :]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_recordings(name: str) -> None:
    """Every reader tolerates real output with lost, doubled or changed bytes."""
    dice = random.Random(31)
    whole = [data for data in list(seeds(TARGETS[name]))[:20] if len(data) < 20_000 or name in LARGE]
    for _ in range(1000 if THOROUGH else 30):
        data = dice.choice(whole)
        TARGETS[name].tolerates((damaged if data.startswith(b"PK") else changed)(data, dice))


@pytest.mark.parametrize("name", ["wrapper", "inputs", "commands", "journal", "capture", "treespec", "sweep"])
@pytest.mark.parametrize("digits", [b"9" * 5000, b"9" * 12], ids=["unreadable", "huge"])
def test_numbers_beyond_all_bounds(name: str, digits: bytes) -> None:
    """Each number is replaced by one that `int` rejects, or that would need terabytes."""
    for data in list(seeds(TARGETS[name]))[:5]:
        for place in (rb"\d+", rb"(?<=\[)\d+", rb"(?<=[ (=:{,])\d+"):
            TARGETS[name].tolerates(re.sub(place, digits, data[:9000]))


@pytest.mark.slow
def test_what_we_let_through_has_one_reading(tmp_path: Path) -> None:
    """Damaged archives that we accept have the same members for zipfile and torch."""
    dice = random.Random(31)
    whole = [package for package in packages() if len(package) < 20_000][:4]
    readings = Readings(tmp_path)
    try:
        for _ in range(10_000 if THOROUGH else 400):
            data = damaged(dice.choice(whole), dice)
            assert not readings.disagreement(data), data.hex()
    finally:
        readings.close()
