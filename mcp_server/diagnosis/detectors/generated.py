"""A kernel that failed while the compiler tried it: an index outside its bound before any call was made."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.index_parts import index_error
from mcp_server.diagnosis.quoting import said
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the kernel whose generated file holds the failed assertion."""
    error, kernel = index_error(case), case.generated
    if error is None or kernel is None:
        return
    party = Party(
        kind="kernel",
        name=kernel.name,
        generated_location=f"{kernel.file}:{kernel.line}",
        model_locations=[*kernel.model, *case.failing_locations],
    )
    yield Suspect(
        category="index_out_of_bounds",
        guilty=party,
        summary=f"{kernel.name} met an index outside its bound while the compiler tried it on synthetic "
        "tensors: the model can compute such an index from values that its inputs may have.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="read_generated_kernel", fact=kernel.code, source=f"{kernel.file}:{kernel.line}"),
        ),
        crashing=party,
        fix=Fix(
            action="keep the computed index within the size of what it indexes, in the model; to compile all "
            "the same, set triton.autotune_at_compile_time to False",
        ),
    )
