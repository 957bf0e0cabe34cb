"""A package with derived data for queries, computed on first use and cached."""

from collections.abc import Collection
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

from mcp_server.errors import ProblemError
from mcp_server.model import ModelLocation
from mcp_server.package.archive import Package, open_package
from mcp_server.package.assertion import Tracer
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.exported import Provenance, read_provenance
from mcp_server.package.launches import Launch
from mcp_server.package.wrapper import Wrapper, grouped

_CUBIN_LIMIT = 64 << 20
_LISTED = 12


class PackageView:
    """One model of a package: archive, wrapper, dataflow, provenance."""

    def __init__(self, package: Package) -> None:
        self.package = package

    @property
    def wrapper(self) -> Wrapper:
        return self.package.wrapper

    @property
    def flow(self) -> Dataflow:
        return self.package.flow

    @cached_property
    def folding_flow(self) -> Dataflow | None:
        """The dataflow of constant folding. None if there is no constant folding."""
        return Dataflow(self.wrapper.folding) if self.wrapper.folding else None

    def flow_of(self, launch: Launch) -> Dataflow:
        """The dataflow of the function that contains a launch."""
        return self.flow if launch.function == self.wrapper.run.name else self.folding_flow or self.flow

    def folding_launches(self, constant: str | None = None) -> tuple[Launch, ...]:
        """Launches that fold constants before the first call, or only those for the given constant."""
        flow = self.folding_flow
        if flow is None or constant is None:
            return flow.body.launches if flow else ()
        name = flow.body.outputs.get(self.wrapper.folded.get(constant, -1), "")
        return tuple(flow.body.launches[number] for number in flow.backward(name).launches)

    @cached_property
    def tracer(self) -> Tracer:
        return Tracer(self)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The launches that read each storage."""
        return grouped((use.storage, n) for n, step in self.flow.launch_steps for use in step.reads)

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """The launches that write each storage."""
        return grouped((use.storage, n) for n, step in self.flow.launch_steps for use in step.writes)

    @cached_property
    def readers_of_name(self) -> dict[str, list[int]]:
        """The launches that read a variable by this name, not through an alias."""
        return grouped((name, n.index) for n in self.wrapper.launches for name in n.reads)

    @cached_property
    def writers_of_name(self) -> dict[str, list[int]]:
        """The launches that write a variable by this name, not through an alias."""
        return grouped((name, n.index) for n in self.wrapper.launches for name in n.writes)

    @cached_property
    def sharing(self) -> dict[int, list[str]]:
        """The variables of each storage."""
        return grouped((buffer.storage, buffer.name) for buffer in self.wrapper.buffers.values())

    @cached_property
    def launches_at(self) -> dict[tuple[str, int], list[int]]:
        """The launches of each line of the user's model."""
        return grouped(
            ((location.file, location.line), launch.index)
            for launch in self.wrapper.launches
            for location in self.provenance(launch).locations
        )

    def provenance(self, launch: Launch) -> Provenance:
        return read_provenance(launch, self.package.kernel_information)

    def label(self, name: str | None) -> str:
        """A readable name for a wrapper variable: an input, a constant, or a buffer."""
        for compiled in self.package.inputs:
            if compiled.name == name:
                return compiled.label
        for constant in self.package.constants:
            if constant.name == name:
                return f"constant {constant.fqn} of shape {list(constant.shape)}"
        return name or "?"

    def launch(self, number: int | None) -> Launch | None:
        """The launch with this number, or None."""
        launches = self.wrapper.launches
        return launches[number] if number is not None and 0 <= number < len(launches) else None

    def known_launch(self, number: int) -> Launch:
        """The launch with this number. Raises `ProblemError` if there is none."""
        found, count = self.launch(number), len(self.wrapper.launches)
        if found is None:
            allowed = f"0 to {count - 1}" if count else "none: no launch could be read"
            raise ProblemError("no such launch", value=number, allowed=allowed)
        return found

    def launches_of_line(self, line: str) -> list[int]:
        """List the launches of a model line, `FILE.py:LINE` or `LINE`; FILE may be the end of a path.

        Raise `ProblemError` if no launch is known to come from the line.
        """
        file, _, number = line.removeprefix("./").rpartition(":")
        if not number.isdigit():
            raise ProblemError("not a model line", value=line, allowed="FILE.py:LINE, such as model.py:42")
        known = self.launches_at
        places = [p for p in known if p[1] == int(number) and (not file or f"/{p[0]}".endswith(f"/{file}"))]
        if not places:
            lines = ", ".join(f"{PurePosixPath(at).name}:{n}" for at, n in sorted(known)[:_LISTED])
            unknown = (
                "a package with model lines: compile it with INDUCTOR_PROVENANCE=1 (torch 2.9 and later)"
            )
            what = "no launch is known to come from this line"
            raise ProblemError(what, value=line, allowed=lines or unknown)
        return sorted({launch for place in places for launch in known[place]})

    def locations(self, number: int | None) -> list[ModelLocation]:
        """The lines of the user's model that a launch comes from. Empty if unknown."""
        launch = self.launch(number)
        return list(self.provenance(launch).locations) if launch else []

    def inputs_behind(self, launch: int) -> list[str]:
        """The labels of the model inputs on which a launch depends."""
        return [self.label(name) for name in self.flow.backward_from(launch).inputs]

    def kernels_of_file(self, file: str) -> Collection[str]:
        """List kernels whose cubin contains the name of the generated Python file as plain text."""
        needle = Path(file).name.encode()
        binaries = {PurePosixPath(m.name).name: m.name for m in self.package.files.kernel_binaries}
        names: set[str] = set()
        for kernel in self.wrapper.kernels.values():
            if member := binaries.get(kernel.cubin):
                with self.package.container.open(member) as stream:
                    if needle in stream.read(_CUBIN_LIMIT):
                        names.add(kernel.name)
        return names


def view_package(path: Path, model_name: str | None = None) -> PackageView:
    """Open and parse a package; cached while the file is unchanged. May raise `PackageError`.

    With thousands of launches, this takes seconds: do not call it in the event loop.
    """
    if not path.is_file():
        return _parsed.__wrapped__(path, model_name, 0, 0)
    facts = path.stat()
    return _parsed(path.resolve(), model_name, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4)
def _parsed(path: Path, model_name: str | None, _changed_ns: int, _size: int) -> PackageView:
    view = PackageView(open_package(path, model_name))
    _ = view.flow, view.folding_flow
    return view
