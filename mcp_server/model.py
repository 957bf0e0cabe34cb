"""The types that all layers share: workloads, components, verdicts.

Field names of `Verdict` are part of the public JSON. History of `FORMAT_VERSION`:
  1  first release
  2  added: causes, intervention, bystanders, elements, expression, waited_s, what a fix did
  3  added: headline, call, eager, confirmed (has what a fix did), remarks; `fix.action` became `fix.text`
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 3

Category = Literal[
    "device_mismatch",
    "input_mismatch",
    "shape_out_of_range",
    "index_out_of_bounds",
    "illegal_memory_access",
    "nan_or_inf",
    "wrong_output",
    "custom_op",
    "constants",
    "invalid_package",
    "arch_mismatch",
    "toolchain",
    "compile_failure",
    "out_of_memory",
    "hang",
    "concurrency",
    "environment",
    "script_error",
    "cost",
]

CATEGORIES: dict[Category, str] = {
    "device_mismatch": "package, load or inputs on different device types, or a bad device index",
    "input_mismatch": "dtype, rank, static size, stride, count, order or structure of inputs",
    "shape_out_of_range": "a dynamic dimension outside the compiled range, or violating a guard",
    "index_out_of_bounds": "an index read from a tensor is out of bounds, with or without an assertion",
    "illegal_memory_access": "an out-of-bounds or misaligned access in a kernel",
    "nan_or_inf": "non-finite values first produced by some kernel, or a matrix without an inverse",
    "wrong_output": "numbers that differ from the expected ones, with no error reported",
    "custom_op": "a fake function that disagrees with the real op, or an op that is not registered",
    "constants": "weights missing, of wrong shape or dtype, stale, or updated wrongly",
    "invalid_package": "a missing, truncated, outdated or wrong file",
    "arch_mismatch": "the package's GPU architecture or CPU ISA does not fit this machine",
    "toolchain": "compiler, linker, dlopen, libstdc++, undefined symbol, ABI",
    "compile_failure": "export, lowering, Triton or C++ code generation fails",
    "out_of_memory": "device or host memory ran out, even if the error text says something else",
    "hang": "no end within the time limit",
    "concurrency": "threads, streams, CUDA graphs, runner sharing, aliased or freed inputs",
    "environment": "driver, visible devices, missing tools, permissions, temp space",
    "script_error": "the user's own code fails outside AOTInductor",
    "cost": "time or memory that a change saves in a call, a load, a build or the surrounding program",
}

FAILURES = tuple(category for category in CATEGORIES if category != "cost")
"""Categories of failures; a call that costs too much is not a failure."""

CostSymptom = Literal["slow", "slow-load", "slow-build"]
Outcome = Literal["fault", "no_fault", "inconclusive"]
Confidence = Literal["proven", "likely", "possible"]
ComponentKind = Literal[
    "input", "kernel", "op", "constant", "package", "toolchain", "environment", "script", "call"
]


class Record(BaseModel):
    """An immutable value without unknown fields. It can also be validated from an object's attributes."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class TensorSpec(Record):
    """One input tensor to generate: shape in elements, values uniform in [low, high]."""

    shape: list[Annotated[int, Field(ge=0)]]
    dtype: str = "float32"
    device: str = "cpu"
    stride: list[int] | None = None
    low: float | None = None
    high: float | None = None


class WorkloadBase(Record):
    """The fields of every workload. `timeout_s` is wall-clock seconds for one run."""

    cwd: Path | None = None
    env: dict[str, str] = Field(default_factory=dict)
    python: Path | None = None
    timeout_s: float = Field(default=300, gt=0, le=86_400)


class ScriptWorkload(WorkloadBase):
    """A Python file that builds, compiles, loads or runs something."""

    kind: Literal["script"] = "script"
    script: Path
    args: list[str] = Field(default_factory=list)


class PackageWorkload(WorkloadBase):
    """A .pt2 AOTInductor package and its inputs: a `torch.save`d file or a list of specs."""

    kind: Literal["package"] = "package"
    package: Path
    inputs: Path | list[TensorSpec] | None = None
    model_name: str = "model"
    device_index: int = -1
    extra_imports: list[str] = Field(default_factory=list)


class ExportedWorkload(WorkloadBase):
    """A `torch.export.save`d program, which we compile and run."""

    kind: Literal["exported"] = "exported"
    exported: Path
    inputs: Path | list[TensorSpec] | None = None
    extra_imports: list[str] = Field(default_factory=list)


class CommandWorkload(WorkloadBase):
    """Any program as an argument list, such as a C++ host."""

    kind: Literal["command"] = "command"
    argv: list[str] = Field(min_length=1)


Workload = Annotated[
    ScriptWorkload | PackageWorkload | ExportedWorkload | CommandWorkload, Field(discriminator="kind")
]


class Attached(Record):
    """A running process to look at, and its package. None: read the package that it has unpacked."""

    pid: int
    package: Path | None = None


class ModelLocation(Record):
    """A line of the user's model."""

    file: str
    line: int
    code: str = ""


