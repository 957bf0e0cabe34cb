"""Outputs that differ: from run to run, from eager mode, or from the expectation of the program's check."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mcp_server.diagnosis.causes import log_text
from mcp_server.diagnosis.causes.constants import programs_values
from mcp_server.diagnosis.causes.input_mismatch import size_is_open
from mcp_server.diagnosis.causes.out_of_memory import KEEP_LESS, SEVERAL, largest_buffer
from mcp_server.diagnosis.causes.value_constraints import EVALUATION, EXTREME, extreme_parts
from mcp_server.diagnosis.components import (
    component,
    drawing_launches,
    input_component,
    launch_component,
    launch_lines,
    name_of,
    own_code,
    seen,
)
from mcp_server.diagnosis.interventions.kernel import anew, eager_key, in_eager
from mcp_server.diagnosis.interventions.source import usual_key
from mcp_server.diagnosis.origin.of_model import layer_of
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.errors import argument
from mcp_server.logs.captured import Captured, CapturedLoad
from mcp_server.model import Category, Component, Evidence, Fix, PackageWorkload
from mcp_server.package.launches import Launch
from mcp_server.package.terms.term import EPSILON
from mcp_server.plurals import capitalized, counted, listed, quoted
from mcp_server.tools.compare_with_eager import Changed, Kind, Repeats
from mcp_server.tools.every_launch import EveryLaunch
from mcp_server.worker import events

_TRAINING = ("native_dropout", "dropout")


SEEDED = "set the same seed before each call whose outputs are compared, or compare means over many calls"

_Wrong = partial(Suspect, category="wrong_output")


def _package(case: DiagnosisState) -> Component:
    """The package as the component, if no launch is known."""
    return component("package", case.package.path.name if case.package else "the package")


def detect_random_numbers(case: DiagnosisState) -> Iterator[Suspect]:
    """Outputs that differ from a reference with other random numbers, or from each other because of dropout.

    A model that samples draws on purpose, but a model exported for inference has no dropout.
    """
    drawing = drawing_launches(case)
    if not drawing:
        return
    op, launch = next((pair for pair in drawing if pair[0] in _TRAINING), drawing[0])
    compared = case.compared_with_program
    diverges = case.plain_diverges or (compared is not None and not compared.equal)
    training = op in _TRAINING
    if not diverges and not (training and isinstance(case.workload, PackageWorkload)):
        return
    facts = [seen("inspect_package", f"launch {launch.index} is {launch.kernel}")]
    if diverges:
        facts.append(seen("run", "the outputs differ from what they are compared with"))
    yield _Wrong(
        guilty=component(
            "op", op, launch_lines(launch.index, case) or case.call_locations, launch=launch.index
        ),
        summary=_of_draws(launch, op, diverges, case),
        level=CausalLevel.STATE,
        evidence=tuple(facts),
        fix=_without_draws(op, case),
        harmful=case.failed or not diverges,
        weak=not diverges,
        settle="This is the fault unless dropout is meant to stay on: export in evaluation mode to see.",
    )


def _of_draws(launch: Launch, op: str, diverges: bool, case: DiagnosisState) -> str:
    if diverges:
        draws = (
            f"The package draws random numbers (launch {launch.index}, {op}): its outputs differ from those"
        )
        return f"{draws} of any reference that draws different numbers, or none."
    # The dropout is probably unintended, but nothing in the package shows that.
    drops = f"Launch {launch.index} drops values at random ({op}): the model was exported in training mode"
    return f"{drops}{', and returns different outputs each time' if case.differs_in('second') else ''}."


def _without_draws(op: str, case: DiagnosisState) -> Fix:
    if op not in _TRAINING:
        return Fix(
            text=f"draw outside the model and pass the numbers as an input, instead of {op} in the model"
        )
    if EVALUATION not in case.trials:
        return Fix(text="export the model in evaluation mode", before="model", after="model.eval()")
    return Fix(text=SEEDED, after="torch.manual_seed(0)")  # in evaluation mode, outputs differed too


def detect_unsteady(case: DiagnosisState) -> Iterator[Suspect]:
    """Outputs that vary with the content of fresh memory, or between calls without random numbers."""
    if case.differs_in("second"):
        if drawing_launches(case):
            return
        where = _first_difference(case, "second")
        at = f" from launch {where.launch} ({where.kernel}) on" if where is not None else ""
        yield _Wrong(
            guilty=_changed(where, case),
            summary=f"The same call returns different outputs each time{at}, and no launch of the package "
            "draws random numbers.",
            level=CausalLevel.BAD_VALUE,
            evidence=(seen("repeat_call", f"two calls on the same inputs differ{at}"),),
            fix=Fix(text="make outputs depend on the arguments only: no hidden state, race or unset memory"),
            weak=True,
            settle="Compare the outputs with those of eager mode (compare_with_eager) to settle it.",
        )
    elif case.reads_unset:
        where = _first_difference(case, "filled")
        at = f", first in what launch {where.launch} ({where.kernel}) writes" if where is not None else ""
        same = "repeated without a change, the call returns the same outputs"
        fact = "the same call returns different outputs when fresh memory is filled with different bytes"
        yield _Wrong(
            guilty=_changed(where, case),
            summary=f"The outputs depend on uninitialised memory{at}.",
            level=CausalLevel.BAD_VALUE,
            evidence=(seen("repeat_call", same), seen("repeat_call", fact + at)),
            fix=Fix(text="make this launch write its whole result, and read only inside its arguments"),
        )


def _first_difference(case: DiagnosisState, run: str) -> Changed | None:
    """The first tensor that differs between the first run and run `run`."""
    done = case.repeated_watched
    return Repeats(done).change("first", run) if done is not None else None


def _changed(where: Changed | None, case: DiagnosisState) -> Component:
    return launch_component(where.launch, where.kernel, case) if where is not None else _package(case)


FIXES: dict[Kind, str] = {
    "error": "until the compiler is fixed, run the model in eager mode, or compile it with another release "
    "of torch. `bisect` searches for the faulty step of the compiler and for a workaround",
    "tf32": "forbid TF32 where the numbers matter: torch.set_float32_matmul_precision('highest') before the "
    "compile, or compare with the tolerance that TF32 needs",
    "nondeterministic": "make the operator deterministic (torch.use_deterministic_algorithms), or compare "
    "with a tolerance that covers its spread",
    "uninitialised": "make the operator write its whole result, which later launches read",
}


def detect_divergence(case: DiagnosisState) -> Iterator[Suspect]:
    """The launch at which a comparison found a difference, and weights that differ from the program's."""
    found = case.with_eager
    if found is None or found.kind is None:
        return
    harmful = case.failed or case.judged_by_program
    observed = seen("compare_with_eager", found.summary)
    for other in found.other_constants[:1]:
        # The package was made from other weights: old ones, or those of another model.
        yield Suspect(
            category="constants",
            guilty=component("constant", other.name, launch_lines(other.launch, case), launch=other.launch),
            summary=f"The package was not compiled with this program's weights: {other.sentence}.",
            level=CausalLevel.STATE,
            evidence=(seen("compare_with_eager", other.sentence), observed),
            intervention=programs_values([each.name for each in found.other_constants], case),
            fix=Fix(
                text="compile the package from this program again, by itself (models of one structure in one "
                "package share the last one's weights), or load its weights with load_constants"
            ),
            harmful=harmful,
        )
    if found.kind in ("error", "tf32") and case.wrong_launches:
        yield from _wrong_launches(case, found.every_launch, harmful=harmful)
        return
    # If runs differ from each other, name the first tensor that does.
    apart = {"nondeterministic": found.varies_from, "uninitialised": found.unset_from}.get(found.kind)
    yield _Wrong(
        guilty=_changed(apart, case),
        summary=f"The package differs from its own exported program: {found.summary}.",
        level=CausalLevel.FAULT_SITE if apart is None else CausalLevel.BAD_VALUE,
        evidence=(observed,),
        fix=Fix(text=FIXES[found.kind]),
        harmful=harmful,
    )


