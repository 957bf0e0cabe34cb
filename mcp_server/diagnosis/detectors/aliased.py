"""An output that is a view of an input, into which the program wrote new values while it kept the output."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where a check of the program failed and every call came back."""
    seen = case.capture
    if seen is None or not (seen.assertions or case.own_check):
        return
    if any(call.outcome != "ok" for call in seen.calls):
        return
    found = next((call for call in seen.calls if call.overwritten), None)
    if found is not None:
        yield _suspect(found, case)


def _suspect(later: CapturedCall, case: Case) -> Suspect:
    assert case.capture is not None
    number, output, place = later.overwritten[0]
    first = next((c for c in case.capture.calls if (c.pid, c.number) == (later.pid, number)), later)
    checks = [check.stack[:1] for check in case.capture.assertions[-1:]]
    agrees = bool(case.equals_eager)
    fact = (
        f"output {output} of a call is a view of its input {place}; by two calls later the program had "
        "written into that input, and still kept the output"
    )
    return Suspect(
        category="concurrency",
        guilty=Party(
            kind="input",
            name=f"input {place}",
            input_index=place,
            value=f"output {output} is a view of it",
            model_locations=[*first.stack[:2], *(line for lines in checks for line in lines)],
        ),
        summary=f"Output {output} of the package shares the memory of input {place}: the program wrote new "
        "values into that input while it kept the output, which changed with it.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(step="capture", fact=fact),
            *((Evidence(step="interpret", fact="package and exported program agree"),) if agrees else ()),
        ),
        fix=Fix(
            action="copy the output before its input is written anew, or give each call a tensor of its own",
            after=f"outputs[{output}].clone()",
        ),
        harmful=case.failed,
        observed=False,
    )
