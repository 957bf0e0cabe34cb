"""Python tracebacks and faulthandler stacks in a stream of lines, chained exceptions included."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from mcp_server.logs.facts import Frame, PythonException, Relation, ThreadStack
from mcp_server.logs.text import bound

Role = Literal["none", "frame", "exception", "message"]

MAX_FRAMES = 120
MAX_MESSAGE_LINES = 60
MAX_KEPT = 40
MAX_ORPHANS = 5

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
    r"[/\\]mcp_server[/\\]worker[/\\]|[/\\]c[a-z2-7]{51}\.py$|[/\\]torch[/\\](?:nn|fx|export|_\w+)[/\\]"
)
_RELATIONS: dict[str, Relation] = {
    "The above exception was the direct cause of the following exception:": "cause",
    "During handling of the above exception, another exception occurred:": "during",
}


def is_user_file(file: str) -> bool:
    """False for installed libraries, the standard library, code that Inductor wrote, and our own hook."""
    return _LIBRARY.search(file) is None


class TracebackReader:
    """Reads the lines of one process: classifies each line, and keeps complete exceptions and stacks.

    `logged` is set by the caller, who knows the line before the traceback. `headless`: the log begins, or
    goes on after a gap, within the frames of a traceback.
    """

    def __init__(self, process: str = "") -> None:
        self.process = process
        self.exceptions: list[PythonException] = []
        self.threads: list[ThreadStack] = []
        self.logged = False
        self._relation: Relation = ""
        self._stack: tuple[str, bool, int] | None = None
        self._frames: list[Frame] = []
        self._indent = ""
        self._begin(0)

    @property
    def busy(self) -> bool:
        """Whether the next line may belong to a traceback that has begun."""
        return self.open_since > 0 or self._stack is not None or self._message_lines > 0

    def feed(self, text: str, number: int) -> Role:
        """Take one line and classify it."""
        if _START in text:
            before = text.partition(_START)[0]
            self._begin(number, indent="" if before.strip() else before)
            return "frame"
        if "most recent call first" in text and (stack := _STACK_START.match(text)):
            self.finish()
            self.open_since, self._frames = 0, []
            self._stack = bound(stack["thread"], 100), stack["thread"].startswith("Current"), number
            return "frame"
        frame = _FRAME.match(text)
        if self._stack is not None:
            if frame:
                self._add_frame(frame)
            elif not text.startswith("  "):
                self.finish()
                return "none"
            return "frame"
        if self.open_since:
            return self._feed_frames(text.removeprefix(self._indent), number)
        if self._message_lines == 0 and frame and frame["function"]:
            self._begin(number)
            self.headless = True
            self._add_frame(frame)
            return "frame"
        if relation := _RELATIONS.get(text.strip(" |")):
            self._relation = relation
            return "frame"
        if self._message_lines == 0:
            return "none"
        self._message_lines -= 1
        return "message"

    def finish(self) -> None:
        """Keep a faulthandler stack that was being read: it has no last line."""
        if self._stack is None:
            return
        thread, current, number = self._stack
        if len(self.threads) < MAX_KEPT:
            self.threads.append(ThreadStack(thread, current, tuple(reversed(self._frames)), number))
        self._stack, self._frames = None, []

    def _begin(self, number: int, indent: str = "") -> None:
        self.finish()
        self.open_since, self._frames, self._message_lines = number, [], 0
        self.headless, self._indent = False, indent
        self._orphans = 0  # lines in a headless traceback that are none of its own

    def _feed_frames(self, text: str, number: int) -> Role:
        body = text.lstrip("|+ ") if text.lstrip().startswith(("|", "+")) else text
        if frame := _FRAME.match(body):
            self._add_frame(frame)
            return "frame"
        if text.startswith("  ") or not text.strip():
            code = text.strip()
            if self._frames and not self._frames[-1].code and code.strip("^~ "):
                self._frames[-1] = replace(self._frames[-1], code=bound(code, 200))
            return "frame"
        found = _EXCEPTION.match(body)
        if found is None or (self.headless and not _CERTAIN.search(found["type"])):
            self._orphans += 1
            if self.headless and self._orphans > MAX_ORPHANS:  # the frames were something else
                self.open_since, self._frames = 0, []
            return "none"
        message = bound(found["message"] or "")
        exception = PythonException(
            found["type"], message, tuple(self._frames), number, self._relation, self.process, self.logged
        )
        if len(self.exceptions) >= MAX_KEPT:
            del self.exceptions[MAX_KEPT // 2]
        self.exceptions.append(exception)
        self.open_since, self._relation, self._message_lines = 0, "", MAX_MESSAGE_LINES
        return "exception"

    def _add_frame(self, found: re.Match[str]) -> None:
        file = found["file"]
        function = (found["function"] or found["fault"] or "").strip()
        frame = Frame(bound(file, 300), int(found["line"]), bound(function, 200), user=is_user_file(file))
        if len(self._frames) >= MAX_FRAMES:
            del self._frames[MAX_FRAMES // 2]
        self._frames.append(frame)
