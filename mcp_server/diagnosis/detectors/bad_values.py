"""The first bad value that a watched call showed: NaN, infinity, or an index out of its bound."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.eager import guard_fix, non_finite_lines
from mcp_server.diagnosis.first_made import first_made
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Where
from mcp_server.diagnosis.interventions.input import Leaf, replace_where, together
from mcp_server.diagnosis.parties import launch_party, operator_of
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, ModelLocation, Party
from mcp_server.package.launches import Launch
from mcp_server.steps.kernel_io import FirstBad

# `log` as an operator of its own: log_softmax and logical operators have other names around it.
_LOGARITHM = re.compile(r"(?<![a-z])log(?:2|10|it)?(?![a-z0-9]|_softmax|_sigmoid)")


def detect(case: Case) -> Iterator[Suspect]:
    """Who brought the first bad value: a kernel, an input or a constant."""
    first = case.kernel_io.first_bad if case.kernel_io is not None else None
    if first is None:
        return
    if first.what == "non_finite":
        mark = _marking(first, case)
        if mark is None or first.kind != "kernel":
            yield _non_finite(first, case)
        if mark is not None:
            yield _mark(mark, case)
    else:
        yield _bad_index(first, case)


def _non_finite(first: FirstBad, case: Case) -> Suspect:
    inputs = _inputs_of(first, case)
    return Suspect(
        category="nan_or_inf",
        guilty=_party(first, case),
        summary=f"The first value that is not finite: {first.summary}{_from(inputs)}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="dump_kernel_io", fact=first.summary, source=_table(case)),
            *_feeding(inputs, first),
        ),
        fix=_fix(first, case),
        intervention=_fill(first, case),
        observed=first.kind != "unset",
        weak=_meant(first, case) or _unheld(case),
        harmful=not case.nan_accepted and (not _meant(first, case) or _takes_logarithm(first, case)),
    )


def _marking(first: FirstBad, case: Case) -> Launch | None:
    """The launch that made NaN, or is left as its maker after inputs were cleaned, if it has NaN as a number.

    A program that fails over NaN does not mean it; a package alone does not say.
    """
    launches = case.view.wrapper.launches if case.view is not None else ()
    fill = _fill(first, case)
    tried = case.trials.get(fill.key) if fill is not None else None
    if not case.outputs_nan or any(facts.root is not None for _, facts in case.own_logs):
        return None
    own = launches[first.launch : first.launch + 1] if first.launch is not None else ()
    among = (
        launches
        if tried is not None and tried.effect is Effect.SAME
        else own
        if first.kind == "kernel"
        else ()
    )
    return next((launch for launch in among if _has_nan(launch, case)), None)


def _has_nan(launch: Launch, case: Case) -> bool:
    """Whether the generated code of a CPU kernel holds NaN as a number."""
    text = case.package.kernel_text if case.package is not None and launch.kind == "cpp" else ""
    start = text.find(f"{launch.symbol}(")
    body = text[start : text.find('extern "C"', start + 1)] if start >= 0 else ""
    return "quiet_NaN()" in body


def _mark(launch: Launch, case: Case) -> Suspect:
    return Suspect(
        category="nan_or_inf",
        guilty=launch_party(launch.index, launch.kernel, case),
        summary=f"Launch {launch.index} ({launch.kernel}) writes NaN as a constant where a condition holds.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="inspect_package", fact=f"the code of {launch.kernel} holds NaN as a number"),
        ),
        weak=True,
        harmful=not case.nan_accepted,
        settle="The model marks elements with it on purpose; whether these are the right ones, "
        "compare_with_eager tells.",
    )


def _unheld(case: Case) -> bool:
    """Whether a program ended well with these values, and no eager mode says whether they are the model's."""
    return case.ended_well and case.equals_eager is None


def _meant(first: FirstBad, case: Case) -> bool:
    """Whether minus infinity is all there is, and the program did not fail over it: a mask, say."""
    complained = case.outputs_nan or (case.failed and case.outputs_nonfinite)
    return first.perhaps_intended and not complained


