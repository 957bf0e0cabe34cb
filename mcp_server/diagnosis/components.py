"""The components that a verdict can name: launches, the user's kernels and operators, script lines."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import Leaf
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import (
    Component,
    ComponentKind,
    Evidence,
    ModelLocation,
    PackageWorkload,
    ScriptWorkload,
)
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.signature import CompiledInput
from mcp_server.package.view import PackageView
from mcp_server.plurals import quoted
from mcp_server.worker import events


def launch_component(number: int, kernel: str, case: DiagnosisState) -> Component:
    """The component of a launch: `kernel`, or the user's own Triton kernel or operator that it runs."""
    launch = case.launches[number] if number < len(case.launches) else None
    op = operator_of(number, case)
    own = launch.symbol if launch is not None and launch.kind == "user_triton" else ""
    at = f"wrapper.cpp:{launch.line}" if launch is not None and launch.line else None
    lines = launch_lines(number, case, 4) if launch is not None else []
    return component("op" if op else "kernel", op or own or kernel, lines, launch=number, at=at)


def operator_of(number: int, case: DiagnosisState) -> str:
    """The operator that the proxy executor calls for a launch. Empty for kernels."""
    if case.package is None or number >= len(case.launches):
        return ""
    return case.package.proxy_target(case.launches[number].proxy_index)


def lines_reading(index: int | None, case: DiagnosisState) -> list[ModelLocation]:
    """The model lines of the first launch that reads the input, where a bad value takes effect."""
    if case.view is None or index is None or index >= len(case.compiled_inputs):
        return []
    launches = case.view.readers_of_name.get(case.compiled_inputs[index].name, [])
    return next((lines for number in launches if (lines := launch_lines(number, case, 2))), [])


TORCHS = ("aten::", "prims::", "inductor::", "quantized::", "_c10d_functional::")  # torch's namespaces
_LONGEST = 4 << 20  # bytes of a file that is searched


def kernel_of(launch: Launch, case: DiagnosisState) -> Kernel | None:
    """The user's own Triton kernel that the launch runs. None for other kernels, or without source."""
    if case.view is None or launch.kind != "user_triton":
        return None
    kernel = case.view.wrapper.kernels.get(launch.kernel)
    return kernel if kernel is not None and kernel.source else None


def own_operators(case: DiagnosisState) -> list[str]:
    """Operators outside torch that the package calls, as `namespace::name`."""
    nodes = case.package.proxy_nodes if case.package is not None else ()
    return sorted({target for target in nodes if not target.startswith(TORCHS)})


def own_code(case: DiagnosisState) -> list[str]:
    """Names of the user's Triton kernels, and of operators outside torch that the package calls.

    The exported program runs the same code, so equal results are no evidence that it is correct.
    """
    users = [x for x in case.launches if x.kind in ("user_triton", "proxy_executor")]
    own = [x for x in users if not operator_of(x.index, case).startswith(TORCHS)]
    return list(dict.fromkeys(each.symbol or each.kernel for each in own))


def lines_in_script(case: DiagnosisState, wanted: re.Pattern[str]) -> list[ModelLocation]:
    """The first two lines of the user's script that match the pattern. Empty if the script is very long."""
    workload = case.workload
    if not isinstance(workload, ScriptWorkload):
        return []
    lines = enumerate(text_of(workload.script).splitlines(), 1)
    found = [(number, line.strip()) for number, line in lines if wanted.search(line)]
    return [ModelLocation(file=str(workload.script), line=number, code=code) for number, code in found[:2]]


def text_of(file: Path) -> str:
    """The text of a file of the user's. Empty if it is very long, or cannot be read."""
    with suppress(OSError):
        if file.stat().st_size <= _LONGEST:
            return file.read_text(encoding="utf-8", errors="replace")
    return ""


def kernel_party(symbol: str, launch: Launch, lines: list[ModelLocation], case: DiagnosisState) -> Component:
    """The kernel, with `lines` of the script and the model lines of the launch."""
    places = [*lines, *launch_lines(launch.index, case)]
    distinct = {(place.file, place.line): place for place in places}.values()
    return component("kernel", symbol, list(distinct), launch=launch.index)


_WHAT = re.compile(r"^\s*what\(\):\s*")  # what C++ prints before the text of an uncaught exception


def said(error: ErrorFact) -> Evidence:
    """The error text that the plain run printed, and its place."""
    return Evidence(
        step="run", fact=quoted(_WHAT.sub("", error.text)), source=f"line {error.line} of the output"
    )


MISSING = "op_not_registered"
MOST_LINES = 6


def operator_missing_here(run: RunSeen, case: DiagnosisState) -> str:
    """Why the call cannot be made outside its program, if an operator is missing in `run`.

    Empty if none is missing, or if the program lacks it as well.
    """
    root, phase = run.root, case.failing_phase
    if root is None or root.family.id != MISSING or case.capture is None:
        return ""
    op = root.fields.get("operator") or root.fields.get("op") or ""
    failure = phase.error.text if phase is not None and phase.error is not None else ""
    own = case.script_run
    if (own is not None and own.family == MISSING) or (op and op in failure):
        return ""
    refused = next((event.refused for event in _taken(run) if event.refused), "")
    why = f" ({refused})" if refused else ""
    return f"the call cannot be made outside the program, which alone registers {op}{why}"


