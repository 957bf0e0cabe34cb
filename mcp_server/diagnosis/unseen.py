"""A symptom that was given and not seen: what that says, and what to give."""

from __future__ import annotations

from mcp_server.diagnosis.next_steps import call_arguments, workload_arguments
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.symptom import Seen
from mcp_server.model import NextStep, PackageWorkload

RIGHT_OUTPUTS = "path/of/the/right/outputs.pt"
PROGRAM = "path/of/the/exported/program.pt2"
FAILING = "path/of/the/failing/program.py"

UNSEEN: dict[Seen, str] = {
    "wrong-output": "The call ends well, and nothing says what its outputs are to be. Give what they are to "
    "be (expect), a command that judges them (check), or the exported program to compare_with_eager.",
    "nan": "No output of this call is NaN or infinite. Give the inputs with which it is, or the program.",
    "crash": "This call ends well. Give the inputs with which it crashes, the program that makes the call, "
    "or its log.",
    "hang": "This call ends by itself. Give the program that hangs: its threads, streams and earlier calls "
    "are not in a package.",
    "memory": "This call ends well, in the memory that there is. Give the program that runs out of memory, "
    "or the sizes of inputs with which it does.",
}


def unseen(case: DiagnosisState) -> str:
    """That nothing of the symptom was seen, and what to give; empty for a failure, and for outputs that are
    known to be right."""
    seen = case.symptom.seen
    if seen is None or not case.healthy or (seen == "wrong-output" and known_right(case)):
        return ""
    return UNSEEN[seen]


def known_right(case: DiagnosisState) -> bool:
    """Whether the outputs were compared with anything, and agree."""
    plain = case.runs.get("plain")
    agrees = case.with_eager is not None and case.with_eager.first is None
    return bool((plain is not None and plain.as_expected) or case.equals_eager or agrees)


def next_for(case: DiagnosisState) -> list[NextStep]:
    """The calls that would show the symptom."""
    assert case.workload is not None
    given = call_arguments(case)
    if case.symptom.seen != "wrong-output":
        return [
            NextStep(why="see the failure where it happens", tool="diagnose", arguments={"script": FAILING})
        ]
    if not given or not isinstance(case.workload, PackageWorkload):
        arguments = given or workload_arguments(case.workload)
        return [NextStep(why="see whether repeats agree", tool="run_deterministic", arguments=arguments)]
    taken = {name: given[name] for name in ("inputs", "extra_imports", "python") if name in given}
    return [
        NextStep(
            why="say what the outputs are to be",
            tool="diagnose",
            arguments={**given, "symptom": "wrong-output", "expect": RIGHT_OUTPUTS},
        ),
        NextStep(
            why="compare each launch with the exported program",
            tool="compare_with_eager",
            arguments={"package": given["package"], "exported": PROGRAM, **taken},
        ),
    ]
