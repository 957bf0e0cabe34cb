"""What a located fault is told as: plain records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Category, ModelLocation, Record

Side = Literal["before", "after", "inside", "empty", "host", "unknown"]
GuiltyKind = Literal["kernel", "upstream_kernel", "op", "input", "constant", "unknown"]


class FaultLaunch(Record):
    """The launch that faulted. `index` is its number in wrapper.cpp, `sequence` its place in the call.

    `candidates` are the numbers that fit when it is not `certain`; `how` says what told it.
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
    """The tensor whose memory was missed, as the launch had it.

    `bytes_outside` is the gap between the access and the nearest byte of the tensor: 0 right behind its end.
    `element` counts from the first element; `index` is that element under the strides, beyond the shape too.
    `declared_shape` is what the wrapper computed with, where it says so and it differs. `side` is `empty` for
    a tensor without elements, `host` for memory of another device.
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
    elements_outside: int | None = None
    element: int | None = None
    index: list[int] | None = None
    holds_bytes: int | None = None
    declared_shape: list[int] | None = None
    certain: bool = False


class AddressPart(Record):
    """A value that went into the address: an element of an index tensor, or a scalar argument.

    `minimum` and `maximum` are what the launch was given; values from `lowest` to `limit` - 1 stay inside the
    tensor that was missed. `beyond` is None when one of the two is not known. `producers` are the launches
    that last wrote the tensor; `inputs` are model inputs behind it, in words.
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
    """Who made the address bad, as far as the evidence reaches, and why.

    `received` tells that the crashing kernel did what its arguments asked for.
    """

    kind: GuiltyKind
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
    """One fault, joined with the package.

    `generated_line` counts in the generated file, `location` is the same line in the package
    (`wrapper.cpp:N`, `kernel.cpp:N`). `code` is that line, `access` the call on it that went wrong.
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
