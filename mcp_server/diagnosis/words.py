"""What a verdict says besides its evidence: headline, call, eager mode, lines, fix, and what is healthy."""

import ast
import builtins
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from mcp_server.diagnosis.causes.out_of_memory import memory_facts, no_use_of_memory
from mcp_server.diagnosis.components import drawing_launches, own_code, seen
from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.errors import argument
from mcp_server.model import (
    CHECK,
    CallNumber,
    Category,
    Component,
    Eager,
    Evidence,
    Fix,
    PackageWorkload,
    Verdict,
)
from mcp_server.package.mismatch import Aspect
from mcp_server.package.pytorch.program import write_program
from mcp_server.plurals import capitalized, counted
from mcp_server.worker import events

# The name of a failure in a headline. A second entry is its name in a list of possible causes.
# `headline_of` adds facts of outputs and inputs.
HEADLINES: dict[Category, tuple[str, ...]] = {
    "device_mismatch": ("wrong device", "an input on the wrong device"),
    "input_mismatch": ("inputs do not fit the package", "inputs that do not fit the package"),
    "shape_out_of_range": ("size outside the compiled range", "a size outside the compiled range"),
    "index_out_of_bounds": ("index out of bounds", "a wrong index value"),
    "illegal_memory_access": ("illegal memory access", "a wrong index or size inside a kernel"),
    "nan_or_inf": ("NaN or infinity",),
    "wrong_output": ("wrong numbers", "generated code that computes wrong numbers"),
    "custom_op": ("custom operator {op}", "a custom operator"),
    "constants": ("wrong weights",),
    "invalid_package": ("broken package", "a broken package"),
    "arch_mismatch": ("package built for other hardware",),
    "toolchain": ("compiler or linker error", "a compiler or linker error"),
    "compile_failure": ("compilation failed", "a failed compile"),
    "out_of_memory": ("out of memory",),
    "hang": ("hang",),
    "concurrency": ("unsafe sharing between calls",),
    "environment": ("machine or environment problem", "the machine or its environment"),
    "script_error": ("error in the script", "an error in the script"),
    "cost": ("too slow or too large",),
}
# Headlines for which the failed step says more than the category.
AT_STAGE: dict[tuple[Category, str], str] = {
    ("compile_failure", "export"): "export failed",
    ("compile_failure", "compile"): "compilation failed",
    ("toolchain", "load"): "loading failed",
}

# Headlines for which the error's family says more than the category.
OF_FAMILY = {
    "kernel_division": "integer division by zero",
    "matrix_values": "matrix that has no inverse or factors",
}

# What differs about an input.
ASPECTS: dict[Aspect, str] = {
    "count": "wrong number of inputs",
    "structure": "inputs of a different structure",
    "order": "inputs in the wrong order",
    "device": "wrong device",
    "device_index": "wrong GPU",
    "dtype": "wrong dtype",
    "rank": "wrong number of dimensions",
    "size": "wrong size",
    "range": "size outside the compiled range",
    "relation": "sizes that contradict each other",
    "stride": "wrong strides",
}


def headline_of(category: Category, guilty: Component, case: DiagnosisState, *, known: bool) -> str:
    """The failure in a few words, such as `NaN in output 0`. Without a `known` cause, what was seen."""
    if not known:
        return _non_finite(case) or "cause not known"
    if category == "script_error" and case.taken is not None:
        return "the host died outside of the package"
    if case.package_error is not None and case.package_error.slug == "missing_file":
        return "no such package"
    if category == "cost":
        of = (guilty.value or "").rpartition(" ")[2]
        return {"bytes": "too much memory", "memory": "too much memory"}.get(of, HEADLINES[category][0])
    families = [root.family.id for _, root in case.own_roots if category in root.candidates]
    if told := next((OF_FAMILY[each] for each in families if each in OF_FAMILY), ""):
        return told
    stages = [each.stage for each in case.captured.attempts]
    stages += [root.family.stage for _, root in case.own_roots if category in root.candidates]
    if failed := next((AT_STAGE[category, each] for each in stages if (category, each) in AT_STAGE), ""):
        return failed
    words = HEADLINES[category][0].format(op=guilty.name if guilty.kind == "op" else "").rstrip()
    if category == "nan_or_inf":
        return _non_finite(case) or words
    of_input = (each for each in case.mismatches if each.category == category)
    aspect = next((each.aspect for each in of_input if each.input_index == guilty.input_index), None)
    return ASPECTS[aspect] if aspect is not None else words


