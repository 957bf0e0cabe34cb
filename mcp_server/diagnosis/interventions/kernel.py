"""Interventions on a generated kernel: the package with one launch's code changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

How = Literal["skip", "guard", "finite-mask"]


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


def relaunched(launch: int, kernel: str, how: How, package: Path, shared: int = 1) -> Intervention:
    """Launch number `launch` done another way, in the copy `package`.

    `shared` launches have this kernel: all of them are changed.
    """
    words = {
        "skip": f"zeros in place of what {kernel} computes",
        "guard": f"every index that {kernel} checks kept within its bound",
        "finite-mask": f"a finite number where {kernel} fills in minus infinity",
    }
    others = f" (in all its {shared} launches)" if shared > 1 else ""
    code = {
        "skip": (f"# launch {launch}: {kernel}", "zeros"),
        "guard": ("table[index]", "table[index.clamp(0, len(table) - 1)]"),
        "finite-mask": ("masked_fill(mask, float('-inf'))", "masked_fill(mask, -1e30)"),
    }
    return Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with {words[how]}{others}",
        options=Options(package=package),
        before_code=code[how][0],
        after_code=code[how][1],
        spelling=("--launch", str(launch), "--as", how),
    )


def not_replaced(launch: int, kernel: str, how: str, why: str) -> Intervention:
    """A launch that cannot be done that way, and why."""
    return Intervention(
        key=f"launch:{launch}:{how}",
        kind=Kind.KERNEL,
        what=f"the call with launch {launch} ({kernel}) done as {how}",
        unavailable=why,
        spelling=("--launch", str(launch), "--as", how),
    )


def spelled(edit: Edit) -> tuple[str, ...]:
    return ("--kernel", edit.kernel, "--replace", edit.old, edit.new)
