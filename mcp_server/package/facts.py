"""What a query about a package answers: plain records, one kind for each kind of thing.

Lists of numbers are cut to their first 100 (of what computed a tensor: the last 100); the counts beside
them are complete.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Fix, ModelLocation, Record


class LaunchFact(Record):
    """One launch. `arguments` read `parameter: tensor [role]`; `reads_from` tells who last wrote what it
    reads.

    `line` is 1-based in wrapper.cpp. `checked` is false when the wrapper throws a shim's error code away.
    `within` lists the branches and loops around it. `told_by` names the source of `model`.
    """

    kind_of_fact: Literal["launch"] = "launch"
    index: int
    kernel: str
    kind: str
    line: int
    arguments: list[str]
    reads_from: list[str] = Field(default_factory=list)
    grid: list[str] = Field(default_factory=list)
    within: list[str] = Field(default_factory=list)
    checked: bool = True
    nodes: list[str] = Field(default_factory=list)
    operators: list[str] = Field(default_factory=list)
    model: list[ModelLocation] = Field(default_factory=list)
    folded_frames: int = 0
    told_by: str = "none"


class KernelFact(Record):
    """One kernel: where its source stands, what it checks, who launches it. `asserts` read `line N:
    condition`.
    """

    kind_of_fact: Literal["kernel"] = "kernel"
    name: str
    kind: str
    symbol: str
    launches: list[int]
    parameters: list[str]
    location: str
    asserts: list[str] = Field(default_factory=list)
    grid: list[str] = Field(default_factory=list)
    warps: int | None = None
    shared_bytes: int | None = None
    binary: str = ""
    source: str = ""


class BufferFact(Record):
    """One tensor of the wrapper. `shares_memory_with` lists other names of its storage.

    Sizes and strides (elements) are expressions over the symbols. The slices are numbers of launches and
    names.
    """

    kind_of_fact: Literal["buffer"] = "buffer"
    name: str
    kind: str
    line: int
    shape: str
    strides: str
    dtype: str = ""
    device: str = ""
    base: str = ""
    shares_memory_with: list[str] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)
    read_by: list[int] = Field(default_factory=list)
    computed_by: list[int] = Field(default_factory=list)
    computed_by_launches: int = 0
    from_inputs: list[str] = Field(default_factory=list)
    from_constants: list[str] = Field(default_factory=list)
    never_set: list[str] = Field(default_factory=list)
    freed_at_line: int | None = None


class SymbolFact(Record):
    """One symbolic size: its definition back to inputs, and every line of run_impl that uses it."""

    kind_of_fact: Literal["symbol"] = "symbol"
    name: str
    definition: str
    line: int
    meaning: str
    known_only_at_run_time: bool
    lines: list[int]
    used_on_lines: int
    launches: list[int]
    used_by_launches: int


class InputFact(Record):
    """One model input: what it must look like, who reads it, and what a bad value in it can reach."""

    kind_of_fact: Literal["input"] = "input"
    index: int
    name: str
    path: str
    dtype: str
    shape: str
    ranges: list[str] = Field(default_factory=list)
    read_by: list[int] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)
    reaches: list[int] = Field(default_factory=list)
    reaches_launches: int = 0
    reaches_outputs: list[int] = Field(default_factory=list)


class ConstantFact(Record):
    """One constant: its name in the user's model, and who reads or writes it."""

    kind_of_fact: Literal["constant"] = "constant"
    index: int
    name: str
    fqn: str
    dtype: str
    shape: list[int]
    kind: str
    read_by: list[int] = Field(default_factory=list)
    written_by: list[int] = Field(default_factory=list)


class AssertionFact(Record):
    """One launch at which an index assertion may have failed, with the chain of facts and a fix."""

    kind_of_fact: Literal["assertion"] = "assertion"
    launch: int
    kernel: str
    location: str
    condition: str
    bound: str
    lowest: str
    facts: list[str]
    index_from: list[str]
    model: list[ModelLocation] = Field(default_factory=list)
    told_by: str
    fix: Fix


Fact = LaunchFact | KernelFact | BufferFact | SymbolFact | InputFact | ConstantFact | AssertionFact
