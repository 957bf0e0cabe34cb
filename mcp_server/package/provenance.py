"""Maps a launch to lines of the user's model.

`torch.export` records only frames named `forward` (torch 2.13), so for an operator in a helper it records the
line that calls the helper. If the program runs under the capture hook, the helper's own line is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mcp_server.logs.facts import Frame
from mcp_server.logs.text import is_user_file
from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch

Source = Literal["kernel_information", "context_guard", "comments", "none"]

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?'
    r"(?:\n +(?P<code>[^\n]*))?"
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a launch in the model.

    `source`: `kernel_information` (compiled with INDUCTOR_PROVENANCE=1) and `context_guard` (compiled with
    TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1) have stack frames; `comments` have only graph nodes; C++
    kernels have no comment, so their source is `none`. `stacks` contain all frames.
    """

    source: Source
    post_grad: tuple[str, ...] = ()
    pre_grad: tuple[str, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()

    @property
    def locations(self) -> tuple[ModelLocation, ...]:
        """The innermost user line of each stack, without duplicates."""
        found = {(at.file, at.line): at for stack in self.stacks if (at := innermost(stack))}
        return tuple(found.values())

    @property
    def folded(self) -> int:
        """The number of library frames that `locations` omits."""
        return sum(not frame.user for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """Parse the frames of a Python traceback, outermost first. A frame without a file is generated code."""
    found = []
    for match in _FRAME.finditer(text):
        function, code = ((match[name] or "").strip() for name in ("function", "code"))
        user = not match["file"].startswith("<") and is_user_file(match["file"])
        found.append(Frame(match["file"], int(match["line"]), function, code, user))
    return tuple(found)


def innermost(stack: Iterable[Frame]) -> ModelLocation | None:
    """Return the innermost line of the user's own code; None if there is none."""
    own = [frame for frame in stack if frame.user]
    return ModelLocation(file=own[-1].file, line=own[-1].line, code=own[-1].code) if own else None


def read_provenance(launch: Launch, information: Mapping[str, object]) -> Provenance:
    """Return the most detailed provenance of a launch. `information` is kernel_information.json, or empty."""
    entry = information.get(f"{launch.kernel}:{launch.handle}") if launch.handle is not None else None
    if isinstance(entry, Mapping):
        listed = (entry.get(name) for name in ("post_grad_nodes", "pre_grad_nodes", "stack_traces"))
        post, pre, texts = (
            tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
            for value in listed
        )
        return Provenance("kernel_information", post, pre, tuple(filter(None, map(read_stack, texts))))
    if launch.stack.strip():
        stacks = map(read_stack, re.split(r"\n\s*\n", launch.stack))  # separated by blank lines
        return Provenance("context_guard", launch.sources, (), tuple(filter(None, stacks)))
    if launch.sources or launch.atens:
        return Provenance("comments", launch.sources)
    return Provenance("none")


INDEXES = re.compile(
    r"embedding|gather\(|scatter|index_\w+\(|take(?:_along_dim)?\(|\.put_?\(|(?<!shape)(?<![\s(=,])\[(?!\])"
)
# Operators that can return infinity or NaN for finite values, by domain errors or overflow.
UNBOUNDED = re.compile(
    r"(?<!/)/(?!/)|\*\*|\b(?:div\w*|exp\w*|log\w*|r?sqrt|pow|float_power|reciprocal|tan|acos\w*|asin|atanh|sinh|cosh"
    r"|softmax|softmin|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inverse|"
    r"linalg|half|bfloat16|float16)\b"
)
DIVIDES = re.compile(r"//|%|\b(?:div\w*|true_divide|floor_divide|remainder|fmod|mod)\(")
_PARAMETERS = frozenset({"weight", "bias"})


def indexing_first(provenance: Provenance, indexed: Collection[str]) -> Provenance:
    """Sort stacks: lines that name the indexed constant's module first, then lines that index. Stable.

    `indexed` lists constants of the model, such as `encoder.tokens.weight`, which code calls `tokens`.
    """
    modules = []
    for constant in indexed:
        names = [part for part in constant.split(".") if not part.isdigit() and part not in _PARAMETERS]
        modules += names[-1:]

    def distance(stack: tuple[Frame, ...]) -> int:
        own = [frame.code for frame in stack if frame.user]
        named = any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)
        return -2 * named - bool(stack and INDEXES.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def unbounded_first(provenance: Provenance) -> Provenance:
    """Sort stacks: operators that can return infinity or NaN for finite values first. Stable."""
    stacks = sorted(provenance.stacks, key=lambda stack: not (stack and UNBOUNDED.search(stack[-1].code)))
    return replace(provenance, stacks=tuple(stacks))
