"""Interventions on the weights and buffers of a loaded package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options

Step = Mapping[str, object]


def compiled_values(steps: Sequence[Step]) -> Intervention:
    """The captured call without the updates of constants before it."""
    kept = tuple(step for step in steps if step["do"] != "constants")
    return Intervention(
        key="constant:compiled",
        kind=Kind.CONSTANT,
        what="the call with the values that the package was compiled with, without the updates",
        options=Options(steps=kept),
        before_code="loader.update_constant_buffer(...)",
        after_code="# without this update",
    )


def cast_in_update(names: Mapping[str, str]) -> Intervention:
    """The updates with these constants cast to the dtype that the package was compiled for."""
    listed = ", ".join(f"{name} as {dtype}" for name, dtype in names.items())
    first, dtype = next(iter(names.items()))
    return Intervention(
        key=f"constant:cast:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the update with {listed}",
        options=Options(cast=dict(names)),
        before_code=f'"{first}": {first}',
        after_code=f'"{first}": {first}.to(torch.{dtype})',
    )


def own_memory(names: Sequence[str]) -> Intervention:
    """The updates with these constants in memory of their own: no views of what changes later."""
    return Intervention(
        key=f"constant:own-memory:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the update with copies of {', '.join(names)}",
        options=Options(copied=tuple(names)),
        before_code=f'"{names[0]}": {names[0]}',
        after_code=f'"{names[0]}": {names[0]}.clone()',
    )


def other_steps(key: str, what: str, steps: Sequence[Step], before: str, after: str) -> Intervention:
    """Other updates: of all constants, of the half in use, swapped."""
    return Intervention(
        key=f"constant:{key}",
        kind=Kind.CONSTANT,
        what=what,
        options=Options(steps=tuple(steps)),
        before_code=before,
        after_code=after,
    )


def given_values(file: Path, names: Sequence[str] = ()) -> Intervention:
    """The call after an update with the constants of a file (`{name: tensor}`, of torch.save)."""
    listed = ", ".join(names) or "the constants"
    step: Step = {"do": "constants", "file": str(file), "how": "load_constants", "arguments": [False, False]}
    return Intervention(
        key=f"constant:file:{file}",
        kind=Kind.CONSTANT,
        what=f"the call with {listed} of {file.name}",
        options=Options(updates=(step,)),
        before_code="loader(...)",
        after_code=f'loader.load_constants(torch.load("{file}"), check_full_update=False)',
        spelling=("--constants", str(file)),
    )