def detect_unlike_source(case: DiagnosisState) -> Iterator[Suspect]:
    """Launches that do not compute what their source says, or what the others of their kind compute."""
    as_expected = case.plain_run is not None and case.plain_run.as_expected
    for each in case.by_source.different if case.by_source is not None else ():
        by = f" by up to {each.largest_difference:.3g}" if each.largest_difference is not None else ""
        fact = f"{each.tensor} of launch {each.launch} differs{by} from what its source computes as PyTorch"
        tried = anew(each.kernel)
        yield _Wrong(
            guilty=launch_component(each.launch, each.kernel, case),
            summary=f"Launch {each.launch} ({each.kernel}) does not compute what its own source says: on the "
            f"same inputs {each.tensor} differs{by}.",
            level=CausalLevel.BAD_VALUE,
            evidence=(seen("decompile", fact + _kept(each)),),
            fix=Fix(text="compile the package again: its binary does not match its source"),
            harmful=not as_expected,
            intervention=tried if tried.key in case.trials else None,
        )
    for odd in case.by_source.odd if case.by_source is not None else ():
        trial = case.trials.get(usual_key(odd.launch))
        layer = layer_of(case.view, case.launches[odd.launch]) if case.view is not None else ""
        yield _Wrong(
            guilty=launch_component(odd.launch, odd.kernel, case),
            summary=f"{odd}{f' It is in layer {layer}.' if layer else ''}",
            level=CausalLevel.BAD_VALUE,
            evidence=(seen("decompile", str(odd)),),
            fix=Fix(text="see whether this launch is meant to differ from the others"),
            intervention=trial.intervention if trial is not None else None,
            harmful=not as_expected,
            observed=False,
            weak=trial is None,
        )


