"""Maps a reported memory fault to the package: launch, argument, index expression, producer. No I/O.

This module defines the record of a located fault and its summary in one line.
"""

from typing import Literal

from pydantic import Field

from mcp_server.model import Category, ModelLocation, Record

Side = Literal["before", "after", "inside", "empty", "host", "unknown"]
BlamedKind = Literal["kernel", "upstream_kernel", "op", "input", "constant", "unknown"]


class FaultLaunch(Record):
    """The launch that faulted. `index` is its number in wrapper.cpp, `sequence` its position in the call.

    If the launch is not `certain`, `candidates` lists all possible ones; `how` says why it was chosen.
    """

    index: int
    kernel: str
    kind: str
    line: int
    sequence: int | None = None
    how: str
    certain: bool
    candidates: list[int] = Field(default_factory=list)
    arguments: list[str] = Field(default_factory=list)
    model: list[ModelLocation] = Field(default_factory=list)


class MissedArgument(Record):
    """The tensor that the access was meant for, as passed to the launch.

    `bytes_outside` is the gap between the access and the nearest byte of the tensor, 0 right after its end.
    `element` is the offset from the first element, in elements; `index` is the same place as an index, which
    may exceed the shape. `declared_shape` is the shape in the wrapper, if the real one differs. `side` is
    `empty` for a tensor without elements, `host` for a CPU tensor.
    """

    parameter: str
    variable: str
    label: str
    kind: str
    dtype: str = ""
    shape: list[int] | None = None
    stride: list[int] | None = None
    device: str = ""
    side: Side = "unknown"
    bytes_outside: int | None = None
    element: int | None = None
    index: list[int] | None = None
    holds_bytes: int | None = None
    declared_shape: list[int] | None = None
    certain: bool = False


class AddressPart(Record):
    """A value used in the address: an element of an index tensor, or a scalar argument.

    `minimum` and `maximum` are the range seen at the launch. Values from `lowest` to `limit` - 1 stay inside
    the addressed tensor. `beyond`: whether a value is outside this range; None if unknown. `producers` are
    the launches that last wrote the index tensor, `inputs` the labels of the model inputs that it depends on.
    """

    kind: Literal["index", "scalar"]
    parameter: str
    label: str
    expression: str = ""
    minimum: int | None = None
    maximum: int | None = None
    lowest: int | None = None
    limit: int | None = None
    factor: int | None = None
    beyond: bool | None = None
    producers: list[int] = Field(default_factory=list)
    producer_kernels: list[str] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
    input_index: int | None = None
    dim: int | None = None
    model: list[ModelLocation] = Field(default_factory=list)


class Blame(Record):
    """The component that made the address invalid, and the reasons.

    `received` is True if the crashing kernel received bad data and is not at fault.
    """

    kind: BlamedKind
    name: str
    category: Category | None = None
    confidence: Literal["likely", "possible"] = "possible"
    received: bool | None = None
    launch: int | None = None
    input_index: int | None = None
    dim: int | None = None
    reasons: list[str] = Field(default_factory=list)
    model: list[ModelLocation] = Field(default_factory=list)


class Fault(Record):
    """One fault with its place in the package.

    `generated_line` is 1-based in the generated file; `location` is the same line in the package
    (`wrapper.cpp:N`, `kernel.cpp:N`). `code` is that line; `access` is the faulting access on it.
    """

    tool: str
    kind: str
    text: str
    direction: str = ""
    access_bytes: int | None = None
    address: str = ""
    thread: list[int] | None = None
    block: list[int] | None = None
    count: int = 1
    kernel: str = ""
    generated_file: str = ""
    generated_line: int | None = None
    location: str = ""
    code: str = ""
    access: str = ""
    masked: bool | None = None
    launch: FaultLaunch | None = None
    missed: MissedArgument | None = None
    parts: list[AddressPart] = Field(default_factory=list)
    blame: Blame | None = None
    nearest: str = ""
    unknown: list[str] = Field(default_factory=list)
    summary: str = ""


_KINDS = {
    "assert": "failed an index assertion",
    "misaligned": "made a misaligned access",
    "uninitialised": "read memory that nothing had written",
    "race": "has a race in shared memory",
    "barrier": "has a barrier that not all threads reach",
    "undefined": "has undefined behaviour",
    "signal": "crashed",
}


def summarise(fault: Fault) -> str:
    """Summarise the kind of fault, its location, argument and blame in a few sentences."""
    what = _KINDS.get(fault.kind) or f"made an out-of-bounds {fault.direction or 'access'}"
    what += f" ({fault.text})" if fault.kind == "assert" else ""
    what += f" ({fault.access_bytes} bytes)" if fault.access_bytes else ""
    what += f" at {fault.address}" if fault.address else ""
    missed = _missed(fault.missed) if fault.missed is not None and fault.kind != "assert" else ""
    return " ".join(filter(None, (f"{_where(fault)} {what}.", missed, _blame(fault))))


def _where(fault: Fault) -> str:
    """Name the kernel, and if known its generated line, launch and model line."""
    kernel = f"Kernel {fault.kernel}" if fault.kernel else "A kernel that the tool did not name"
    line = fault.location or (f"line {fault.generated_line}" if fault.generated_line else "")
    where = f"{kernel} ({line})" if line else kernel
    if fault.launch is None:
        return where
    sure = "" if fault.launch.certain else " (uncertain)"
    model = fault.launch.model[0] if fault.launch.model else None
    origin = f" from {model.file.rpartition('/')[2]}:{model.line}" if model else ""
    return f"{where}, in launch {fault.launch.index}{sure}{origin},"


def _missed(missed: MissedArgument) -> str:
    show_shape = missed.shape is not None and " of shape " not in missed.label
    shape = f" of shape {missed.shape}" if show_shape else ""
    what = f"{missed.parameter} ({missed.label}{shape})"
    if missed.side in ("before", "after"):
        index = f": index {missed.index}" if missed.index else ""
        if not missed.certain:
            return f"The nearest argument, {what}, is {missed.bytes_outside:,} bytes away."
        return f"The access is {missed.bytes_outside:,} bytes {missed.side} {what}{index}."
    if missed.side == "inside":
        return f"The address lies inside {what}."
    state = {"empty": ", which is empty", "host": ", which lies in host memory"}.get(missed.side, "")
    return f"The access went through {what}{state}."


def _blame(fault: Fault) -> str:
    blame = fault.blame
    if blame is None or blame.kind == "unknown":
        return "What led to the bad address is not known." if blame is not None else ""
    why = blame.reasons[0] if blame.reasons else ""
    kind = blame.kind.replace("_", " ")
    who = blame.name if blame.name.startswith(kind) else f"{kind} {blame.name}"
    if not why.startswith(f"{who} "):
        why = f"{who}: {why}" if why else who
    return f"{blame.confidence.capitalize()} root cause: {why}."
