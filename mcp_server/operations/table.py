"""The table of operations: what the server offers as tools and the command line as commands."""

from __future__ import annotations

from mcp_server.operations import arguments as args
from mcp_server.operations import calls
from mcp_server.operations.declaration import RUNS_USER_CODE, Operation

COMPILE_WITH_FLAGS = Operation(
    name="compile_with_flags",
    title="Compile with debugging flags",
    description=(
        "Compiles a torch.export.save'd program in a fresh cache with code-generation flags (NaN checks, "
        "value printer, provenance, asserts) and returns the new package, its kernels and warnings. Use when "
        "a flag must act at compile time. A flag that cannot act is refused with the reason. 10-90 s. Next: "
        "pass the new package to run_deterministic or dump_kernel_io."
    ),
    arguments=args.CompileArguments,
    hints=RUNS_USER_CODE,
    call=calls.compile_with_flags,
    examples=("aoti-debug compile-with-flags model.exported.pt2 --flag TORCHINDUCTOR_NAN_ASSERTS=1",),
)

OPERATIONS: tuple[Operation, ...] = (COMPILE_WITH_FLAGS,)