def _non_finite(case: DiagnosisState) -> str:
    """The non-finite values of the first output that has any, preferring NaN. Empty if none were seen."""
    outputs = case.plain_run.outputs if case.plain_run is not None else []
    with_nan = [place for place, each in enumerate(outputs) if each.nan]
    infinite = [place for place, each in enumerate(outputs) if each.inf]
    if with_nan:
        return f"NaN in output {with_nan[0]}"
    return f"infinity in output {infinite[0]}" if infinite else ""


def call_of(case: DiagnosisState) -> CallNumber | None:
    """Which call of its process was examined. None if the program was not followed."""
    if case.taken is not None:
        return case.taken.number
    call = case.suspect_call
    if call is None:
        return None
    calls = [each for each in case.calls if each.pid == call.pid]
    return CallNumber(number=calls.index(call) + 1, of=len(calls))


# Categories in which the model itself may be at fault, so that eager mode can fail in the same way.
OF_MODEL: frozenset[Category] = frozenset({"index_out_of_bounds", "nan_or_inf", "wrong_output"})


def eager_of(category: Category, case: DiagnosisState) -> Eager:
    """Whether the model also fails in eager mode, if its exported program ran."""
    plain = case.failure_of("plain")
    if case.interpreted is None or category not in OF_MODEL:
        return "not_known"
    ends = case.interpreted.last(events.Interpreted)
    if plain == "nonfinite" and ends is not None:
        return "same" if any(output.not_finite for output in ends.outputs) else "differs"
    if plain in ("exception", "signal"):
        refused = bool(case.eager_events(events.NodeRaised))
        return "same" if refused else "differs" if ends is not None else "not_known"
    if drawing_launches(case) or case.undefined is not None:  # eager mode drew others, or may give any number
        return "not_known"
    if case.program_varies:
        return "varies"
    # None: the call was not repeated, because the program itself saw wrong numbers.
    if plain in ("differs", None) and case.equals_eager is not None and not case.differs_in("second"):
        return "same" if case.equals_eager else "differs"
    return "not_known"


# Why a change that only confirms must not be shipped, by the worker's name for the change.
NOT_SHIPPED = {
    "elements": "A test, not the fix: the new values are made up.",
    "resize": "A test, not the fix: it drops or repeats rows.",
    "pad": "A test, not the fix: its added rows are arbitrary.",
    "drop_rows": "A test, not the fix: it leaves out rows.",
    "take": "A test, not the fix: the program itself must keep these values.",
}
GENERATED = "This was done in a copy of the generated code. The next compile does not keep it."
OF_RUN = "This was done only in that run: the operator itself is unchanged."


def not_for_shipping(tried: Intervention) -> str:
    """Why a change that removed the failure is not the fix. Empty if it is the fix."""
    if tried.not_for_shipping or not tried.is_experiment:
        return tried.not_for_shipping
    made = next((NOT_SHIPPED[each.change] for each in tried.changes if each.change in NOT_SHIPPED), "")
    return made or (OF_RUN if tried.kind is Kind.OPERATOR else GENERATED)


MOST_LINES = 12


