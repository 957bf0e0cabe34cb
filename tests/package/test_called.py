"""The line in a helper that does an operator, where the source leaves but one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcp_server.model import ModelLocation
from mcp_server.package.provenance import lines_doing

SOURCE = """import torch
from elsewhere import other


def spread(x):
    width = x.square().sum(-1).sqrt()
    return scaled(x, width)


def scaled(x, width):
    return x / width


class Layer:
    def forward(self, x, rows):
        a = self.picked(x, rows)
        b = spread(x)
        c = other(x) + self.picked(x, rows)
        d = self.picked(x, rows)[rows]
        e = self.again(x)
        return a + b + c + d

    def picked(self, x, rows):
        last = x[:, -1].shape[rows]
        wide = self.norm(x)
        return wide[rows] + last

    def again(self, x):
        return self.again(x) / 2
"""
LINES = SOURCE.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    return path


def below(file: Path, code: str, operators: str) -> list[str] | None:
    """The code of the lines that are found below the line with this code."""
    line = next(number for number, text in enumerate(LINES, 1) if text.strip() == code)
    found = lines_doing(ModelLocation(file=str(file), line=line, code=code), re.compile(operators))
    return [each.code for each in found] if found is not None else None


WIDTH = "width = x.square().sum(-1).sqrt()"


@pytest.mark.parametrize(
    ("code", "operators", "expected"),
    [
        ("a = self.picked(x, rows)", "index", ["return wide[rows] + last"]),
        ("b = spread(x)", "div", ["return x / width"]),
        ("b = spread(x)", "div|sqrt", [WIDTH, "return x / width"]),
        ("b = spread(x)", "exp", []),
        (
            "d = self.picked(x, rows)[rows]",
            "index",
            ["d = self.picked(x, rows)[rows]", "return wide[rows] + last"],
        ),
        ("return x / width", "div", ["return x / width"]),
    ],
)
def test_lines_of_methods_and_functions(file: Path, code: str, operators: str, expected: list[str]) -> None:
    """Calls are followed within the file, the line itself counts; numbers and shapes are no data indices."""
    assert below(file, code, operators) == expected


@pytest.mark.parametrize("code", ["c = other(x) + self.picked(x, rows)", "e = self.again(x)"])
def test_what_is_not_read_is_open(file: Path, code: str) -> None:
    """A function of another file, and calls without an end."""
    assert below(file, code, "index") is None


def test_another_text_than_was_recorded_is_open(file: Path) -> None:
    """The file may have changed since, or be another one of that name."""
    file.write_text("\n" + SOURCE)
    assert below(file, "b = spread(x)", "div") is None
    file.unlink()
    assert below(file, "b = spread(x)", "div") is None