class Component(Record):
    """The component that caused a failure, or where the failure showed.

    `elements` are the first elements at fault in an input or buffer, such as `args[1][2, 17] = 731`;
    `expression` is the computation of these elements, over the model's tensors.
    """

    kind: ComponentKind
    name: str
    input_index: int | None = None
    dim: int | None = None
    launch_index: int | None = None
    generated_location: str | None = None
    model_locations: list[ModelLocation] = Field(default_factory=list)
    value: str | None = None
    elements: list[str] = Field(default_factory=list)
    expression: str | None = None


class Evidence(Record):
    """One observed fact, where it was read, and a shell line that shows it again."""

    step: str
    fact: str
    source: str = ""
    command: str = ""


PROOF_FILE = "proof.py"  # short script of a proven verdict that repeats its experiment
SUBJECT_FILE = "subject.json"  # what a job diagnosed, for its report and bundle


class RuledOut(Record):
    """A finding that is not the cause: a symptom that the cause explains, or what was ruled out."""

    hypothesis: str
    by: str


class FixRun(Record):
    """The run of a fix: the command that repeats it, and the result of the call."""

    result: str
    command: str = ""


class Fix(Record):
    """The change to ship. `before` and `after` are its code; None if code would not help.

    `ran` is set if the call was made with exactly this change and succeeded. A clamp, a guard or a replaced
    element can only confirm a cause (`Confirmed`).
    """

    text: str
    before: str | None = None
    after: str | None = None
    ran: FixRun | None = None


CHECK = "if "  # beginning of a fix that only rejects bad values


def rejecting(when: str, rule: str) -> str:
    """Code that raises ValueError if `when` is true; unlike assert, also under `python -O`."""
    return f"{CHECK}{when}: raise ValueError({rule!r})"


def outside(name: str, low: object, high: object) -> str:
    """Code that rejects a tensor with elements outside `low` to `high`; empty tensors pass."""
    return rejecting(f"(({name} < {low}) | ({name} > {high})).any()", f"{name} must be in {low}..{high}")


class Confirmed(Record):
    """The experiment that confirms a cause: one change of the failing call, and its result.

    `before`, `after` and `again` say how the call ended: unchanged, with the change `what`, and without it
    once more. `side_effects` says what else in the outputs changed. `not_for_shipping` says what would be
    wrong if the change were shipped; empty if it is the fix. `subject` is what was timed, if not a call.
    """

    what: str
    subject: str = "call"
    before: str
    after: str
    again: str
    command: str = ""
    side_effects: str = ""
    not_for_shipping: str = ""


class InterventionRun(Record):
    """One change to the failing call: how the call ended before and with it, and the result."""

    what: str
    before: str
    after: str
    result: Literal["gone", "changed", "same", "not_applicable"]
    command: str = ""


class Cause(Component):
    """A component that caused the failure. Several are listed in the order in which to fix them."""

    category: Category
    confidence: Confidence
    summary: str = ""
    intervention: InterventionRun | None = None


class NextStep(Record):
    """A tool call that would settle an open question. `arguments` fit the tool's schema."""

    why: str
    tool: str
    arguments: dict[str, object] = Field(default_factory=dict)


class Artifact(Record):
    """A file that a step left behind."""

    uri: str
    path: Path
    bytes: int
    what: str


class Cost(Record):
    """What the answer cost: workload runs, compiles, and wall-clock seconds.

    During `waited_s` of these seconds another job had the GPU; they do not count against the budget.
    """

    runs: int = 0
    compiles: int = 0
    wall_s: float = 0.0
    waited_s: float = 0.0


class CallNumber(Record):
    """Which call of a process was examined, counted from 1, and how many calls the process made."""

    number: int = Field(ge=1)
    of: int = Field(ge=1)


Eager = Literal["same", "differs", "varies", "not_known"]


class Verdict(Record):
    """The answer of `diagnose`.

    `proven` rests on a run that aoti-debug made: the failure disappeared when the cause was removed and
    returned with it (`intervention`), or the system rejected a part by name. `causes` are in the order in
    which to fix them. A run showed that the defects in `bystanders` are not the cause. `headline` names the
    failure in common words. `eager` says whether the model fails in the same way without the compiler.
    `remarks` are other facts; `program` is the code of the launch at fault, translated to PyTorch.
    """

    format_version: int = FORMAT_VERSION
    outcome: Outcome
    category: Category | None = None
    confidence: Confidence = "possible"
    headline: str = ""
    summary: str
    call: CallNumber | None = None
    eager: Eager = "not_known"
    guilty: Component | None = None
    crashing: Component | None = None
    program: list[str] = Field(default_factory=list)
    causes: list[Cause] = Field(default_factory=list)
    intervention: InterventionRun | None = None
    evidence: list[Evidence] = Field(default_factory=list)
    bystanders: list[RuledOut] = Field(default_factory=list)
    ruled_out: list[RuledOut] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    fix: Fix | None = None
    confirmed: Confirmed | None = None
    next_steps: list[NextStep] = Field(default_factory=list)
    decisions: list[str] = Field(default_factory=list)
    cost: Cost = Field(default_factory=Cost)
    artifacts: list[Artifact] = Field(default_factory=list)
