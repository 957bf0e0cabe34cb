"""Lines of a log made fit to be read: no control characters, bounded, their prefixes apart."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE = 4_000
_TAIL = 1_000
LONGEST_EXPRESSION = 160
_JOINS = r"(?!(?:and|or|not|mod)\b)"
_WORDS = re.compile(rf"{_JOINS}\b[^\W\d]\w*\s+{_JOINS}[^\W\d]\w*|[`\"]|\w[.!?;:]\s")

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# A time, and what is written behind it: the stream and tag of container runtimes (Kubernetes CRI logs), a
# dash, or the host and program of a system's journal.
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*[Z\d] (?:std(?:out|err) [FP] |- )?|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}(?:\[\d{1,7}\])?: "
)
# The name and number of a container that docker compose started, which it writes before a bar.
_SERVICE = re.compile(r"[\w.]{1,48}[-_]\d{1,4} +\| ")
_PROCESS = re.compile(
    r"\[?(?:rank|default|local_rank)\s?(?P<named>\d{1,5})\]?:[ ]?|(?P<plain>\d{1,4}): |"
    r"\[(?P<pair>\d{1,5})(?:,\d+)?\]<?(?:stdout|stderr|stdio)>?:\s?|"
    r"\((?:\w{1,48} )?pid=(?P<worker>\d{1,7})(?:, ip=[\d.]{1,15})?\) "
)
_LOGGER = re.compile(
    r"\[?(?P<level>[EWIFV])\d{4,8} \d\d:\d\d:\d\d[.\d]*(?: +\d+)* (?P<source>[^\s\]]+:\d+)\] ?"
)
# Python's `logging` as servers configure it: level, date, place.
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
    """`raw` without escapes and control characters; of a line redrawn by carriage returns the last."""
    text = raw.rstrip("\r\n")
    if not text.isprintable():
        text = _ESCAPE.sub("", text)
        if "\r" in text:
            text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
        text = _CONTROL.sub("", text)
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE - _TAIL]} … {text[-_TAIL:]}"
    return text


def bound(text: str, limit: int = 500) -> str:
    """At most `limit` characters of `text`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def is_expression(text: str) -> bool:
    """Whether `text` is a short name, path, number or expression: two words in a row are a sentence."""
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


# Messages whose form torch defines (torch/_inductor/codegen/{cpp,triton}.py and
# torch/csrc/inductor/aoti_runtime/model_base.h, 2.8-2.15): safe to quote, wherever they are in a text.
_MESSAGES = (
    re.compile(r"index out of bounds: [-\w ()+*/<>=.]{3,100}"),
    re.compile(r"device-side assert triggered"),
    re.compile(r"an illegal memory access was encountered"),
    re.compile(r"misaligned address"),
    re.compile(r"input_handles\[\d+\]: unmatched [^\n]{3,120}"),
    re.compile(r"(?:CUDA )?out of memory"),
)
_SUFFIX = re.compile(r"(?<=\d)(?:LL|L|UL|ULL)\b")
_PREFIX = re.compile(r"^\s*(?:what\(\):\s*|(?:\w+\.)*\w*(?:Error|Exception):\s*)")
_LONGEST_MESSAGE = 160  # characters inside a sentence


def kernel_message(text: str) -> str:
    """What a kernel or a check printed, without the C++ frames around it, bounded; empty without one."""
    found = next((match for match in (message.search(text) for message in _MESSAGES) if match), None)
    return _SUFFIX.sub("", bound(found[0].strip(), _LONGEST_MESSAGE)) if found else ""


def short_message(text: str) -> str:
    """The kernel's own message when there is one, else the first line without its prefix, bounded."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return kernel_message(text) or bound(_PREFIX.sub("", first).strip(), _LONGEST_MESSAGE)