def _kept(launch: events.LaunchVerified) -> str:
    """Describe the tensors of a captured launch, and name their file."""
    if not isinstance(launch, events.CaptureJudged):
        return ""
    return f" ({'; '.join(launch.values)}; from {Path(launch.file).name})"


_IN_CAPTURE: dict[str, tuple[Category, str, str]] = {
    "out_of_bounds": (
        "index_out_of_bounds",
        "leaves a tensor: {}",
        "keep the index that this launch reads within the tensor",
    ),
    "non_finite": (
        "nan_or_inf",
        "makes NaN or infinity from finite values",
        "keep what this launch computes from within the domain of its operators",
    ),
}


def detect_in_captures(case: DiagnosisState) -> Iterator[Suspect]:
    """Launches of another run whose source fails on the arguments in torch's kernel captures."""
    for each in case.by_source.by_launch if case.by_source is not None else ():
        if not isinstance(each, events.CaptureJudged) or each.fault not in _IN_CAPTURE:
            continue
        category, what, fix = _IN_CAPTURE[each.fault]
        told = f"launch {each.launch} ({each.kernel}) {what.format(each.why)}"
        yield Suspect(
            category=category,
            guilty=launch_component(each.launch, each.kernel, case),
            summary=f"As its own source says, {told}.",
            level=CausalLevel.BAD_VALUE,
            evidence=(seen("decompile", f"{told}{_kept(each)}"),),
            fix=Fix(text=fix),
        )


def _wrong_launches(case: DiagnosisState, every: EveryLaunch, *, harmful: bool) -> Iterator[Suspect]:
    """Yield the launches that are wrong on correct inputs, each with a trial that runs it in eager mode."""
    judged = seen("compare_with_eager", every.summary, every.plan.uri if every.plan else "")
    bad = case.first_bad if case.outputs_nonfinite else None
    numbers = listed([str(each.launch) for each in every.wrong])
    also = f" Wrong launches: {numbers}." if len(every.wrong) > 1 else ""
    for each in every.wrong:
        if bad is not None and bad.launch == each.launch:
            continue  # the launch makes the first NaN, which has a suspect of category nan_or_inf
        # A launch whose inputs may be wrong is not tried alone. A launch compiled for other sizes would be
        # right in eager mode in any case.
        tried = eager_key(each.launch) in case.trials and not size_is_open(case)
        lines = each.locations[:3] or case.call_locations
        # What the launch computes wrong in the program, without names of generated code.
        differs = each.summary.partition(": ")[2].replace(f" (in {each.argument})", "")
        yield _Wrong(
            guilty=component("kernel", each.kernel, lines, launch=each.launch),
            summary=f"Launch {each.launch} computes wrong numbers: {differs}.{also} "
            f"Its inputs {'could not be judged' if each.suspects else 'were correct'}.",
            level=CausalLevel.BAD_VALUE,
            evidence=(judged,),
            fix=Fix(text=FIXES["tf32" if each.tf32 else "error"]),
            intervention=in_eager(each.launch, each.kernel) if tried else None,
            harmful=harmful,
        )


