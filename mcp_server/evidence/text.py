"""Lines of a log made fit to be read: no control characters, bounded, their prefixes apart."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE = 4_000
_TAIL = 1_000

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# A time, and the stream and tag that container runtimes write behind it (Kubernetes CRI logs).
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*[Z\d] (?:std(?:out|err) [FP] )?")
_PROCESS = re.compile(
    r"\[?(?:rank|default|local_rank)\s?(?P<named>\d{1,5})\]?:[ ]?|(?P<plain>\d{1,4}): |"
    r"\[(?P<pair>\d{1,5})(?:,\d+)?\]<?(?:stdout|stderr|stdio)>?:\s?"
)
_LOGGER = re.compile(
    r"\[?(?P<level>[EWIFV])\d{4,8} \d\d:\d\d:\d\d[.\d]*(?: +\d+)* (?P<source>[^\s\]]+:\d+)\] ?"
)
_PREFIX_STARTS = frozenset("[0123456789rdlEWIFV")


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
        text = _visible(text)
    if len(text) > MAX_LINE:
        text = f"{text[: MAX_LINE - _TAIL]} … {text[-_TAIL:]}"
    return text


def _visible(text: str) -> str:
    text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return _CONTROL.sub("", text)


def bound(text: str, limit: int = 500) -> str:
    """At most `limit` characters of `text`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_line(raw: str, number: int) -> Line:
    """Split a raw line into its prefixes and its text."""
    text = clean(raw)
    if text[:1] not in _PREFIX_STARTS:
        return Line(number, "", "", "", text)
    return _split_prefixes(text, number)


def _split_prefixes(text: str, number: int) -> Line:
    process = level = source = ""
    if stamp := _STAMP.match(text):
        text = text[stamp.end() :]
    if rank := _PROCESS.match(text):
        process = next(value for value in rank.groups() if value is not None)
        text = text[rank.end() :]
    if logger := _LOGGER.match(text):
        level, source = logger["level"], logger["source"]
        text = text[logger.end() :]
    return Line(number, process, level, source, text)
