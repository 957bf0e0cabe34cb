"""Inputs that once broke a reader, and every reader on what is no text at all."""

from __future__ import annotations

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
    """What a fuzzer found once is read, or refused in words."""
    TARGETS[find["target"]].tolerates(bytes.fromhex(find["hex"]))


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name: str) -> None:
    """Nothing, zeros, deep nesting and endless numbers are tolerated by every reader."""
    for data in HOSTILE:
        TARGETS[name].tolerates(data)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.seeds])
def test_cut_recordings(name: str) -> None:
    """Real output that ends anywhere is tolerated."""
    for data in list(seeds(TARGETS[name]))[:3]:
        for end in range(0, min(len(data), 20_000), 997):
            TARGETS[name].tolerates(data[:end])


LARGE = ("wrapper", "recording")  # whose smallest file is large
PIECES = (
    *(b"(", b")", b"{", b"}", b'"', b"'", b"/*", b"*/", b'R"('),
    *(b",", b"\n", b"\\", b"=", b"0", b"-"),
)


def changed(data: bytes, dice: random.Random) -> bytes:
    """Pieces put in, and stretches doubled or taken out, in one to four places."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        data = data[:at] + dice.choice((*PIECES, data[at : at + 40] * 2)) + data[at + dice.randrange(30) :]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_recordings(name: str) -> None:
    """Real output with bytes that are lost, doubled or changed is tolerated."""
    dice = random.Random(31)
    whole = [data for data in list(seeds(TARGETS[name]))[:20] if len(data) < 20_000 or name in LARGE]
    for _ in range(1000 if THOROUGH else 30):
        data = dice.choice(whole)
        TARGETS[name].tolerates((damaged if data.startswith(b"PK") else changed)(data, dice))


@pytest.mark.parametrize("name", ["wrapper", "inputs", "commands", "journal", "capture", "treespec", "sweep"])
@pytest.mark.parametrize("digits", [b"9" * 5000, b"9" * 12], ids=["unreadable", "huge"])
def test_numbers_beyond_all_bounds(name: str, digits: bytes) -> None:
    """Numbers that `int` refuses, or that would make a tuple of terabytes, in the place of each real one."""
    for data in list(seeds(TARGETS[name]))[:5]:
        for place in (rb"\d+", rb"(?<=\[)\d+", rb"(?<=[ (=:{,])\d+"):
            TARGETS[name].tolerates(re.sub(place, digits, data[:9000]))


@pytest.mark.slow
def test_what_we_let_through_has_one_reading(tmp_path: Path) -> None:
    """Of damaged archives, those that we do not refuse have the same members for zipfile and for torch."""
    dice = random.Random(31)
    whole = [package for package in packages() if len(package) < 20_000][:4]
    readings = Readings(tmp_path)
    try:
        for _ in range(10_000 if THOROUGH else 400):
            data = damaged(dice.choice(whole), dice)
            assert not readings.disagreement(data), data.hex()
    finally:
        readings.close()
