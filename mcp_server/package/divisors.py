"""Finds integer divisions in C++ kernels whose divisor may be zero, and where the divisor comes from.

The CPU raises SIGFPE for a zero divisor. From torch 2.13 on most forms raise `ZeroDivisionError` instead,
which names no kernel. Source of the forms: torch/_inductor/codegen/cpp.py, 2.8 to 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mcp_server.package.assertion import IndexSource, Tracer, source_location
from mcp_server.package.kernel_code import Trace, read_form, trace_value
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.statements import split_arguments

_CALL = re.compile(r"\b(?:floor_divide_integral|(?:c10::)?div_floor_integer|remainder_integral|mod)\(")
_SIGNS = re.compile(r"\s(?:/|%)\s+(.*)")
_VALUE = re.compile(r"\btmp\w*")
_FLOATING = re.compile(r"\b(?:float|double|half|Half|BFloat16|bfloat16|Float8\w*)\b")
_ZERO = re.compile(r"\(0L?\)|= 0L?\b")


@dataclass(frozen=True, slots=True)
class Division:
    """One division of a launch whose divisor is not a size.

    `sources` are the tensors that the divisor is loaded from; empty for a literal. `plain`: the divisor is an
    unmodified element of the only source.
    """

    launch: Launch
    location: str
    code: str
    sources: tuple[IndexSource, ...]
    plain: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Labels of the model inputs that the divisor depends on."""
        return tuple(dict.fromkeys(label for source in self.sources for label in source.inputs))


def divisions(tracer: Tracer) -> tuple[Division, ...]:
    """Every integer division whose divisor may be zero, in launch order."""
    kernels = tracer.wrapper.kernels
    return tuple(
        found
        for launch in tracer.wrapper.launches
        if launch.kind == "cpp" and launch.kernel in kernels
        for found in _divisions_of_launch(launch, kernels[launch.kernel], tracer)
    )


def _divisions_of_launch(launch: Launch, kernel: Kernel, tracer: Tracer) -> Iterator[Division]:
    """The divisions of one launch, without duplicates: a loop's scalar tail repeats its vector part."""
    types = {parameter.name: parameter.type for parameter in kernel.parameters}
    tensors = {argument.name for argument in launch.tensors}
    scalars = {argument.name for argument in launch.arguments if argument.name and not argument.is_tensor}
    seen = set()
    for number, line in enumerate(kernel.source.split("\n"), 1):
        for divisor in _divisors(line):
            trace = trace_value(kernel.source, divisor, number, tensors, scalars)
            form = read_form(kernel.source, divisor, number, tensors, scalars)
            sources = tuple(tracer.source(load, launch) for load in trace.loads)
            key = tuple((source.tensor, source.load.index) for source in sources)
            if key in seen or not _may_be_zero(trace, types):
                continue
            seen.add(key)
            plain = len(sources) == 1 and form is not None and form.is_plain
            yield Division(launch, source_location(kernel, number), line.strip(), sources, plain)


def _divisors(line: str) -> Iterator[str]:
    """Names of the variables that a line divides by."""
    for match in _CALL.finditer(line):
        places = split_arguments(line, match.end(), _closing(line, match.end()))
        if len(places) > 1:
            yield from _VALUE.findall(line[slice(*places[1])])[:1]
    match_sign = _SIGNS.search(line)
    if match_sign is not None and " = " in line:
        yield from _VALUE.findall(match_sign[1])[:1]


def _closing(line: str, start: int) -> int:
    """The offset of the bracket that closes the call whose arguments start at `start`."""
    depth = 1
    for at in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if not depth:
            return at
    return len(line)


def _may_be_zero(trace: Trace, types: Mapping[str, str]) -> bool:
    """Whether a value is an integer that is loaded, or computed with a literal zero."""
    values = " ".join(definition.value for definition in trace.definitions)
    loaded = [types.get(load.parameter, "") for load in trace.loads]
    if _FLOATING.search(values) or any(_FLOATING.search(each) for each in loaded):
        return False
    return bool(loaded) or _ZERO.search(values) is not None