def operators_from(case: DiagnosisState) -> list[Evidence]:
    """Evidence of the program's lines that were run to register the call's operators."""
    plain = case.plain_run
    found = next((event for event in _taken(plain) if event.lines), None) if plain is not None else None
    if found is None:
        return []
    shown, more = found.lines[:MOST_LINES], ", …" if len(found.lines) > MOST_LINES else ""
    lines = f"line{'s' if len(shown) > 1 else ''} {', '.join(map(str, shown))}{more}"
    ran = f"the call was made again without the program: only {lines} of {Path(found.file).name} ran"
    return [Evidence(step="run", fact=f"{ran}, which register its operators")]


def _taken(run: RunSeen) -> list[events.OperatorsTaken]:
    return run.worker.all(events.OperatorsTaken) if run.worker is not None else []


def seen(step: str, fact: str, source: str = "") -> Evidence:
    return Evidence(step=step, fact=fact, source=source)


def reported(root: ErrorFact, source: str) -> Evidence:
    """The error text of a run, and its place in the log."""
    return seen("run", quoted(root.text), f"{source}:{root.line}")


def agreement(case: DiagnosisState) -> tuple[Evidence, ...]:
    """Evidence that package and exported program agree. Empty if no agreement was seen."""
    return (seen("interpret", "package and exported program agree"),) if case.equals_eager else ()


def check_failed(case: DiagnosisState) -> bool:
    """Whether the program's own check of results failed: every call returned, and no other error is known."""
    script = case.script_run
    if script is None or script.failure != "exception" or any(call.outcome != "ok" for call in case.calls):
        return False
    return script.root is None or "result_check" in script.root.family.tags


def name_of(item: CompiledInput) -> str:
    """The input as the user writes it (`args[1]`), or its name in the package."""
    return item.path or item.name


def component(
    kind: ComponentKind,
    name: str,
    lines: Sequence[ModelLocation] = (),
    *,
    value: str | None = None,
    index: int | None = None,
    dim: int | None = None,
    launch: int | None = None,
    at: str | None = None,
) -> Component:
    """A component. `lines` are in the user's code, `at` is a line of generated code.

    `index` is the position among the inputs.
    """
    return Component(
        kind=kind,
        name=name,
        model_locations=list(lines),
        value=value,
        input_index=index,
        dim=dim,
        launch_index=launch,
        generated_location=at,
    )


def is_whole(item: CompiledInput) -> bool:
    """Whether the elements of the input are integers."""
    return (item.dtype or "").startswith(("int", "uint"))


def leaf_of(item: CompiledInput) -> Leaf:
    return Leaf(item.index, name_of(item))


def input_component(
    item: CompiledInput, lines: Sequence[ModelLocation], value: str | None = None, launch: int | None = None
) -> Component:
    return component("input", name_of(item), lines, value=value, index=item.index, launch=launch)


def launch_lines(number: int | None, case: DiagnosisState, most: int = 3) -> list[ModelLocation]:
    if case.view is None or number is None:
        return []
    return list(case.view.provenance(case.view.wrapper.launches[number]).locations[:most])


def depends_on(number: int | None, case: DiagnosisState, words: str) -> str:
    """`words`, then the first inputs from which a launch computes. Empty if there are none."""
    behind = case.view.inputs_behind(number) if case.view is not None and number is not None else []
    return f"{words} {', '.join(behind[:3])}" if behind else ""


def confirming(test: Intervention, case: DiagnosisState) -> Intervention | None:
    """`test`, or None if its trial proved nothing: such a trial must not clear a suspect."""
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None


def written_inputs(view: PackageView | None) -> set[int]:
    """Positions of the inputs that any launch or copy writes, as far as the package shows."""
    storages = written_storages(view)
    return {
        buffer.position
        for buffer in (view.wrapper.buffers.values() if view is not None else ())
        if buffer.kind == "input" and buffer.position is not None and buffer.storage in storages
    }


def written_storages(view: PackageView | None) -> set[int]:
    """The storages that any launch or copy of a call writes."""
    if view is None:
        return set()
    run = view.wrapper.run
    names = {name for launch in run.launches for name in launch.writes} | {t.writes for t in run.transfers}
    return {run.buffers[name].storage for name in names if name in run.buffers}


def lines_of(event: events.OfNode | events.GuardFailed | events.Operator) -> list[ModelLocation]:
    """The model lines of an operator, innermost first."""
    return [ModelLocation(file=f.file, line=f.line or 0, code=f.code) for f in event.stack[:3]]


def first_line(event: events.NodeRaised | events.GuardFailed) -> str:
    """The first line of the error text in an event."""
    return quoted(event.text.splitlines()[0])


def raising_lines(case: DiagnosisState) -> list[ModelLocation]:
    """The model lines of the operator that raised in eager mode."""
    return [line for event in case.eager_events(events.NodeRaised)[:1] for line in lines_of(event)]


# Operators that draw random numbers, as named in kernels, shims and the list of ATen operators.
DRAWS = re.compile(
    r"(?:^|[_.])(native_dropout|dropout|bernoulli|multinomial|rand(?:n|int|perm)?(?:_like)?)(?=[_.]|$)"
)


def drawing_launches(case: DiagnosisState) -> list[tuple[str, Launch]]:
    """Launches that draw random numbers, each with its operator."""
    texts = [(text, launch) for launch in case.launches for text in (launch.kernel, *launch.atens)]
    found = [(DRAWS.search(text), launch) for text, launch in texts]
    return [(match[1], launch) for match, launch in found if match is not None]


def package_name(case: DiagnosisState) -> str:
    """The package as the user named it."""
    loads, copied = case.captured.loads, case.call.package if case.call is not None else None
    if loads:
        same = [load for load in loads if copied in (load.copy_path, load.package)]
        return str((same or loads)[-1].package)
    if case.package is not None:
        return str(case.package.path)
    return str(case.workload.package) if isinstance(case.workload, PackageWorkload) else "the package"