def detect_own_check(case: DiagnosisState) -> Iterator[Suspect]:
    """Script errors in the log, with evidence that clears AOTInductor. Nothing without such evidence."""
    capture, plain = case.capture, case.plain_run
    if capture is None or plain is None or not case.own_check or capture.assertions:
        return
    came_back = all(call.outcome == "ok" for call in capture.calls)
    if not came_back or plain.failure != "none":
        return
    if own_code(case) or not case.equals_eager:  # eager mode runs it too: equal outputs do not clear it
        return
    facts = [seen("interpret", "package and exported program agree on the call before the check")]
    for suspect in log_text.detect_from_log(case):
        if suspect.category != "script_error":
            continue
        code = " ".join(line.code or "" for line in suspect.guilty.model_locations)
        text = f"{suspect.evidence[0].fact} {code}"
        if _OF_TIME.search(text) or _OF_MEMORY.search(text):
            yield _too_slow(suspect, case) if _OF_TIME.search(text) else _too_large(suspect, case)
            continue
        rounded, fix = "", "look at the inputs of that call and at what the check expects"
        compared = case.compared_with_program
        apart = max((each.by or 0.0 for each in compared.outputs), default=0.0) if compared else 0.0
        if apart > 0:
            rounded = f", except for rounding: they differ by up to {apart:.2g}"
            fix += "; if it compares bits (torch.equal) or allows less than that, give it a tolerance"
        yield replace(
            suspect,
            summary=f"{suspect.summary.rstrip('.')}. For the preceding call, the package matches its "
            f"exported program{rounded}. Look for the error in the expected values, in the inputs, or in the "
            "model.",
            evidence=(*suspect.evidence, *facts),
            fix=Fix(text=fix),
        )


_OF_TIME = re.compile(r"(?i)\b(?:took|elapsed|latency|duration)\b|\d ?(?:ms|us|µs|s|sec|seconds)\b")
_OF_MEMORY = re.compile(r"(?i)\b(?:memory|rss|maxrss)\b|\d ?(?:[KMG]i?B)\b")


def _too_large(suspect: Suspect, case: DiagnosisState) -> Suspect:
    """Suspect the outputs or loaders that the program still holds, if its check of memory failed."""
    loads, end = loaded_often(case.captured)[0], next(reversed(case.captured.ends), None)
    if end is not None and end.kept_outputs >= SEVERAL:
        kept, size = end.kept_outputs, end.kept_bytes / 1e6
        fact = f"the outputs of earlier calls still keep {kept} blocks of memory, {size:.3g} MB in all"
        return _costs(suspect, "memory", KEEP_LESS, fact)
    if loads:
        path, size = loads[0].package.name, loads[-1].bytes / 1e6
        fact = f"{path} ({size:.3g} MB) was loaded {len(loads)} times, each time with its own weights"
        return _costs(suspect, "memory", LOAD_ONCE, fact, component("script", path, loads[-1].stack[:1]))
    for _, buffer in largest_buffer(case):
        advice = buffer.fix.text if buffer.fix else ""
        return _costs(suspect, "memory", advice, buffer.evidence[0].fact, buffer.guilty)
    fix = "see what keeps memory from call to call: outputs, views of them, loaders, caches"
    return _costs(suspect, "memory", fix)


def _too_slow(suspect: Suspect, case: DiagnosisState) -> Suspect:
    """Suspect the loads of a package that took longer than its calls, if a check of time failed."""
    loads, fact = loaded_often(case.captured)
    if not fact:
        return _costs(suspect, "time", "find what takes the time: diagnose with symptom slow or slow-load")
    party = component("script", loads[0].package.name, loads[-1].stack[:1])
    return _costs(suspect, "time", LOAD_ONCE, fact, party)


LOAD_ONCE = (
    "load the package once, before the first request, and call that loader each time; threads share its "
    "weights with num_runners"
)


def loaded_often(seen: Captured) -> tuple[list[CapturedLoad], str]:
    """The loads of a package that is loaded several times, and their time if all calls took less."""
    loads = [load for load in seen.loads if load.package == seen.loads[0].package]
    if len(loads) < SEVERAL:
        return [], ""
    loading = sum(load.seconds or 0.0 for load in loads)
    calling = sum(call.seconds or 0.0 for call in seen.calls)
    calls, path = counted(len(seen.calls), "call"), loads[0].package.name
    fact = f"{len(loads)} loads of {path} took {loading:.2g} s, and {calls} {calling:.2g} s"
    return loads, fact if loading > calling else ""


