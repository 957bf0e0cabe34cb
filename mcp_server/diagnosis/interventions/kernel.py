"""Interventions on a generated kernel: the package with one launch's code changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options


@dataclass(frozen=True)
class Edit:
    """Text `old` of a kernel replaced by `new`, once; `model_before` and `model_after` are model code."""

    kernel: str
    old: str
    new: str
    model_before: str = ""
    model_after: str = ""


def edited(edit: Edit, package: Path, what: str = "") -> Intervention:
    """The call of the edited copy `package`."""
    return Intervention(
        key=f"kernel:{edit.kernel}:{edit.old}:{edit.new}",
        kind=Kind.KERNEL,
        what=what or f"the call with `{edit.new}` in place of `{edit.old}` in {edit.kernel}",
        options=Options(package=package),
        before_code=edit.model_before or edit.old,
        after_code=edit.model_after or edit.new,
        spelling=spelled(edit),
    )


def relaunched(launch: int, kernel: str, how: str, package: Path) -> Intervention:
    """Launch number `launch` done another way: `skip`, `guard` or `eager`, in the copy `package`."""
    words = {
        "skip": f"launch {launch} ({kernel}) left out",
        "guard": f"every index that {kernel} loads kept within its bound",
        "eager": f"launch {launch} ({kernel}) done by eager operators",
    }
    return Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with {words[how]}",
        options=Options(package=package),
        spelling=("--launch", str(launch), "--as", how),
    )


def spelled(edit: Edit) -> tuple[str, ...]:
    return ("--kernel", edit.kernel, "--replace", edit.old, edit.new)
