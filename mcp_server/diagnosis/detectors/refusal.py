"""A package alone whose call an operator, or a check of the model in a kernel, refused for its values.

Its text says what is wrong with them, in no fixed words; the launch that said it is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.quoting import said
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.model import Category, Evidence, PackageWorkload
from mcp_server.package.launches import Launch

# Families of texts that no rule puts into one category when a package raised them.
FAMILIES = frozenset({"operator_refused", "script_exception", "script_says_nan"})
_KERNEL = re.compile(r'extern "C"\s+void\s+(\w+)\(')
_NOT_FINITE = re.compile(r"\b(?:nan|inf|finite|positive-definite|singular)\b", re.IGNORECASE)


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis that leaves the category open, for the launch that refused."""
    plain = case.runs.get("plain")
    if plain is None or plain.root is None or not refused_alone(plain.root, case):
        return
    launch = _called(plain.log, case) or _checking(plain.root, case)
    if launch is not None:
        yield _suspect(launch, plain.root, case)


def refused_alone(root: ErrorFact, case: Case) -> bool:
    """Whether it is such a text, and no program is there of which a statement could have raised it."""
    plain = case.runs.get("plain")
    alone = isinstance(case.workload, PackageWorkload) and plain is not None and plain.failure == "exception"
    return alone and root.family.id in FAMILIES


def _called(facts: LogFacts, case: Case) -> Launch | None:
    """The launch at the line of the wrapper whose call failed."""
    lines = {
        int(error.fields["line"])
        for error in facts.errors
        if error.family.id == "shim_call" and error.fields.get("line", "").isdigit()
    }
    launches = case.view.wrapper.launches if case.view is not None else ()
    return next((launch for launch in launches if launch.line in lines), None)


def _checking(root: ErrorFact, case: Case) -> Launch | None:
    """The launch of the C++ kernel that holds the very text."""
    detail = root.fields.get("detail", "")
    source = case.package.kernel_text if case.package is not None else ""
    place = source.find(f'"{detail}"') if detail else -1
    names = _KERNEL.findall(source[:place]) if place >= 0 else []
    launches = case.view.wrapper.launches if case.view is not None and names else ()
    return next((launch for launch in launches if launch.symbol == names[-1]), None)


def _suspect(launch: Launch, root: ErrorFact, case: Case) -> Suspect:
    assert case.view is not None
    behind = case.view.inputs_behind(launch.index)
    party = launch_party(launch.index, launch.kernel, case).model_copy(update={"value": root.text[:200]})
    depends = f", which computes from {', '.join(behind[:3])}" if behind else ""
    fits = "Shapes and dtypes fit the package, so that values are to blame: " if _fits(case) else ""
    return Suspect(
        category=_category(root, launch, case),
        guilty=party,
        summary=f"Launch {launch.index} ({party.name}){depends}, refused what it was given: "
        f"{root.text[:200].rstrip('.')}.",
        level=CausalLevel.CALL,
        evidence=(
            said(root),
            Evidence(step="inspect_package", fact=f"launch {launch.index} raised it{depends}"),
        ),
        crashing=party,
        weak=True,
        settle=f"{fits}dump_kernel_io shows what this launch got, and from where.",
    )


def _fits(case: Case) -> bool:
    return case.given is not None and not case.mismatches


def _category(root: ErrorFact, launch: Launch, case: Case) -> Category:
    """The first to suspect: what is not finite, whole numbers out of a range, or other values of inputs."""
    if _NOT_FINITE.search(root.text):
        return "nan_or_inf"
    assert case.view is not None and case.package is not None
    names = case.view.flow.backward_from(launch.index).inputs
    dtypes = [item.dtype or "" for item in case.package.inputs if item.name in names]
    return "index_out_of_bounds" if any(d.startswith(("int", "uint")) for d in dtypes) else "input_mismatch"