def _takes_logarithm(first: FirstBad, case: Case) -> bool:
    """Whether the launch can have made minus infinity by arithmetic, from a zero."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    launch = launches[first.launch] if first.launch is not None and first.launch < len(launches) else None
    return launch is not None and _LOGARITHM.search(" ".join((launch.kernel, *launch.atens))) is not None


def _bad_index(first: FirstBad, case: Case) -> Suspect:
    inputs = _inputs_of(first, case)
    return Suspect(
        category="index_out_of_bounds",
        guilty=_party(first, case),
        summary=f"The first index out of its bound: {first.summary}{_from(inputs)}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="dump_kernel_io", fact=first.summary, source=_table(case)),
            *_feeding(inputs, first),
        ),
        fix=Fix(
            action=f"keep what {first.name} makes within the bound of the tensor that it indexes"
            + (f", by the values of {inputs[0]}" if len(inputs) == 1 else "")
        ),
    )


def _party(first: FirstBad, case: Case) -> Party:
    kinds = {"kernel": "kernel", "input": "input", "constant": "constant"}
    index = _input_index(first, case)
    op = operator_of(first.launch, case) if first.kind == "kernel" and first.launch is not None else ""
    return Party(
        kind="op" if op else kinds.get(first.kind, "kernel"),  # type: ignore[arg-type]
        name=op or first.name,
        input_index=index,
        launch_index=first.launch if first.kind == "kernel" else None,
        value=f"{first.element.value}{f' at {first.element.index}' if first.element.index else ''}",
        model_locations=_lines(first, case) or case.call_locations,
    )


def _lines(first: FirstBad, case: Case) -> list[ModelLocation]:
    """The operator that does it in eager mode, where that is known, else all lines of the kernel."""
    return (non_finite_lines(case) if first.what == "non_finite" else []) or first.locations[:6]


def _input_index(first: FirstBad, case: Case) -> int | None:
    if first.kind != "input" or case.package is None:
        return None
    return next((i.index for i in case.package.inputs if first.name in (i.label, i.name)), None)


def _inputs_of(first: FirstBad, case: Case) -> list[str]:
    """The inputs that the making launch depends on, by label."""
    if first.kind != "kernel" or first.launch is None or case.view is None:
        return []
    return case.view.inputs_behind(first.launch)


def _from(inputs: list[str]) -> str:
    return f"; it computes from {', '.join(inputs[:3])}" if 0 < len(inputs) <= 3 else ""


def _feeding(inputs: list[str], first: FirstBad) -> tuple[Evidence, ...]:
    if not inputs:
        return ()
    fact = f"launch {first.launch} depends on {', '.join(inputs[:6])}"
    return (Evidence(step="inspect_package", fact=fact),)


def _fill(first: FirstBad, case: Case) -> Intervention | None:
    """With a finite value in the place of the input's bad ones."""
    index = _input_index(first, case)
    if index is None or first.what != "non_finite":
        return None
    places = sorted({index, *_with_nan(case)})
    inputs = case.package.inputs if case.package is not None else ()
    leaves = [Leaf(place, inputs[place].path or inputs[place].name) for place in places]
    fills = tuple(replace_where(leaf, Where(non_finite=True), 0.0) for leaf in leaves)
    if len(fills) == 1:
        return fills[0]
    names = ", ".join(leaf.name for leaf in leaves)
    return together(f"fill:{index}", f"the values of {names} that are not finite made 0", fills)


def _with_nan(case: Case) -> Iterator[int]:
    """The inputs that hold NaN: what one of them brings must not hide what another one does."""
    paths = case.given.paths if case.given is not None else ()
    held = {path for path, leaf in zip(paths, case.leaves, strict=False) if leaf.get("nan")}
    for item in case.package.inputs if case.package is not None else ():
        if item.path in held:
            yield item.index


def _fix(first: FirstBad, case: Case) -> Fix:
    if first.kind == "input":
        return Fix(action=f"reject or clean values of {first.name} that are not finite before the call")
    if first.kind == "constant":
        return Fix(action=f"the weight {first.name} holds values that are not finite: load good weights")
    made = first_made(case)
    if made is not None:
        return guard_fix(made)
    lines = "; ".join(f"{line.file}:{line.line} {line.code}" for line in _lines(first, case)[:2])
    return Fix(
        action="guard the operation that makes it: an epsilon under a root or a division, a clamp before log"
        f" or exp{' (' + lines + ')' if lines else ''}"
    )


def _table(case: Case) -> str:
    table = case.kernel_io.table if case.kernel_io is not None else None
    return table.uri if table is not None else ""
