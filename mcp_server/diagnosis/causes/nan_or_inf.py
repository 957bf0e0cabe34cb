"""NaN and infinity: the first bad value of a watched call, and NaN that became an index."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.causes.eager import guard_fix, lines_of, making, non_finite_lines
from mcp_server.diagnosis.causes.index_out_of_bounds import crashing
from mcp_server.diagnosis.components import launch_component, operator_of
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Where
from mcp_server.diagnosis.interventions.input import Leaf, replace_where, together
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import candidates, first_made, told
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.assertion import Candidate
from mcp_server.package.launches import Launch
from mcp_server.tools.context import Event
from mcp_server.tools.kernel_io import FirstBad

# `log` as an operator of its own: log_softmax and logical operators have other names around it.
_LOGARITHM = re.compile(r"(?<![a-z])log(?:2|10|it)?(?![a-z0-9]|_softmax|_sigmoid)")


def detect_bad_values(case: DiagnosisState) -> Iterator[Suspect]:
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


def _non_finite(first: FirstBad, case: DiagnosisState) -> Suspect:
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


def _marking(first: FirstBad, case: DiagnosisState) -> Launch | None:
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


def _has_nan(launch: Launch, case: DiagnosisState) -> bool:
    """Whether the generated code of a CPU kernel holds NaN as a number."""
    text = case.package.kernel_text if case.package is not None and launch.kind == "cpp" else ""
    start = text.find(f"{launch.symbol}(")
    body = text[start : text.find('extern "C"', start + 1)] if start >= 0 else ""
    return "quiet_NaN()" in body


def _mark(launch: Launch, case: DiagnosisState) -> Suspect:
    return Suspect(
        category="nan_or_inf",
        guilty=launch_component(launch.index, launch.kernel, case),
        summary=f"Launch {launch.index} ({launch.kernel}) writes NaN as a constant where a condition holds.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="inspect_package", fact=f"the code of {launch.kernel} holds NaN as a number"),
        ),
        weak=True,
        harmful=not case.nan_accepted,
        settle="The model writes NaN there on purpose. Run compare_with_eager to check that it marks the "
        "right elements.",
    )


def _unheld(case: DiagnosisState) -> bool:
    """Whether a program ended well with these values, and no eager mode says whether they are the model's."""
    return case.ended_well and case.equals_eager is None


def _meant(first: FirstBad, case: DiagnosisState) -> bool:
    """Whether minus infinity is all there is, and the program did not fail over it: a mask, say."""
    complained = case.outputs_nan or (case.failed and case.outputs_nonfinite)
    return first.perhaps_intended and not complained


def _takes_logarithm(first: FirstBad, case: DiagnosisState) -> bool:
    """Whether the launch can have made minus infinity by arithmetic, from a zero."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    launch = launches[first.launch] if first.launch is not None and first.launch < len(launches) else None
    return launch is not None and _LOGARITHM.search(" ".join((launch.kernel, *launch.atens))) is not None


def _bad_index(first: FirstBad, case: DiagnosisState) -> Suspect:
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


def _party(first: FirstBad, case: DiagnosisState) -> Component:
    kinds = {"kernel": "kernel", "input": "input", "constant": "constant"}
    index = _input_index(first, case)
    op = operator_of(first.launch, case) if first.kind == "kernel" and first.launch is not None else ""
    return Component(
        kind="op" if op else kinds.get(first.kind, "kernel"),  # type: ignore[arg-type]
        name=op or first.name,
        input_index=index,
        launch_index=first.launch if first.kind == "kernel" else None,
        value=f"{first.element.value}{f' at {first.element.index}' if first.element.index else ''}",
        model_locations=_lines(first, case) or case.call_locations,
    )


def _lines(first: FirstBad, case: DiagnosisState) -> list[ModelLocation]:
    """The operator that does it in eager mode, where that is known, else all lines of the kernel."""
    return (non_finite_lines(case) if first.what == "non_finite" else []) or first.locations[:6]


def _input_index(first: FirstBad, case: DiagnosisState) -> int | None:
    if first.kind != "input" or case.package is None:
        return None
    return next((i.index for i in case.package.inputs if first.name in (i.label, i.name)), None)


def _inputs_of(first: FirstBad, case: DiagnosisState) -> list[str]:
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


def _fill(first: FirstBad, case: DiagnosisState) -> Intervention | None:
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


def _with_nan(case: DiagnosisState) -> Iterator[int]:
    """The inputs that hold NaN: what one of them brings must not hide what another one does."""
    paths = case.given.paths if case.given is not None else ()
    held = {path for path, leaf in zip(paths, case.leaves, strict=False) if leaf.get("nan")}
    for item in case.package.inputs if case.package is not None else ():
        if item.path in held:
            yield item.index


def _fix(first: FirstBad, case: DiagnosisState) -> Fix:
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


def _table(case: DiagnosisState) -> str:
    table = case.kernel_io.table if case.kernel_io is not None else None
    return table.uri if table is not None else ""


# What the conversion of NaN or of an infinity gives on the processors that torch's wheels are for.
NOT_A_NUMBER = frozenset({-(2**63), 2**63 - 1, -(2**31), 2**31 - 1})


def detect_nan_index(case: DiagnosisState) -> Iterator[Suspect]:
    """The maker of the NaN, where eager mode refuses an index that is computed from it."""
    made = first_made(case)
    for refused in told(case, "node_raised")[:1]:
        text = str(refused["text"]).splitlines()[0][:300]
        computed = made is not None and made["node"] in refused.get("behind", ())
        if made is not None and computed and _converted(refused, text):
            yield _suspect(made, refused, text, case)


def _converted(refused: Event, text: str) -> bool:
    """Whether such a number is in the text, or among the integers that the operator was given."""
    given = {end for ends in refused.get("integers", ()) for end in ends}
    return bool(NOT_A_NUMBER & given) or any(f" {number} " in f" {text} " for number in NOT_A_NUMBER)


def _suspect(made: Event, refused: Event, text: str, case: DiagnosisState) -> Suspect:
    check = _check(refused, case)
    return Suspect(
        category="nan_or_inf",
        guilty=Component(kind="op", name=str(made["op"]), model_locations=lines_of(made)),
        summary=f"{made['op']} makes the first value that is not finite, in eager mode too; made an integer, "
        f"it is the index that {refused['op']} refuses: {text}.",
        level=CausalLevel.STATE,
        evidence=(
            making(made),
            Evidence(step="interpret", fact=f"{refused['node']}, which computes from it, raised: {text}"),
            *(
                (
                    Evidence(
                        step="inspect_package", fact=f"the check of that index failed at {check.location}"
                    ),
                )
                if check is not None
                else ()
            ),
        ),
        crashing=crashing(check)
        if check is not None
        else Component(kind="op", name=str(refused["op"]), model_locations=lines_of(refused)),
        fix=guard_fix(made),
        harmful=case.failed,
        observed=check is not None,
    )


def _check(refused: Event, case: DiagnosisState) -> Candidate | None:
    """The only check of the package that can have failed, if its kernel is of the line that eager refuses."""
    found = candidates(case)
    lines = {(at.file, at.line) for at in lines_of(refused)[:1]}
    places = {(c.launch.index, c.check.line) for c in found}
    own = {(at.file, at.line) for c in found for at in c.provenance.locations}
    return found[0] if len(places) == 1 and lines & own else None
