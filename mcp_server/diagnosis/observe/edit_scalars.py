"""Packages with a number of the call in the place of a literal that may have been exported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.fixed_arguments import Scalar, edit_key, scalars_to_try
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import given_value
from mcp_server.diagnosis.interventions.kernel import Edit, with_literal
from mcp_server.diagnosis.observe.intervene import tried_call
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.package.literals import Literal
from mcp_server.tools.context import Context


class EditScalars:
    """Rebuild the one kernel with the given value, for each literal that may stand for it."""

    name = "edit_scalars"
    seconds = 12.0
    alone = False

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        differs = plain is not None and plain.failure == "differs" and case.symptom.judges
        return 0.9 if differs and scalars_to_try(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        for scalar, literal in scalars_to_try(case):
            case.scalar_edits.append(await _edited(case, context, scalar, literal))


async def _edited(case: DiagnosisState, context: Context, scalar: Scalar, literal: Literal) -> Intervention:
    assert scalar.number is not None
    package = await with_literal(context, tried_call(case), literal, scalar.number)
    edit = Edit(literal.kernel, f"{literal.value:g}", scalar.value)
    made = given_value(scalar.path, f"{literal.value:g}", scalar.value, edit, package)
    # A literal may stand in the kernel several times, and `try-fix` replaces what stands there once.
    return replace(made, key=edit_key(scalar, literal), spelling=())
