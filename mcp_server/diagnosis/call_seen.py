"""Facts about the failing call: its package, its inputs, and its exported program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcp_server.diagnosis.program_seen import ProgramSeen
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import ExportedWorkload, ModelLocation, PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.package.exported import ExportedFacts
from mcp_server.package.launches import Launch
from mcp_server.package.mismatch import Mismatch, symbol_values
from mcp_server.package.problems import PackageError
from mcp_server.package.pytorch.text import ConstantValues
from mcp_server.package.signature import CompiledInput
from mcp_server.package.view import PackageView
from mcp_server.tools.check_devices import Given
from mcp_server.worker.protocol import ReplayRequest, Step
from mcp_server.worker.report import TensorFacts


@dataclass(frozen=True)
class CallSpec:
    """A call that the worker can make: `operation` is `run` or `replay`, `request` has its arguments."""

    operation: Literal["run", "replay"]
    request: ReplayRequest
    package: Path
    inputs: Path | None = None

    @property
    def steps(self) -> Sequence[Step]:
        """The steps that a replay makes before the call: loads, updates of constants, earlier calls."""
        return self.request.get("steps", [])

    @property
    def updated(self) -> bool:
        """Whether constants are updated before the call."""
        return any(step["do"] == "constants" for step in self.steps)


@dataclass(frozen=True)
class Writer:
    """An earlier call that wrote to its own input `place`: the same tensor is `input` of the suspect call."""

    input: int
    call: CapturedCall
    place: int
    package: str


@dataclass
class CallSeen(ProgramSeen):
    """The call that the worker can make, and what its package was compiled for."""

    package: Package | None = None
    package_error: PackageError | None = None
    leaves: list[TensorFacts] = field(default_factory=list)
    given: Given | None = None
    exported: ExportedFacts | None = None
    mismatches: tuple[Mismatch, ...] = ()
    call: CallSpec | None = None
    constants_read: tuple[ConstantValues, ...] | None = None  # values of constants in the package
    parsed: PackageView | None = None  # the parsed `package`
    writers: list[Writer] = field(default_factory=list)  # earlier writers of inputs of the suspect call

    @property
    def view(self) -> PackageView | None:
        """Launches, dataflow and model lines of the package. None for a package without a wrapper."""
        if self.parsed is None and self.package is not None and self.package.wrapper_text:
            self.parsed = PackageView(self.package)
        return self.parsed

    @property
    def launches(self) -> tuple[Launch, ...]:
        return self.view.wrapper.launches if self.view is not None else ()

    @property
    def compiled_inputs(self) -> tuple[CompiledInput, ...]:
        return self.package.inputs if self.package is not None else ()

    @property
    def sizes(self) -> dict[str, int]:
        """The values of size symbols in this call, as far as its inputs were described."""
        if self.package is None or self.given is None:
            return {}
        return dict(symbol_values(self.package.signature, self.given.tensors))

    @property
    def lines_in_place(self) -> list[ModelLocation]:
        """The model lines that write in place, according to the exported program."""
        return self.exported.in_place if self.exported is not None else []

    @property
    def named_leaves(self) -> list[tuple[str, TensorFacts]]:
        """The arguments of the call with their paths (`args[1]`). Empty if the inputs were not described."""
        return list(zip(self.given.paths, self.leaves, strict=False)) if self.given is not None else []

    @property
    def inputs(self) -> Any:
        """The inputs of the call: specs, or the file of a captured or given call."""
        if self.call is None:
            return None
        return self.call.inputs if self.call.inputs is not None else self.call.request.get("inputs")

    @property
    def device_index(self) -> int:
        """The index of the device that the call asks for; -1 if it names none."""
        return int(self.call.request.get("device_index", -1)) if self.call is not None else -1

    @property
    def program_path(self) -> Path | None:
        """The exported program that the user gave, or that the compile of the suspect package saved."""
        if isinstance(self.workload, ExportedWorkload):
            return self.workload.exported
        if self.symptom.program is not None:
            return self.symptom.program
        seen = self.captured
        phase = seen.suspect or next(reversed(seen.loads), None)
        compiled = seen.compile_of(phase) if phase is not None else None
        path = compiled.exported if compiled is not None else None
        return path if path is not None and path.exists() else None

    @property
    def judged_by_program(self) -> bool:
        """Whether the user gave the exported program, which makes a difference from eager mode a failure."""
        return isinstance(self.workload, ExportedWorkload) or self.symptom.program is not None

    @property
    def package_call(self) -> PackageWorkload:
        """The call as a workload: the package with its inputs."""
        assert self.call is not None
        request, workload = self.call.request, self.workload
        return PackageWorkload(
            package=self.call.package,
            inputs=self.inputs,
            model_name=request.get("model_name", "model"),
            device_index=self.device_index,
            extra_imports=[str(name) for name in request.get("extra_imports", ())],
            cwd=workload.cwd if workload else None,
            env=workload.env if workload else {},
            python=workload.python if workload else None,
            timeout_s=min(workload.timeout_s, 300) if workload else 300,
        )

    @property
    def device(self) -> str | None:
        return self.package.device_type if self.package else None

    @property
    def only_loaded(self) -> bool:
        """Whether the model was not called because its package needs inputs and none were given."""
        workload, package = self.workload, self.package
        if not isinstance(workload, PackageWorkload) or workload.inputs is not None or package is None:
            return False
        return not package.signature.known or bool(package.inputs)
