"""Which interventions there are for each category of verdict, or why there can be none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcp_server.diagnosis.interventions.base import Intervention, Kind
from mcp_server.diagnosis.interventions.call import (
    as_promised,
    blocking_launches,
    large_stack,
    one_thread,
    recompiled,
    runners,
    with_variables,
    without_earlier_calls,
)
from mcp_server.diagnosis.interventions.input import (
    cast,
    cast_in_update,
    compiled_values,
    constant_own_memory,
    contiguous,
    exchange,
    given_value,
    given_values,
    input_own_memory,
    keep_in_range,
    move,
    other_steps,
    pad,
    replace_element,
    replace_rows,
    replace_where,
    resize,
    together,
    with_strides,
)
from mcp_server.diagnosis.interventions.kernel import edited, relaunched
from mcp_server.model import Category


@dataclass(frozen=True)
class Available:
    """`constructors` make interventions of these kinds; `otherwise` is for causes beyond them."""

    kinds: tuple[Kind, ...]
    constructors: tuple[Callable[..., Intervention], ...]
    otherwise: str = ""


INTERVENTIONS: dict[Category, Available] = {
    "device_mismatch": Available((Kind.INPUT,), (move, together)),
    "input_mismatch": Available(
        (Kind.INPUT, Kind.SCALAR),
        (
            *(cast, contiguous, with_strides, input_own_memory),
            *(exchange, resize, given_value),
        ),
        "a missing or additional leaf has no value to call with: the refusal of the loader decides",
    ),
    "shape_out_of_range": Available((Kind.INPUT,), (resize, pad)),
    "index_out_of_bounds": Available((Kind.INPUT, Kind.KERNEL), (keep_in_range, replace_element, relaunched)),
    "illegal_memory_access": Available(
        (Kind.INPUT, Kind.KERNEL, Kind.CALL),
        (
            *(keep_in_range, input_own_memory, edited, relaunched),
            large_stack,
        ),
    ),
    "nan_or_inf": Available((Kind.INPUT, Kind.KERNEL), (replace_where, replace_rows, edited)),
    "wrong_output": Available(
        (Kind.KERNEL, Kind.COMPILE, Kind.SCALAR),
        (edited, recompiled, given_value),
        "needs an expectation: without one a wrong number cannot be told from a right one",
    ),
    "custom_op": Available(
        (Kind.OPERATOR,),
        (as_promised,),
        "an operator that is not registered is refused by the loader by name",
    ),
    "constants": Available(
        (Kind.CONSTANT,),
        (
            *(compiled_values, cast_in_update, constant_own_memory),
            *(other_steps, given_values),
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
        (with_variables,),
        "a missing compiler or symbol is refused by name",
    ),
    "compile_failure": Available((Kind.COMPILE,), (recompiled,)),
    "out_of_memory": Available((Kind.INPUT, Kind.CALL), (resize, keep_in_range, large_stack)),
    "hang": Available((Kind.INPUT, Kind.ENVIRONMENT), (keep_in_range, one_thread)),
    "concurrency": Available(
        (Kind.CALL, Kind.ENVIRONMENT),
        (without_earlier_calls, runners, blocking_launches),
    ),
    "environment": Available((Kind.ENVIRONMENT,), (with_variables,)),
    "script_error": Available(
        (),
        (),
        "the user's own code fails outside AOTInductor: the traceback names its line, which only they can "
        "change",
    ),
}
