"""Runs a host of the user's under the recorder, and takes the call out that failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import child_environment
from mcp_server.recorder.library import RecorderOptions, build_library
from mcp_server.runtime.context import Context

FOLDER = "recordings"
# A host that is run for its diagnosis may take longer, and its failing call has to be there as a whole.
MODE, RING_MB, BUDGET_MB = "full", 128, 8192


async def recording_environment(context: Context, env: Mapping[str, str]) -> dict[str, str]:
    """The variables under which a host keeps its calls in this job's directory; none without a compiler."""
    options = RecorderOptions(str(context.directory / FOLDER), MODE, RING_MB, BUDGET_MB)
    try:
        library = await build_library("preload.c", {}, RecorderOptions(""), context, env)
    except ProblemError:
        return {}
    before = child_environment(env).get("LD_PRELOAD", "")
    preload = os.pathsep.join(filter(None, [str(library), before]))
    variables = {f"AOTI_RECORDER_{name}": value for name, value in options.values().items()}
    return {"LD_PRELOAD": preload, "AOTI_RECORDER_STACKS": "1", "AOTI_RECORDER_KEEP": "1", **variables}


def recordings_of(context: Context) -> Path | None:
    """The folder with the recordings of the host; None where it loaded no package."""
    folder = context.directory / FOLDER
    return folder if folder.is_dir() and any(folder.glob("*.ring")) else None
