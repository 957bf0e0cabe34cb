"""Makes the lines of a log safe to read: removes control characters, limits length, separates prefixes.

`TracebackReader` finds Python tracebacks, including chained exceptions, and faulthandler stacks.
"""

import re
from dataclasses import replace
from typing import Literal, NamedTuple

from mcp_server.jobs.output import clean as without_controls
from mcp_server.logs.facts import Frame, PythonException, Relation, ThreadStack

MAX_LINE = 4_000
_TAIL = 1_000
LONGEST_EXPRESSION = 160
_JOINS = r"(?!(?:and|or|not|mod)\b)"
_WORDS = re.compile(rf"{_JOINS}\b[^\W\d]\w*\s+{_JOINS}[^\W\d]\w*|[`\"]|\w[.!?;:]\s")

# A timestamp and what follows it: the stream and tag of container runtimes (Kubernetes CRI logs), a dash, or
# the host and program of a system journal.
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*[Z\d] (?:std(?:out|err) [FP] |- )?|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}(?:\[\d{1,7}\])?: "
)
# The container name and number that docker compose prints before a bar.
_SERVICE = re.compile(r"[\w.]{1,48}[-_]\d{1,4} +\| ")
_PROCESS = re.compile(
    r"\[?(?:rank|default|local_rank)\s?(?P<named>\d{1,5})\]?:[ ]?|(?P<plain>\d{1,4}): |"
    r"\[(?P<pair>\d{1,5})(?:,\d+)?\]<?(?:stdout|stderr|stdio)>?:\s?|"
    r"\((?:\w{1,48} )?pid=(?P<worker>\d{1,7})(?:, ip=[\d.]{1,15})?\) "
)
_LOGGER = re.compile(
    r"\[?(?P<level>[EWIFV])\d{4,8} \d\d:\d\d:\d\d[.\d]*(?: +\d+)* (?P<source>[^\s\]]+:\d+)\] ?"
)
# Python's `logging` as servers configure it: level, date, location.
_SERVER = re.compile(
    r"(?P<level>[EWIDC])(?:RROR|ARNING|NFO|EBUG|RITICAL) +\d\d-\d\d \d\d:\d\d:\d\d "
    r"\[(?P<source>[\w./]{1,80}:\d{1,6})\] ?"
)
_PREFIX_STARTS = frozenset("[(0123456789rdlEWIFVDCJMASON")


class Line(NamedTuple):
    """One line: its number from 1, the process that printed it ("" = unknown), its logger, its text."""

    number: int
    process: str
    level: str
    source: str
    text: str


def clean(raw: str) -> str:
    """The last version of a redrawn line, without escapes and control characters."""
    text = raw.rstrip("\r\n")
    if not text.isprintable():
        versions = [without_controls(version) for version in text.split("\r")]
        text = next((version for version in reversed(versions) if version.strip()), "")
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE - _TAIL]} … {text[-_TAIL:]}"
    return text


def bound(text: str, limit: int = 500) -> str:
    """At most `limit` characters of `text`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def is_expression(text: str) -> bool:
    """Whether `text` is a short name, path, number or expression. Two words in a row are a sentence."""
    return 0 < len(text) <= LONGEST_EXPRESSION and text.isprintable() and not _WORDS.search(text)


def read_line(raw: str, number: int) -> Line:
    """Split a raw line into its prefixes and its text."""
    text = clean(raw)
    if " | " in text[:64] and (service := _SERVICE.match(text)):
        text = text[service.end() :]
    process = level = source = ""
    if text[:1] not in _PREFIX_STARTS:
        return Line(number, process, level, source, text)
    if stamp := _STAMP.match(text):
        text = text[stamp.end() :]
    if rank := _PROCESS.match(text):
        process = next(value for value in rank.groups() if value is not None)
        text = text[rank.end() :]
    if logger := _LOGGER.match(text) or _SERVER.match(text):
        level, source = logger["level"], logger["source"]
        text = text[logger.end() :]
    return Line(number, process, level, source, text)


# Messages with a fixed form (torch/_inductor/codegen/{cpp,triton}.py and
# torch/csrc/inductor/aoti_runtime/model_base.h, 2.8-2.15), which are safe to quote.
_MESSAGES = (
    re.compile(r"index out of bounds: [-\w ()+*/<>=.]{3,100}"),
    re.compile(r"device-side assert triggered"),
    re.compile(r"an illegal memory access was encountered"),
    re.compile(r"misaligned address"),
    re.compile(r"input_handles\[\d+\]: unmatched [^\n]{3,120}"),
    re.compile(r"(?:CUDA )?out of memory"),
)
_SUFFIX = re.compile(r"(?<=\d)(?:LL|L|UL|ULL)\b")
# The type of an exception, or the function and the line of a C++ header that raised it.
_PREFIX = re.compile(
    r"^\s*(?:what\(\):\s*|(?:\w+\.)*\w*(?:Error|Exception):\s*)?(?:\w+, [^\s,]+\.(?:h|hpp|cpp):\d+, )?"
)
_ARGUMENTS = re.compile(r"(?<=_func_)\(.*")  # arguments of a C function: run_func_( container_handle_, ...
_LONGEST_MESSAGE = 160  # characters of a message inside a sentence


def kernel_message(text: str) -> str:
    """The message of a kernel or check in `text`, shortened, without C++ frames. Empty if absent."""
    found = next((match for match in (message.search(text) for message in _MESSAGES) if match), None)
    return _SUFFIX.sub("", bound(found[0].strip(), _LONGEST_MESSAGE)) if found else ""


def short_message(text: str) -> str:
    """The message of a kernel in `text`, or else the first line without its prefix, shortened."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    first = _ARGUMENTS.sub("(...)", _PREFIX.sub("", first).strip())
    return kernel_message(text) or bound(first, _LONGEST_MESSAGE)


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
# What the name of an exception looks like. Required after frames without a header, as any word may follow.
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
    """Whether the user wrote `file`. False for libraries, Inductor's generated code and the capture hook."""
    return _LIBRARY.search(file) is None


class TracebackReader:
    """Reads the lines of one process: classifies each line, and keeps complete exceptions and stacks.

    The caller sets `logged` from the line before the traceback. `headless` is True if the log begins, or
    continues after a gap, inside the frames of a traceback.
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
        """End and keep the faulthandler stack being read, because no line of the log closes it."""
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
        self._orphans = 0  # lines inside a headless traceback that do not belong to it

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
            if self.headless and self._orphans > MAX_ORPHANS:  # the frames were not of a traceback
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
