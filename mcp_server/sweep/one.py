"""Diagnoses one case in its own process: `python -m mcp_server.sweep.one ARGUMENTS.json RESULT.json`.

Exit status 0: RESULT holds the verdict. Exit status 2: bad arguments, RESULT holds `problem`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio

from mcp_server.jobs.manager import JobState, Manager
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.table import OPERATIONS
from mcp_server.operations.work import open_store, work_of

REFUSED = 2
WAIT_S = 30.0


async def _diagnosed(arguments: DiagnoseArguments) -> JobState:
    diagnose = next(operation for operation in OPERATIONS if operation.name == "diagnose")
    async with Manager.open(open_store()) as manager:
        job = manager.start(diagnose.name, work_of(diagnose, arguments))
        while (state := await manager.wait(job.id, WAIT_S)).state == "running":
            pass
    return state


def main() -> int:
    request, result = (Path(word) for word in sys.argv[1:3])
    arguments = DiagnoseArguments.model_validate_json(request.read_text(), strict=False)
    state = anyio.run(_diagnosed, arguments)
    if state.problem is not None:
        result.write_text(json.dumps({"problem": f"{state.problem.what}: {state.problem.value}"}))
        return REFUSED
    assert state.result is not None, "a job without a problem has a result"
    result.write_text(json.dumps(state.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
