"""CUDA streams and graphs: inputs that another stream still writes, and replays that read freed inputs."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.sharing import written_inputs
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCall, CapturedLoan, CapturedReplay
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the first call that raced with a stream, one for each input that a graph lost."""
    if case.capture is None:
        return
    written = written_inputs(case)
    for call in case.capture.calls:
        late = [place for place in call.raced if place not in written]
        if late:
            yield _raced(call, late, case)
            break
    for replay in case.capture.replays:
        yield _lost(replay, case)
    for loan in case.capture.loans[:1]:
        yield _let_go(loan, case)


def _raced(call: CapturedCall, late: list[int], case: Case) -> Suspect:
    label = _label(late[0], case)
    return Suspect(
        category="concurrency",
        guilty=Party(kind="input", name=label, input_index=late[0], model_locations=call.stack[:2]),
        summary=f"Input {late[0]} ({label}) was still being written by another stream when the package read "
        "it.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"input {late[0]}, copied in the order of the calling stream, differs from what it held "
                "once all streams were done; the package does not write it",
            ),
        ),
        fix=Fix(
            action="make the calling stream wait for the stream that fills the input",
            before=call.stack[0].code if call.stack else None,
            after="torch.cuda.current_stream().wait_stream(other_stream)",
        ),
        harmful=case.failed,
    )


def _lost(replay: CapturedReplay, case: Case) -> Suspect:
    label = _label(replay.input, case)
    call = _call_of(replay, case)
    return Suspect(
        category="concurrency",
        guilty=Party(
            kind="input",
            name=label,
            input_index=replay.input,
            model_locations=[*replay.stack[:2], *(call.stack[:1] if call else [])],
        ),
        summary=f"A CUDA graph was replayed after the memory of input {replay.input} ({label}) of its call "
        "had been let go: the graph reads the old address, not the tensor that took its place.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(
            Evidence(
                step="capture",
                fact=f"at the replay, no tensor holds the memory of input {replay.input} at the capture",
            ),
        ),
        fix=Fix(
            action="keep the tensor that was captured, and copy new values into it before each replay",
            before="static_input = request",
            after="static_input.copy_(request)",
        ),
        harmful=case.failed,
    )


def _let_go(loan: CapturedLoan, case: Case) -> Suspect:
    """Proven only where the program fails by itself, and not under the hook, which waits for each call."""
    label = _label(loan.input, case)
    call = _call_of(loan, case)
    waits = case.fails_only_alone
    fact = (
        f"the memory of input {loan.input} was let go, and something was allocated, before the stream that "
        "owns it waited for the stream of the call; record_stream was not called"
    )
    alone = Evidence(
        step="run_alone", fact="the program fails by itself and ends well where each call is waited for"
    )
    return Suspect(
        category="concurrency",
        guilty=Party(
            kind="input", name=label, input_index=loan.input, model_locations=call.stack[:2] if call else []
        ),
        summary=f"Input {loan.input} ({label}) was let go while the package, on another stream, could still "
        "read it: the allocator gives its memory to the next tensor at once.",
        level=CausalLevel.STATE,
        only_in_program=True,
        evidence=(Evidence(step="capture", fact=fact), *((alone,) if waits else ())),
        fix=Fix(
            action="tell the allocator which stream uses the input, or keep it until that stream is done",
            before=call.stack[0].code if call and call.stack else None,
            after="x.record_stream(torch.cuda.current_stream())",
        ),
        harmful=case.failed,
        observed=waits,
    )


def _call_of(event: CapturedLoan | CapturedReplay, case: Case) -> CapturedCall | None:
    assert case.capture is not None
    return next((c for c in case.capture.calls if (c.pid, c.number) == (event.pid, event.call)), None)


def _label(place: int, case: Case) -> str:
    inputs = case.package.inputs if case.package is not None else ()
    return inputs[place].label if place < len(inputs) else f"inputs[{place}]"
