"""The text of a program: functions, the class with its methods, and the file around them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence

from mcp_server.package.pytorch.idioms import put_together
from mcp_server.package.pytorch.runtime import helpers_for
from mcp_server.package.pytorch.weights import CODES

INDENT = "    "
HEAD = '"""A package of AOTInductor, read as PyTorch. `python -i model.py`, then Model()(*inputs)."""'
DEDENT = "# end"  # of a block of Python


def assembled(
    functions: Sequence[str],
    loads: Sequence[str],
    parameters: Sequence[str],
    folding: Sequence[str],
    forward: Sequence[str],
    device: str,
) -> str:
    """The text of the file."""
    init = [*(["weights = load_weights(weights)"] if loads else []), *loads, *folding] or ["pass"]
    lines = ['def __init__(self, weights="weights.safetensors"):', *(INDENT + line for line in init), ""]
    lines += [f"def forward({', '.join(['self', *parameters])}):", *(INDENT + line for line in forward), ""]
    model = "\n".join(["class Model:", *(f"{INDENT}{line}".rstrip() for line in lines)])
    rest = "\n\n\n".join([*functions, f"{model}\n{INDENT}__call__ = forward\n"])
    helpers = helpers_for(rest)
    head = [HEAD, ""]
    head += ["import json", "import os", ""] if loads else []
    functional = re.search(r"\bF\.", re.sub(r"#.*", "", rest + helpers))
    head += ["import torch", *(["from torch.nn import functional as F"] if functional else []), ""]
    available = f' if torch.{device}.is_available() else "cpu"' if device != "cpu" else ""
    head += [f'device = torch.device("{device}"{available})']
    if loads:
        head += ["DTYPES = {", *(f'{INDENT}"{code}": torch.{dtype},' for dtype, code in CODES.items()), "}"]
    return "\n\n\n".join(each.strip("\n") for each in ("\n".join(head), helpers, rest) if each) + "\n"


def function(
    name: str, parameters: Sequence[str], lines: Sequence[str], results: Sequence[str], shapes: Sequence[str]
) -> str:
    """The text of a function; a last statement that makes the only result is its `return`."""
    body = list(lines)
    if len(results) == 1 and body and body[-1].startswith(f"{results[0]} = "):
        body[-1] = f"return {body[-1].partition(' = ')[2]}"
    elif results:
        body.append(f"return {', '.join(results)}")
    body = put_together(body) or ["pass"]
    text = [f"def {name}({', '.join(parameters)}):"]
    text += [f"{INDENT}# {printable(each)}" for each in shapes]
    return "\n".join([*text, *(f"{INDENT}{line}" for line in body)])


def without_unused(lines: Sequence[str], results: Iterable[str]) -> list[str]:
    """Without names that nobody reads: results that only this launch needed, steps of them."""
    wanted = set(results)
    kept: list[str] = []
    for line in reversed(lines):
        name = re.match(r"(\w+) = ", line)
        if name and name[1] not in wanted and not any(re.search(rf"\b{name[1]}\b", each) for each in kept):
            continue
        kept.append(line)
    return kept[::-1]


def with_blanks(line: str, used: Collection[str]) -> str:
    """A call of several results, with those that nobody uses left out."""
    found = re.match(r"\w+(?:, \w+)+ = (?=torch\.|attention\()", line)
    if found is None:
        return line
    names = [name if name in used else "_" for name in found[0].removesuffix(" = ").split(", ")]
    return f"{', '.join(names)} = {line[found.end() :]}"


def indented(lines: Iterable[str]) -> list[str]:
    """With the blocks of Python, whose ends are marked."""
    depth, found = 0, []
    for line in lines:
        if line == DEDENT:
            depth -= 1
            continue
        found.append(INDENT * depth + line)
        depth += line.startswith(("if ", "else:", "while "))
    return found


def quoted(text: str) -> str:
    """Text of the package as a literal of Python, on one line."""
    return json.dumps(printable(text))


def printable(text: str) -> str:
    """Without control characters, so that a comment stays one line."""
    return "".join(each if each.isprintable() else " " for each in text)