def _costs(suspect: Suspect, of: str, fix: str, fact: str = "", party: Component | None = None) -> Suspect:
    """A failed check of time or memory, explained by `fact` of `party` unless `fact` is empty."""
    why = f", and {fact}" if fact else "; the package matches its exported program"
    return replace(
        suspect,
        category="cost",
        guilty=party or suspect.guilty.model_copy(update={"value": of}),
        summary=f"The program's own check of {of} failed{why}.",
        level=CausalLevel.CALL,
        evidence=(*suspect.evidence, *([seen("capture", fact)] if fact else [])),
        fix=Fix(text=fix),
        weak=False,
        observed=bool(fact),
    )


def detect_unexpected(case: DiagnosisState) -> Iterator[Suspect]:
    """Outputs that differ from the expected ones, ranked after all suspects that explain this."""
    yield from _extreme_inputs(case)
    plain = case.plain_run
    if plain is None or not case.symptom.judges or plain.failure not in ("differs", "nonfinite"):
        return
    expected, checked = plain.last(events.ComparedExpected), plain.last(events.CheckFacts)
    outputs = expected.outputs if expected is not None and expected.given else []
    facts = [seen("run", _departs(output)) for output in outputs if output.changed]
    refused = checked is not None and checked.status
    if checked is not None and refused:
        said = f": {quoted(checked.text.splitlines()[-1], 200)}" if checked.text else ""
        facts.append(seen("run", f"the check command ended with status {checked.status}{said}"))
    if not facts:
        return
    if not refused and (coarse := _by_rounding(outputs, case)):
        yield _rounded(facts, coarse)
        return
    own = case.by_source.own_source if case.by_source is not None else ""
    # A check command that fails even on correct outputs would give the same result.
    correct = f"give the correct outputs ({argument('expect')})"
    alone = f" Only the check command says so: {correct}, for which it must pass."
    yield _Wrong(
        guilty=component("package", ""),
        summary=f"The call returns, and {facts[0].fact}. {AS_WRITTEN if own else UNEXPLAINED}"
        f"{alone if case.symptom.expect is None else ''}",
        level=CausalLevel.SYMPTOM,
        evidence=(*facts, *([seen("decompile", own)] if own else [])),
        observed=False,
    )


def _departs(output: events.OutputChange) -> str:
    first = output.first[0]
    place = f"at {list(first.index)} it is {first.after} where {first.before} is expected"
    return f"output {output.output} differs in {output.changed} of {output.elements} elements ({place})"


def _rounded(facts: Sequence[Evidence], coarse: str) -> Suspect:
    """Outputs that differ by no more than their dtype may round."""
    return _Wrong(
        guilty=component("package", ""),
        summary=f"The call returns, and {facts[0].fact}. {coarse}",
        level=CausalLevel.SYMPTOM,
        evidence=tuple(facts),
        settle="compare_with_eager computes in float64, and so distinguishes rounding from a fault.",
        fix=Fix(text="compare with a tolerance for that dtype (rtol, atol), or compile in float32"),
        weak=True,
        observed=False,
    )


UNEXPLAINED = "The checks that were made do not explain it."
AS_WRITTEN = (
    "The kernels do what they were compiled to do, so look for the difference in the model that was "
    "compiled, in its translation, in the weights, or in the inputs."
)


def _extreme_inputs(case: DiagnosisState) -> Iterator[Suspect]:
    """Elements of inputs that are far from all others. Nothing shows which numbers were meant."""
    for part in extreme_parts(case):
        values = case.index_values.get(part)
        if values is None or not 0 < values.outside <= MOST_EXTREME:
            continue
        item = case.compiled_inputs[part.input]
        reader = next((each.index for each in case.launches if item.name in each.reads), None)
        lines = [*case.call_locations, *launch_lines(reader, case, 2)]
        places = [f"{name_of(item)}{list(place)} = {value:g}" for place, value in values.first]
        fact = f"{counted(values.outside, 'element')} of {values.elements} beyond ±{EXTREME:g}: {places[0]}"
        yield _Wrong(
            guilty=input_component(item, lines, f"{values.value:g}").model_copy(update={"elements": places}),
            summary=f"The outputs are not what is expected, and {places[0]}, far from its other elements.",
            level=CausalLevel.FAULT_SITE,
            evidence=(seen("look_at_indices", fact),),
            fix=Fix(text=f"keep extreme numbers out of {name_of(item)} where it is produced"),
            observed=False,
        )


