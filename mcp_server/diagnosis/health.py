"""What speaks for a healthy workload: what was tried without finding a fault, and what was not checked."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.eager import own_code
from mcp_server.model import Confidence, Evidence, PackageWorkload

NO_REFERENCE = (
    "The numbers themselves were not checked: there was no reference to hold them against "
    "(compare_with_eager takes the exported program)."
)
MOST_NAMED = 3  # of the user's own kernels and operators


def health_summary(case: Case) -> str:
    """What was tried without finding a fault, and what could not be."""
    ended = f"No fault found: the workload ran to its end, with {_outputs(case)}{_fit(case)}."
    if compared(case):
        return ended
    return f"{ended}{_steady(case)} {NO_REFERENCE}{_own(case)}{_fixed(case)}{_around(case)}"


def health_confidence(case: Case) -> Confidence:
    """A program that ended well was content with its numbers; a package alone has nobody to say so."""
    alone = isinstance(case.workload, PackageWorkload) and not compared(case)
    return "possible" if alone else "likely"


def _fit(case: Case) -> str:
    """Inputs fit where the package says what it takes."""
    if case.package is None or case.package.signature.known:
        return " and inputs that fit"
    return "; the package does not say which inputs it takes, so that they were not compared"


def _outputs(case: Case) -> str:
    if case.outputs_nan:
        return "NaN in its outputs, where its exported program has NaN, too,"
    masked = "minus infinity in its outputs, as a mask has it,"
    return masked if case.outputs_nonfinite else "finite outputs"


def health_evidence(case: Case) -> list[Evidence]:
    """What speaks for health, run by run."""
    ended = [
        Evidence(step=label, fact=f"ended well after {run.finished.wall_s:.1f} s, {len(run.outputs)} outputs")
        for label, run in case.runs.items()
        if run.failure == "none"
    ]
    repeats = {
        "second": "the same call made again gives the same outputs",
        "filled": "with other bytes in new memory the call gives the same outputs",
    }
    same = [fact for run, fact in repeats.items() if case.differs_in(run) is False]
    return ended + [Evidence(step="repeat_call", fact=fact) for fact in same]


def compared(case: Case) -> bool:
    """Whether the outputs of the call were held against anything."""
    plain = case.runs.get("plain")
    told = plain.worker.last("compared_expected") if plain is not None and plain.worker else None
    beside = case.interpreted.last("compared") if case.interpreted is not None else None
    return bool(told or beside or case.with_eager is not None)


def _steady(case: Case) -> str:
    if case.differs_in("second"):
        return " It gives other outputs each time, as it draws random numbers."
    return " Made again, it gives the same." if case.differs_in("second") is False else ""


def _around(case: Case) -> str:
    """What a program does to a package, and what no package holds."""
    if not isinstance(case.workload, PackageWorkload):
        return ""
    return (
        " Constants that a program loads, its threads and streams are not in a package: if its calls fail, "
        "diagnose the program."
    )


def _fixed(case: Case) -> str:
    """Arguments that are no tensors: the package has what they were at export, and does not look at them."""
    paths = case.given.paths if case.given is not None else ()
    told = zip(paths, case.leaves, strict=False)
    plain = [
        (path, leaf["value"]) for path, leaf in told if leaf.get("kind") in ("int", "float", "bool", "str")
    ]
    given = [f"{path} = {value}" for path, value in plain][:MOST_NAMED]
    return f" It does not look at {', '.join(given)}: that was fixed at export." if given else ""


def _own(case: Case) -> str:
    """The code of which nobody but its author knows what it should compute."""
    own = own_code(case)
    if not own:
        return ""
    names = ", ".join(own[:MOST_NAMED])
    return f" What {names} should compute is known to its author alone: hold it against plain operators."
