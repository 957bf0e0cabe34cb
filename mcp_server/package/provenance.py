"""From a launch to the user's model: graph nodes and stack frames, and which source told it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch

Source = Literal["kernel_information", "context_guard", "comments", "none"]

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?'
    r"(?:\n +(?P<code>[^\n]*))?"
)
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python\d"
    r"|[/\\]torch[/\\](?:nn|fx|export|_\w+)[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame of the trace of the model, outermost first in a stack. `line` is 1-based."""

    file: str
    line: int
    function: str
    code: str

    @property
    def library(self) -> bool:
        """Whether this is torch or another installed package, or generated code, and not the user's file."""
        return bool(_LIBRARY.search(self.file))


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a launch comes from.

    `source`: `kernel_information` (compiled with INDUCTOR_PROVENANCE=1) and `context_guard` (compiled with
    TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1) know stack frames; `comments` know graph nodes only; C++
    kernels carry no comment, so that `none` is left. `stacks` keep all frames.
    """

    source: Source
    post_grad: tuple[str, ...] = ()
    pre_grad: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()

    @property
    def locations(self) -> tuple[ModelLocation, ...]:
        """The user's own line of each stack, innermost, each once."""
        found = {}
        for stack in self.stacks:
            own = [frame for frame in stack if not frame.library]
            if own:
                frame = own[-1]
                found[frame.file, frame.line] = ModelLocation(
                    file=frame.file, line=frame.line, code=frame.code
                )
        return tuple(found.values())

    @property
    def folded(self) -> int:
        """How many library frames `locations` leaves out."""
        return sum(frame.library for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a Python traceback text."""
    return tuple(
        Frame(m["file"], int(m["line"]), (m["function"] or "").strip(), (m["code"] or "").strip())
        for m in _FRAME.finditer(text)
    )


def read_provenance(launch: Launch, information: Mapping[str, object]) -> Provenance:
    """The best that is known of a launch; `information` is the package's kernel_information.json, maybe
    empty.
    """
    entry = information.get(f"{launch.kernel}:{launch.handle}") if launch.handle is not None else None
    if isinstance(entry, Mapping):
        return Provenance(
            "kernel_information",
            _texts(entry.get("post_grad_nodes")),
            _texts(entry.get("pre_grad_nodes")),
            launch.atens,
            tuple(stack for text in _texts(entry.get("stack_traces")) if (stack := read_stack(text))),
        )
    if launch.stack.strip():
        return Provenance("context_guard", launch.sources, (), launch.atens, _guard_stacks(launch.stack))
    if launch.sources or launch.atens:
        return Provenance("comments", launch.sources, (), launch.atens)
    return Provenance("none")


def _guard_stacks(text: str) -> tuple[tuple[Frame, ...], ...]:
    """A guard holds several tracebacks, parted by blank lines."""
    return tuple(stack for part in re.split(r"\n\s*\n", text) if (stack := read_stack(part)))


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        return ()
    return tuple(item for item in value if isinstance(item, str))