MOST_EXTREME = 4  # limit for extreme elements of an input; a mask has more
STEPS = {dtype: EPSILON[dtype] / 2 for dtype in ("bfloat16", "float16")}  # relative error of one rounding
ROUNDINGS = 2.0  # roundings by which outputs may differ: even a deep model accumulates fewer


def _by_rounding(outputs: Sequence[events.ExpectedOutput], case: DiagnosisState) -> str:
    """Say that rounding in the dtype of the package explains the differences. Empty if not."""
    dtypes = {constant.dtype for constant in case.package.constants} if case.package is not None else set()
    dtype = next((dtype for dtype in STEPS if dtype in dtypes), None)
    shares = [each.by / each.reach for each in outputs if each.by is not None and each.reach]
    if dtype is None or len(shares) < len(outputs):
        return ""
    most = max(shares)
    if most > ROUNDINGS * STEPS[dtype]:
        return ""
    return (
        f"The package computes in {dtype}, and no element differs by more than {most:.2g} of the largest. "
        f"Rounding in {dtype} explains that ({STEPS[dtype]:.2g} for each step)."
    )


COMPARE = (
    "compare the reference with the exported model: first their weights (state_dict), then training or "
    "evaluation mode, then the inputs of the two calls"
)


IN_ANY_ORDER = (
    "find the operator that writes an element twice, in any order (index_put or scatter with an index that "
    "occurs twice, a kernel of the model without atomics), and give it each index only once"
)


def detect_compared(case: DiagnosisState) -> Iterator[Suspect]:
    """Numbers that differ from those of the exported program or, if these agree, from the reference."""
    compared = case.compared_with_program
    if compared is None:
        return
    if not compared.equal and case.rounding is None and case.undefined is None:
        yield _unlike_its_program(compared, case)
    elif case.plain_diverges:
        yield _unlike_the_reference(case)


def _unlike_its_program(compared: events.Compared, case: DiagnosisState) -> Suspect:
    worst = max((each.by or 0.0 for each in compared.outputs), default=0.0)
    varies = case.program_varies
    summary = f"The package differs from its own exported program on this call (by up to {worst:.3g})"
    return _Wrong(
        guilty=_package(case),
        summary=f"{summary}{', which returns different numbers in each run' if varies else ''}.",
        level=CausalLevel.SYMPTOM,
        evidence=(seen("interpret", f"outputs differ from the exported program by up to {worst:.3g}"),),
        fix=Fix(
            text=IN_ANY_ORDER if varies else "find the first launch that differs with compare_with_eager"
        ),
        harmful=case.failed,
        observed=False,
    )


def _unlike_the_reference(case: DiagnosisState) -> Suspect:
    """The model's own kernel, or a comparison with another model: package and program agree."""
    own = own_code(case)
    name = own[0] if len(own) == 1 else "the exported model"
    number = next((each.index for each in case.launches if name in (each.symbol, each.kernel)), None)
    lines = launch_lines(number, case) or case.call_locations
    agree = "package and exported program agree on the failing call"
    given = case.symptom.expect is not None
    differ = f"the outputs differ from what {'is expected' if given else 'the script compares them with'}"
    why = "the reference has different weights, mode or inputs, or is a different model."
    if given:
        why = "the model computes something else, or these inputs or weights are not the intended ones."
    if len(own) == 1:
        why = f"{name}, the model's own kernel, computes something else."
    return _Wrong(
        guilty=component("kernel" if len(own) == 1 else "script", name, lines),
        summary=f"{capitalized(agree)}, but {differ}: {why}",
        level=CausalLevel.FAULT_SITE,
        evidence=(seen("interpret", agree), seen("run", differ)),
        fix=Fix(text=f"compare {name} with a plain implementation on the failing inputs" if own else COMPARE),
        observed=len(own) == 1,
    )
