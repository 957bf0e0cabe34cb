"""Interventions on scalars, which a package has as literals in its code.

`AOTICompiledModel.__call__` passes tensors only (torch/export/pt2_archive/_package.py, 2.8-2.15): another
value for a Python number changes nothing. What can be changed is the literal, or what the call is compared
with.
"""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.kernel import Edit, spelled


def given_value(name: str, exported: str, given: str, edit: Edit, package: Path) -> Intervention:
    """The literal that stands for the scalar replaced by the value that the caller gives.

    `package` is the edited copy.
    """
    return Intervention(
        key=f"scalar:{name}:{given}",
        kind=Kind.SCALAR,
        what=f"the call with {given} in the generated code where {name} was exported as {exported}",
        options=Options(package=package),
        before_code=f"torch.export.export(model, (..., {exported}))  # {name}",
        after_code=f"export again with {name}={given}, or make {name} a tensor input",
        spelling=spelled(edit),
    )


def ignored(name: str, exported: str) -> Intervention:
    """Where no literal is known: the call cannot be made with another value."""
    return Intervention(
        key=f"scalar:{name}",
        kind=Kind.SCALAR,
        what=f"the call with another value of {name}",
        before_code=name,
        after_code=f"{name}={exported}",
        unavailable=f"the package takes tensors only: {name} is compiled in as {exported}, and no launch is "
        "known that has it as a literal of its own",
    )