def lines_of(party: Component | None, case: DiagnosisState) -> list[str]:
    """The launch of a component as lines of PyTorch. Empty if it is unknown, was not read, or is long."""
    number = party.launch_index if party is not None else None
    if number is None or case.view is None:
        return []
    try:
        program = write_program(case.view, only=[number])
    except Exception:  # an illustration must not cost the verdict
        logging.getLogger(__name__).exception("launch %d was not written", number)
        return []
    found = next((each for each in program.launches if each.index == number), None)
    lines = program.text_of([number]).splitlines() if found is not None and not found.not_read else []
    return lines if len(lines) <= MOST_LINES else []


_LEAF = re.compile(r"args\[(?P<place>\d+)\]")


def at_call_site(fix: Fix, line: str, arguments: int) -> Fix:
    """Write `fix` in the line that makes the call with `arguments` positional arguments.

    Return it unchanged if it is another kind of fix, or if the line has several such calls.
    """
    code = line.strip()
    pairs = zip((fix.before or "").splitlines(), (fix.after or "").splitlines(), strict=False)
    for before, after in pairs:
        leaf, changed = _LEAF.fullmatch(before), after.removeprefix(f"{before} = ")
        if leaf is None or not changed.startswith(f"{before}."):
            return fix
        code = _with_argument(code, int(leaf["place"]), arguments, changed.removeprefix(before))
    changed_line = {"before": line.strip(), "after": code}
    return fix.model_copy(update=changed_line) if code not in ("", line.strip()) else fix


_REJECTING = re.compile(rf"{CHECK}(?P<sign>not )?(?P<when>.+): raise ValueError\('(?P<rule>[^'\"\\]+)'\)")
_ONLY_PYTHON = re.compile(r"torch\.|~|\b(?:and|or|in|not)\b")
_CHANGING = re.compile(
    r"(?P<to>args\[\d+\]) = (?P=to)\.(?P<call>to\(torch\.(?P<dtype>\w+)\)|contiguous\(\)|clone\(\))"
)
_IN_CPP = {"int64": "kLong", "int32": "kInt", "float64": "kDouble", "float32": "kFloat", "float16": "kHalf"}


def in_cpp(code: str | None) -> str | None:
    """Python code of a fix in C++. None if it has no short form."""
    check = _REJECTING.fullmatch(code or "")
    if check is not None and not _ONLY_PYTHON.search(check["when"]):
        when = re.sub(r"\.shape\[(\d+)\]", r".size(\1)", check["when"])
        when = re.sub(r"\.(any|all)\(\)", r".\1().item<bool>()", when)
        return f'TORCH_CHECK({when if check["sign"] else f"!({when})"}, "{check["rule"]}");'
    changed = [_changed_in_cpp(line) for line in (code or "").splitlines()]
    return "\n".join(changed) if all(changed) and changed else None


def _changed_in_cpp(line: str) -> str:
    """A line that changes an argument in C++. Empty if it has no short form."""
    found = _CHANGING.fullmatch(line)
    dtype = _IN_CPP.get(found["dtype"]) if found is not None and found["dtype"] else ""
    if found is None or dtype is None:
        return ""
    return f"{found['to']} = {found['to']}.{f'to(at::{dtype})' if dtype else found['call']};"


def callers_names(line: str, arguments: int) -> dict[str, str]:
    """Map `args[0]` to the variable that the line passes there. Empty if unsure."""
    given = {f"args[{n}]": _given(line.strip(), n, arguments) for n in range(arguments)}
    return {leaf: each.id for leaf, each in given.items() if isinstance(each, ast.Name)}


# Fields of verdicts and of their parts that have sentences, or code for the user's program.
SPOKEN = (
    *("summary", "evidence", "fact", "remarks", "causes", "fix", "text", "before", "after"),
    *("confirmed", "what", "not_for_shipping"),
)


def in_callers_words(verdict: Verdict, names: Mapping[str, str]) -> Verdict:
    """The verdict with the caller's names for inputs. Commands and components keep `args[0]`."""

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return _LEAF.sub(lambda found: names.get(found[0], found[0]), value)
        if isinstance(value, list):
            return [named(each) for each in value]
        told = {each: text for each in SPOKEN if (text := getattr(value, each, None))}
        return value.model_copy(update={each: named(text) for each, text in told.items()})

    return cast("Verdict", named(verdict)) if names else verdict


