"""An exported program as a package to look into: compiled here, with provenance."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.steps.compile_with_flags import compile_with_flags
from mcp_server.steps.context import Context


async def compiled_package(
    context: Context, workload: ExportedWorkload, flags: Mapping[str, object]
) -> PackageWorkload:
    """The package of `workload` with its inputs. Raises ProblemError when it does not compile."""
    # Not as a flag: torch 2.8, which has no provenance, would be refused for it.
    traced = workload.model_copy(update={"env": {"INDUCTOR_PROVENANCE": "1", **workload.env}})
    made = await compile_with_flags(context, traced, flags)
    if made.package is None:
        raise ProblemError(
            "the exported program does not compile",
            value=made.failure.text if made.failure else "",
            next_call="compile_with_flags, or diagnose",
        )
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s", "extra_imports"})
    return PackageWorkload(package=made.package.path, inputs=workload.inputs, **shared)
