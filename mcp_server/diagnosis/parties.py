"""Launches of a package as parties of a verdict."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.model import ModelLocation, Party


def launch_party(number: int, kernel: str, case: Case) -> Party:
    """The launch of that number: `kernel`, or the user's own Triton kernel or operator that it calls."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    launch = launches[number] if number < len(launches) else None
    op = operator_of(number, case)
    own = launch.symbol if launch is not None and launch.kind == "user_triton" else ""
    return Party(
        kind="op" if op else "kernel",
        name=op or own or kernel,
        launch_index=number,
        generated_location=f"wrapper.cpp:{launch.line}" if launch is not None and launch.line else None,
        model_locations=list(case.view.provenance(launch).locations[:4]) if case.view and launch else [],
    )


def operator_of(number: int, case: Case) -> str:
    """The operator that the proxy executor calls for a launch; empty for kernels."""
    if case.view is None or case.package is None or number >= len(case.view.wrapper.launches):
        return ""
    return case.package.proxy_target(case.view.wrapper.launches[number].proxy_index)


def lines_reading(index: int | None, case: Case) -> list[ModelLocation]:
    """The model's lines of the first launch that reads that input: where a bad one has its effect."""
    inputs = case.package.inputs if case.package is not None else ()
    if case.view is None or index is None or index >= len(inputs):
        return []
    launches = case.view.readers_of_name.get(inputs[index].name, [])
    found = (case.view.provenance(case.view.wrapper.launches[n]).locations for n in launches)
    return list(next((lines for lines in found if lines), ()))[:2]
