"""The machine against the package: driver, architecture, instruction sets, libraries, space."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context
from mcp_server.steps.fit import find_problems
from mcp_server.steps.machine import read_machine

MACHINE_CATEGORIES = frozenset(
    {"arch_mismatch", "toolchain", "environment", "device_mismatch", "invalid_package"}
)


class CheckMachine:
    """Compile a probe, ask the interpreter, and hold the package against what is found."""

    name = "check_machine"
    seconds = 6.0
    alone = False

    def gain(self, case: Case, open_suspects: Sequence[Suspect]) -> float:
        if case.package is None or not case.failed:
            return 0.0
        plain = case.plain
        silent = plain is not None and plain.failure == "signal" and plain.root is None
        asked = any(h.category in MACHINE_CATEGORIES for h in open_suspects)
        return 0.7 if silent or asked else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert case.package is not None
        workload = case.workload
        env = workload.env if workload else {}
        python = context.python_for(workload) if workload else context.python
        machine = await read_machine(context, env, python)
        index = int(case.call.request.get("device_index", -1)) if case.call is not None else -1
        case.problems = tuple(find_problems(case.package, machine, index))
