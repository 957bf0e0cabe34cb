"""compute-sanitizer around one run: command line, environment, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.evidence.sanitizer import SanitizerReport, Site
from mcp_server.evidence.sanitizer_file import read_sanitizer_file
from mcp_server.faults.access import Access, from_assertion, from_site
from mcp_server.package.assertion import read_assertion
from mcp_server.package.view import PackageView
from mcp_server.steps.run_deterministic import CACHING_OFF

SanitizerTool = Literal["memcheck", "initcheck", "racecheck", "synccheck"]

PRINT_LIMIT = 100
PADDING = 512  # bytes behind each allocation; the driver's own granularity hides smaller overruns
# Until the program first uses CUDA; after the default 10 s it goes on unchecked ("No attachable process").
LAUNCH_TIMEOUT_S = 3600

# Another tool's injection keeps the sanitizer out; expandable segments give false alarms (pytorch #196209).
_FOREIGN = ("CUDA_INJECTION64_PATH",)
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def sanitizer_prefix(program: Path, tool: SanitizerTool) -> tuple[str, ...]:
    """The argument list before the interpreter. Options as in compute-sanitizer 2025.3 and 2026.4."""
    padding = ("--padding", str(PADDING)) if tool == "memcheck" else ()
    return (
        *(str(program), "--tool", tool, *padding, "--print-limit", str(PRINT_LIMIT)),
        *("--report-api-errors", "no", "--target-processes", "application-only"),
        *("--launch-timeout", str(LAUNCH_TIMEOUT_S)),
    )


def sanitizer_environment() -> dict[str, str]:
    """Each tensor in an allocation of its own, so that an overrun is outside of one."""
    return dict(CACHING_OFF)


def left_out(env: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that must not reach a process under the sanitizer."""
    return (*_FOREIGN, *(name for name in _ALLOCATOR if "expandable_segments" in env.get(name, "")))


@dataclass(frozen=True)
class Checked:
    """A report with the assertions that the program printed, each once."""

    report: SanitizerReport
    assertions: tuple[str, ...]


def read_report(output: Path) -> Checked:
    """Read the text report out of a program's output, as a stream."""
    assertions: dict[str, None] = {}

    def keep(line: str) -> None:
        if "index out of bounds: " in line and len(assertions) < 100:
            assertions.setdefault(line.strip()[:2000])

    return Checked(read_sanitizer_file(output, keep), tuple(assertions))


def accesses_of(checked: Checked, tool: SanitizerTool, view: PackageView | None) -> list[Access]:
    """The faults of this package first, in the order of the report; an assertion for the asserts' records.

    Records of kernels that no launch of the package started (a library's own) come last.
    """
    found = [
        from_site(site, tool) for site in checked.report.faults if site.kind != "assert" and _ours(site, view)
    ]
    found += [a for text in checked.assertions[:1] if (a := printed_assertion(text)) is not None]
    asserts = [site for site in checked.report.faults if site.kind == "assert"]
    if asserts and not checked.assertions:
        found.append(from_site(asserts[0], tool))
    return found + [
        from_site(s, tool) for s in checked.report.faults if s.kind != "assert" and not _ours(s, view)
    ]


def printed_assertion(text: str) -> Access | None:
    """The index assertion that generated code printed."""
    assertion = read_assertion(text)
    return from_assertion(assertion) if assertion is not None else None


def _ours(site: Site, view: PackageView | None) -> bool:
    """Whether a launch of the package started the kernel."""
    if view is None or site.launch_offset is not None:
        return True
    return any(site.kernel in (launch.symbol, launch.kernel) for launch in view.wrapper.launches)
