"""Which interventions there are for each category of verdict, or why there can be none."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.diagnosis.interventions.base import Kind
from mcp_server.model import Category


@dataclass(frozen=True)
class Available:
    """`names` are constructors in the modules of these kinds; `otherwise` is for causes they do not reach."""

    kinds: tuple[Kind, ...]
    names: tuple[str, ...]
    otherwise: str = ""


INTERVENTIONS: dict[Category, Available] = {
    "device_mismatch": Available((Kind.INPUT,), ("input.move", "input.together")),
    "input_mismatch": Available(
        (Kind.INPUT, Kind.SCALAR),
        (
            *("input.cast", "input.contiguous", "input.with_strides", "input.own_memory"),
            *("input.exchange", "input.resize", "scalar.given_value"),
        ),
        "a missing or additional leaf has no value to call with: the refusal of the loader decides",
    ),
    "shape_out_of_range": Available((Kind.INPUT,), ("input.resize", "input.pad")),
    "index_out_of_bounds": Available(
        (Kind.INPUT, Kind.KERNEL), ("input.keep_in_range", "input.replace_element", "kernel.relaunched")
    ),
    "illegal_memory_access": Available(
        (Kind.INPUT, Kind.KERNEL, Kind.CALL),
        (
            *("input.keep_in_range", "input.own_memory", "kernel.edited", "kernel.relaunched"),
            "call.large_stack",
        ),
    ),
    "nan_or_inf": Available(
        (Kind.INPUT, Kind.KERNEL), ("input.replace_where", "input.replace_rows", "kernel.edited")
    ),
    "wrong_output": Available(
        (Kind.KERNEL, Kind.COMPILE, Kind.SCALAR),
        ("kernel.edited", "compile_.recompiled", "scalar.given_value"),
        "needs an expectation: without one a wrong number cannot be told from a right one",
    ),
    "custom_op": Available(
        (Kind.OPERATOR,),
        ("operator.as_promised",),
        "an operator that is not registered is refused by the loader by name",
    ),
    "constants": Available(
        (Kind.CONSTANT,),
        (
            *("constant.compiled_values", "constant.cast_in_update", "constant.own_memory"),
            *("constant.other_steps", "constant.given_values"),
        ),
    ),
    "invalid_package": Available(
        (), (), "there is no call to make again; the loader refuses the file and names what is wrong with it"
    ),
    "arch_mismatch": Available(
        (),
        (),
        "the machine cannot be changed; the driver or the loader names what the binary is for",
    ),
    "toolchain": Available(
        (Kind.ENVIRONMENT,),
        ("environment.with_variables",),
        "a missing compiler or symbol is refused by name",
    ),
    "compile_failure": Available((Kind.COMPILE,), ("compile_.recompiled",)),
    "out_of_memory": Available(
        (Kind.INPUT, Kind.CALL), ("input.resize", "input.keep_in_range", "call.large_stack")
    ),
    "hang": Available((Kind.INPUT, Kind.ENVIRONMENT), ("input.keep_in_range", "environment.one_thread")),
    "concurrency": Available(
        (Kind.CALL, Kind.ENVIRONMENT),
        ("call.without_earlier_calls", "call.runners", "environment.blocking_launches"),
    ),
    "environment": Available((Kind.ENVIRONMENT,), ("environment.with_variables",)),
    "script_error": Available(
        (),
        (),
        "the user's own code fails outside AOTInductor: the traceback names its line, which only they can "
        "change",
    ),
}
