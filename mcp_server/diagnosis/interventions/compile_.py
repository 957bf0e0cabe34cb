"""Interventions on the compile: the same program compiled in another way."""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options


def recompiled(package: Path, option: str, value: str) -> Intervention:
    """The call of `package`, compiled from the same program with one option of Inductor changed."""
    return Intervention(
        key=f"compile:{option}={value}",
        kind=Kind.COMPILE,
        what=f"the call of the program compiled with {option}={value}",
        options=Options(package=package),
        before_code="aoti_compile_and_package(program)",
        after_code=f'aoti_compile_and_package(program, inductor_configs={{"{option}": {value}}})',
    )
