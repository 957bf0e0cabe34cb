"""Python tracebacks and faulthandler stacks in a stream of lines, chained exceptions included."""

from __future__ import annotations

import re
from typing import Literal

from mcp_server.logs.facts import Frame, PythonException, Relation, ThreadStack
from mcp_server.logs.text import bound

Role = Literal["none", "frame", "exception", "message"]

MAX_FRAMES = 120
MAX_MESSAGE_LINES = 60
MAX_KEPT = 40
MAX_STRAYS = 5

_START = "Traceback (most recent call last):"
_STACK_START = re.compile(
    r"\s*(?P<thread>(?:Current thread|Thread|Stack).*?)\s*\(most recent call first\):\s*$"
)
_FRAME = re.compile(
    r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+)| in (?P<fault>.+))?'
)
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
# What a name of an exception looks like; any word may stand after frames that no header announced.
_CERTAIN = re.compile(r"(?:Error|Exception|Interrupt|Exit|Failure|Timeout)$|\.[A-Z]\w+$")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen |^<__array_function__|"
    r"[/\\]mcp_server[/\\]worker[/\\]|[/\\]c[a-z2-7]{51}\.py$|[/\\]torch[/\\](?:_inductor|_dynamo|export|fx|_functorch)[/\\]"
)
_RELATIONS: dict[str, Relation] = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "during",
}


def is_user_file(file: str) -> bool:
    """False for installed libraries, the standard library, code that Inductor wrote, and our own hook."""
    return _LIBRARY.search(file) is None


class TracebackReader:
    """Feed it the lines of one process; it tells what each line is, and keeps what was complete.

    `logged` is set from outside, by who saw the line before the traceback. `headless`: the log begins, or
    goes on after a gap, within the frames of a traceback.
    """

    def __init__(self, process: str = "") -> None:
        self.process = process
        self.exceptions: list[PythonException] = []
        self.threads: list[ThreadStack] = []
        self.open_since = 0
        self.logged = False
        self.headless = False
        self._indent = ""
        self._orphans = 0
        self._frames: list[Frame] = []
        self._relation: Relation = ""
        self._message_lines = 0
        self._stack: tuple[str, bool, int] | None = None

    @property
    def busy(self) -> bool:
        """Whether the next line may belong to a traceback that has begun."""
        return self.open_since > 0 or self._stack is not None or self._message_lines > 0

    def feed(self, text: str, number: int) -> Role:
        """Take one line and say what it is."""
        if _START in text:
            self._begin(number)
            self._indent = before if not (before := text.partition(_START)[0]).strip() else ""
            return "frame"
        if "most recent call first" in text and (stack := _STACK_START.match(text)):
            self._begin_stack(stack["thread"], number)
            return "frame"
        if self._stack is not None:
            return self._feed_stack(text)
        if self.open_since:
            return self._feed_frames(text.removeprefix(self._indent), number)
        if self._message_lines == 0 and (frame := _FRAME.match(text)) and frame["function"]:
            self._begin(number)
            self.headless = True
            self._add_frame(frame)
            return "frame"
        return self._feed_message(text)

    def finish(self) -> None:
        """The stream ended: keep a stack that was being read."""
        self._end_stack()

    def _begin(self, number: int) -> None:
        self._end_stack()
        self.open_since, self._frames, self._message_lines = number, [], 0
        self.headless, self._indent, self._orphans = False, "", 0

    def _feed_frames(self, text: str, number: int) -> Role:
        body = text.lstrip("|+ ") if text.lstrip().startswith(("|", "+")) else text
        frame = _FRAME.match(body)
        if frame:
            self._add_frame(frame)
            return "frame"
        if text.startswith("  ") or not text.strip():
            self._add_code(text.strip())
            return "frame"
        found = _EXCEPTION.match(body)
        if found is None or (self.headless and not _CERTAIN.search(found["type"])):
            self._orphan()
            return "none"
        self._end_exception(found["type"], found["message"] or "", number)
        return "exception"

    def _orphan(self) -> None:
        """A line that is none of the traceback's: frames without a header may have been something else."""
        self._orphans += 1
        if self.headless and self._orphans > MAX_STRAYS:
            self.open_since, self._frames = 0, []

    def _end_exception(self, type_name: str, message: str, number: int) -> None:
        exception = PythonException(
            type_name,
            bound(message),
            tuple(self._frames),
            number,
            self._relation,
            self.process,
            self.logged,
        )
        if len(self.exceptions) >= MAX_KEPT:
            del self.exceptions[MAX_KEPT // 2]
        self.exceptions.append(exception)
        self.open_since, self._relation, self._message_lines = 0, "", MAX_MESSAGE_LINES

    def _add_frame(self, found: re.Match[str]) -> None:
        file = found["file"]
        function = (found["function"] or found["fault"] or "").strip()
        frame = Frame(bound(file, 300), int(found["line"]), bound(function, 200), user=is_user_file(file))
        if len(self._frames) >= MAX_FRAMES:
            del self._frames[MAX_FRAMES // 2]
        self._frames.append(frame)

    def _add_code(self, code: str) -> None:
        if self._frames and code and not self._frames[-1].code and code.strip("^~ "):
            last = self._frames[-1]
            self._frames[-1] = Frame(last.file, last.line, last.function, bound(code, 200), last.user)

    def _feed_message(self, text: str) -> Role:
        relation = _RELATIONS.get(text.strip(" |"))
        if relation is not None:
            self._relation = relation
            return "frame"
        if self._message_lines > 0:
            self._message_lines -= 1
            return "message"
        return "none"

    def _begin_stack(self, thread: str, number: int) -> None:
        self._end_stack()
        self.open_since = 0
        self._stack, self._frames = (bound(thread, 100), thread.startswith("Current"), number), []

    def _feed_stack(self, text: str) -> Role:
        found = _FRAME.match(text)
        if found:
            self._add_frame(found)
            return "frame"
        if text.startswith("  "):
            return "frame"
        self._end_stack()
        return "none"

    def _end_stack(self) -> None:
        if self._stack is None:
            return
        thread, current, number = self._stack
        if len(self.threads) < MAX_KEPT:
            self.threads.append(ThreadStack(thread, current, tuple(reversed(self._frames)), number))
        self._stack, self._frames = None, []
