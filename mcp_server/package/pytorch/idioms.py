"""Functions of torch that a compiler takes apart over several statements, put together again.

Each rule is a pattern of whole lines, names and all. The names that go must not be used anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TO_LAST = r"\[(?::, )+None\]"
_NUMBER = r"[\d.]+(?:e-?\d+)?"
_TARGET = r"(?P<out>return |\w+ = )"
_RULES = [
    (
        # softmax
        r"(?P<a>\w+) = (?P<x>.+)\.amax\(-1\)\n"
        rf"(?P<b>\w+) = \((?P=x) - (?P=a){_TO_LAST}\)\.exp\(\)\n"
        r"(?P<c>\w+) = (?P=b)\.sum\(-1\)\n"
        rf"{_TARGET}(?P=b) / (?P=c){_TO_LAST}$",
        r"\g<out>\g<x>.softmax(-1)",
    ),
    (
        # log softmax
        r"(?P<a>\w+) = (?P<x>.+)\.amax\(-1\)\n"
        rf"(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n"
        r"(?P<c>\w+) = (?P=b)\.exp\(\)\.sum\(-1\)\n"
        rf"{_TARGET}(?P=b) - (?P=c)\.log\(\){_TO_LAST}$",
        r"\g<out>\g<x>.log_softmax(-1)",
    ),
    (
        # layer norm
        r"(?P<a>\w+) = (?P<x>.+)\.mean\(-1\)\n"
        rf"(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n"
        rf"{_TARGET}\(\((?P=b) \* \(\((?P=b) \* (?P=b)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)\) \+ (?P<bias>\w+)$",
        r"\g<out>F.layer_norm(\g<x>, \g<w>.shape, \g<w>, \g<bias>, \g<eps>)",
    ),
    (
        # RMS norm
        rf"(?P<a>){_TARGET}\((?P<x>\w+) \* \(\((?P=x) \* (?P=x)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)$",
        r"\g<out>F.rms_norm(\g<x>, \g<w>.shape, \g<w>, \g<eps>)",
    ),
]
_COMPILED = [(re.compile(f"^{pattern}", re.M), written) for pattern, written in _RULES]


def put_together(lines: Sequence[str]) -> list[str]:
    """The statements of a function with known sequences replaced."""
    text = "\n".join(_once(lines))
    for pattern, written in _COMPILED:
        for found in list(pattern.finditer(text)):
            names = [name for key in "abc" if (name := found.groupdict().get(key))]
            outside = text[: found.start()] + text[found.end() :]
            if found[0] in text and not any(re.search(rf"\b{name}\b", outside) for name in names):
                text = text.replace(found[0], found.expand(written), 1)
    return text.split("\n") if text else []


def _once(lines: Sequence[str]) -> list[str]:
    """Without a second name for the same value, where nothing is written in place."""
    if any(re.match(r"(?:return )?\w+ = |return |check\(", line) is None for line in lines):
        return list(lines)
    first: dict[str, str] = {}
    found: list[str] = []
    renamed: dict[str, str] = {}
    for line in lines:
        for old, new in renamed.items():
            line = re.sub(rf"\b{old}\b", new, line)
        name, _, value = line.partition(" = ")
        if not name.isidentifier() or name.endswith(("_out", "_out2")):
            found.append(line)
        elif value in first:
            renamed[name] = first[value]
        else:
            first[value] = name
            found.append(line)
    return found