def _with_argument(line: str, place: int, arguments: int, method: str) -> str:
    """The line with `method` called on argument number `place`. Empty unless one call matches."""
    given = _given(line, place, arguments)
    if given is None:
        return ""
    text = line[given.col_offset : given.end_col_offset]
    whole = isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    changed = f"{text}{method}" if whole else f"({text}){method}"
    return f"{line[: given.col_offset]}{changed}{line[given.end_col_offset :]}"


def _given(line: str, place: int, arguments: int) -> ast.expr | None:
    """Argument number `place` of the only matching call in a line. None if unsure."""
    try:
        calls = [each for each in ast.walk(ast.parse(line)) if isinstance(each, ast.Call)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    calls = [each for each in calls if not each.keywords and len(each.args) == arguments]
    # The call of the package may be inside one of `print` or `len`.
    calls = [e for e in calls if not (isinstance(e.func, ast.Name) and hasattr(builtins, e.func.id))]
    calls = [each for each in calls if not any(isinstance(given, ast.Starred) for given in each.args)]
    return calls[0].args[place] if len(calls) == 1 and line.isascii() and place < arguments else None


MOST_NAMED = 3  # user's kernels and operators that are named


def _no_reference(case: DiagnosisState) -> str:
    program = f"the exported program ({argument('exported')})"
    if not isinstance(case.workload, PackageWorkload):
        program = f"diagnose the package with {argument('inputs')} and {program}"
    return f"To check the numbers, give the correct outputs ({argument('expect')}), or {program}."


def _whose_outputs(case: DiagnosisState) -> str:
    """Name the call that the outputs belong to, if the program made several."""
    call = call_of(case)
    return f"the outputs of call {call.number} of {call.of}" if call and call.of > 1 else "its outputs"


def _as_expected(run: RunSeen, case: DiagnosisState) -> str:
    """Say that the outputs are right, of which call, and how far they are from the expected ones."""
    compared, call = run.last(events.ComparedExpected), call_of(case)
    if call is not None and call.of > 1:
        return f"Only call {call.number} of {call.of} was checked: its outputs are as expected."
    if compared is None or not compared.given:
        return "The outputs are as expected."
    furthest = max(compared.outputs, key=lambda each: each.by or 0.0, default=None)
    if furthest is None or not furthest.by:
        return "The outputs equal the expected ones."
    dtype = run.outputs[furthest.output].dtype
    return (
        f"The outputs are as expected: the largest difference is {furthest.by:.2g} in output "
        f"{furthest.output} ({dtype}), which is within the tolerance. A check that compares bits "
        "(torch.equal) fails."
    )


def health_summary(case: DiagnosisState) -> str:
    """Describe what was tried without finding a fault, and what could not be tried."""
    if memory := no_use_of_memory(case):
        return memory
    ran = "The call returned" if isinstance(case.workload, PackageWorkload) else "The program ran to its end"
    first = f"{ran} with {_outputs_seen(case)}{_inputs_seen(case)}.".replace(",,", ",").replace(",.", ".")
    if case.otherwise_alone is not None:
        first += " Repeated without the program's earlier calls, the call returns different numbers."
    if case.plain_run is not None and case.plain_run.as_expected:
        return f"{first} {_as_expected(case.plain_run, case)}"
    of_nan = [f"{capitalized(case.nan_written)}."] if case.nan_written else []
    if case.outputs_nan and not case.nan_asked:
        of_nan.append(f"If that NaN is not meant, say so with {argument('symptom')} nan.")
    if not compared(case):
        return " ".join([first, *of_nan, *_unjudged(case)])
    whose = capitalized(_whose_outputs(case))
    agrees = [f"{whose} match those of the exported program."] if case.equals_eager else []
    if agrees and case.symptom.seen == "wrong-output":
        shows = f"only the correct outputs ({argument('expect')}) can show"
        agrees.append(f"So the compiler is not at fault; whether the model is right, {shows}.")
    return " ".join([first, *agrees, *of_nan])


def _outputs_seen(case: DiagnosisState) -> str:
    if case.outputs_nan and case.equals_eager:
        return f"NaN in {_whose_outputs(case)}, as its exported program has there,"
    if case.outputs_nan and case.nan_given is not None:
        return f"NaN in {_whose_outputs(case)}, all from the NaN in {case.nan_given},"
    if case.outputs_nan:
        return f"NaN in {_whose_outputs(case)}"
    if case.outputs_nonfinite or any(out.inf for each in case.calls for out in each.outputs):
        return "infinite values in its outputs, as masks use them,"
    several = case.finite_calls > 1
    return f"finite outputs in all {case.finite_calls} calls" if several else "finite outputs"


def _inputs_seen(case: DiagnosisState) -> str:
    """Say whether the inputs match the package. Empty if nothing is known of them."""
    if case.mismatches:
        one = len(case.mismatches) == 1
        unfit = "One thing does not fit" if one else f"{len(case.mismatches)} things do not fit"
        took = "the program handled the package's refusal"
        took = took if case.handled else f"the package accepted {'it' if one else 'them'}"
        return f". {unfit}, and {took}{': ' if one else '. The first: '}{case.mismatches[0].sentence}"
    if case.package is not None and not case.package.signature.known:
        return "; the package does not say which inputs it takes, so the inputs were not compared with it"
    return ", and its inputs match the package" if case.given is not None else ""


def _unjudged(case: DiagnosisState) -> Iterator[str]:
    """Yield what is known of outputs without a reference, and what cannot be known."""
    if case.differs_in("second"):
        yield "It returns different outputs each time because it draws random numbers."
    elif case.differs_in("second") is False:
        yield "A second call returned the same outputs."
    yield _no_reference(case)
    if own := own_code(case):
        names = ", ".join(own[:MOST_NAMED])
        yield f"Only the author knows what {names} should compute; compare with plain PyTorch operators."
    # The package keeps the non-tensor arguments of the export, and ignores those of the caller.
    plain = ("int", "float", "bool", "str")
    fixed = [f"{path} = {leaf.value}" for path, leaf in case.named_leaves if leaf.kind in plain][:MOST_NAMED]
    if fixed:
        values = "this value" if len(fixed) == 1 else "these values"
        yield f"The package ignores {', '.join(fixed)}: export fixed {values}."


def health_evidence(case: DiagnosisState) -> list[Evidence]:
    """The evidence for health, run by run."""
    found = []
    if case.only_loaded:
        return [seen("run", "the package loads")]
    for label, run in case.runs.items():
        if run.failure == "none":
            outputs = f" with {counted(len(run.outputs), 'output')}" if run.outputs else ""
            # Say only how a program exited: nothing has judged what it printed.
            program = label in ("script", "alone", "command")
            ended = "the checked call returned" if label == "checked" else "the call returned"
            ended = "exited with code 0" if program else ended
            found.append(seen(label, f"{ended} after {run.finished.wall_s:.1f} s{outputs}"))
    repeats = {
        "second": "the same call, repeated, returns the same outputs",
        "filled": "the call returns the same outputs when fresh memory is filled with different bytes",
    }
    same = [fact for run, fact in repeats.items() if case.differs_in(run) is False]
    of_memory = memory_facts(case) if case.symptom.seen == "memory" else []
    return [*of_memory, *found, *(seen("repeat_call", fact) for fact in same)]


def compared(case: DiagnosisState) -> bool:
    """Whether the outputs of the call were compared with anything."""
    plain = case.plain_run
    if plain is not None and (plain.last(events.ComparedExpected) or plain.as_expected):
        return True
    return case.equals_eager is not None or case.with_eager is not None
