"""Typed facts about one log."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mcp_server.logs.families import Family, Rank
from mcp_server.logs.sanitizer import SanitizerReport
from mcp_server.model import Category

# How the text of an uncaught error begins: from Python, pytest, the C++ runtime, the shims of generated code,
# compilers (GCC, Clang, MSVC, ptxas), linkers and device assertions.
_FATAL = re.compile(
    r"\s*(?:E +)?(?:what\(\):|Error: |.*\bException in aoti_torch: |.*\bError: input_handles\[|"
    r"(?:\w+\.)*\w*(?:Error|Exception)(?:: |$)|"
    r"(?:\w+\.)+[A-Z]\w+: |=========|==\d+==|\S+:\d+(?::\d+)?: |.*\berror: |.*\berror (?:[A-Z]+\d{4})|"
    r"ptxas\b.{0,200}?(?:fatal|error) *: |.*: block: \[[\d,]+\], thread: )"
)

# The shims of generated code print every error, even one that the program handles later.
_SHIM_ERROR = re.compile(r".*\bException in aoti_torch: ")
# How the continuation lines of a shim error begin.
_SHIM_MORE = re.compile(r"\s|frame #|Error: |Exception |\[|$")

Relation = Literal["", "cause", "during"]


@dataclass(frozen=True)
class Frame:
    """One Python frame. `user` is False for installed libraries and for code that Inductor wrote."""

    file: str
    line: int
    function: str
    code: str = ""
    user: bool = True


@dataclass(frozen=True)
class PythonException:
    """One exception of a traceback; frames are outermost first.

    `relation` says how the exception followed the previous one in the log: raised `from` it ("cause"), or
    while it was handled ("during"). `logged`: a logger printed the traceback, so the program caught it.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]
    line: int
    relation: Relation = ""
    process: str = ""
    logged: bool = False

    @property
    def user_frames(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.frames if frame.user)


@dataclass(frozen=True)
class ThreadStack:
    """A stack printed by faulthandler. Frames are outermost first."""

    thread: str
    current: bool
    frames: tuple[Frame, ...]
    line: int

    @property
    def frames_of_user(self) -> tuple[Frame, ...]:
        return tuple(frame for frame in self.frames if frame.user)


@dataclass(frozen=True)
class ErrorFact:
    """One error text. `line` counts from 1; `count` is how often the text occurs.

    `candidates` are the family's categories, reordered by the rest of the log.
    """

    family: Family
    fields: dict[str, str]
    line: int
    text: str
    candidates: tuple[Category, ...]
    count: int = 1
    process: str = ""
    exception: PythonException | None = None

    @property
    def rank(self) -> Rank:
        return self.family.rank

    @property
    def category(self) -> Category | None:
        """The category if only one candidate is left; otherwise None."""
        return self.candidates[0] if len(self.candidates) == 1 else None


@dataclass(frozen=True)
class LastLaunch:
    """A launch that the value printer announced but did not report as finished.

    `finished` counts the launches that finished before it.
    """

    kernel: str
    line: int
    finished: int
    process: str = ""


@dataclass(frozen=True)
class LogFacts:
    """The facts of one log, limited in size.

    `root` is the error that explains the others. None if no family matched: `best_lines` then show the user
    where to look. `locations` are lines of generated code, such as `wrapper.cpp:12`. `truncated` says why the
    log seems incomplete. Empty if it seems complete.
    """

    root: ErrorFact | None
    errors: tuple[ErrorFact, ...] = ()
    exceptions: tuple[PythonException, ...] = ()
    threads: tuple[ThreadStack, ...] = ()
    sanitizer: SanitizerReport | None = None
    last_launch: LastLaunch | None = None
    launches: int = 0
    locations: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    processes: tuple[str, ...] = ()
    lines: int = 0
    dropped_errors: int = 0
    truncated: str = ""
    best_lines: tuple[tuple[int, str], ...] = ()
    tail: tuple[tuple[int, str], ...] = ()

    @property
    def fatal(self) -> bool:
        """Whether the root error ended a process or a compile. False if the program handled the error."""
        if self.root is None:
            return False
        if any("ending" in error.family.tags for error in self.errors):
            return True
        if self.root.family.stage == "compile" and any("build_tool" in e.family.tags for e in self.errors):
            return True
        if self.root.exception is not None:
            return not self.root.exception.logged
        if all(exception.logged for exception in self.exceptions) and _SHIM_ERROR.match(self.root.text):
            # Other output after an error that a shim printed means that the program handled the error.
            number, text = self.tail[-1] if self.tail else (0, "")
            if number > self.root.line and _SHIM_MORE.match(text) is None:
                return False
        return _FATAL.match(self.root.text) is not None

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user's frames that lead to the root, outermost first."""
        exception = self.root.exception if self.root else None
        if exception is not None and exception.user_frames:
            return exception.user_frames
        current = next((thread for thread in self.threads if thread.current), None)
        if current is not None:
            return current.frames_of_user
        chain = last_chain(self.exceptions)
        return next((known.user_frames for known in chain if known.user_frames), ())


def last_chain(exceptions: Sequence[PythonException]) -> list[PythonException]:
    """The last traceback with the exceptions that led to it, the original one first."""
    chain: list[PythonException] = []
    for exception in reversed(exceptions):
        chain.insert(0, exception)
        if not exception.relation:
            break
    return chain
