"""Every cause that can be suspected, and every observation that can be made."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator

from mcp_server.diagnosis import observe
from mcp_server.diagnosis.causes import (
    baked_scalars,
    concurrency,
    constants,
    custom_op,
    device_mismatch,
    divisor,
    eager,
    environment,
    hang,
    illegal_memory_access,
    in_place_inputs,
    index_out_of_bounds,
    input_mismatch,
    invalid_package,
    log_text,
    nan_or_inf,
    out_of_memory,
    reference_module,
    scatter,
    shape_out_of_range,
    shared_constants,
    unexpected,
    user_kernels,
    wrong_output,
)
from mcp_server.diagnosis.planner import Observation
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect

Detector = Callable[[DiagnosisState], Iterator[Suspect]]


DETECTORS: tuple[Detector, ...] = (
    log_text.detect_from_log,
    wrong_output.detect_own_check,
    environment.detect_outside,
    invalid_package.detect_loading,
    in_place_inputs.detect_lost_update,
    invalid_package.detect_overwritten,
    input_mismatch.detect_contract,
    device_mismatch.detect,
    input_mismatch.detect_argument_order,
    input_mismatch.detect_fixed_arguments,
    baked_scalars.detect,
    unexpected.detect,
    constants.detect,
    shared_constants.detect_altered_constants,
    shared_constants.detect_viewed_constants,
    reference_module.detect,
    environment.detect_child_end,
    concurrency.detect_concurrency,
    hang.detect_no_end,
    environment.detect_process_limits,
    environment.detect_limit_signals,
    environment.detect_small_stack,
    hang.detect_endless_loop,
    illegal_memory_access.detect_died_inside,
    illegal_memory_access.detect_unmapped,
    custom_op.detect_wrong_layout,
    custom_op.detect_operator_results,
    custom_op.detect_operator_error,
    out_of_memory.detect_allocation,
    out_of_memory.detect_data_size,
    index_out_of_bounds.detect_generated,
    index_out_of_bounds.detect_index,
    nan_or_inf.detect_nan_index,
    index_out_of_bounds.detect_operator_index,
    divisor.detect,
    shape_out_of_range.detect,
    log_text.detect_refusal,
    nan_or_inf.detect_bad_values,
    scatter.detect,
    in_place_inputs.detect_sharing,
    concurrency.detect_rewritten,
    concurrency.detect_aliased,
    concurrency.detect_streams,
    eager.detect,
    wrong_output.detect_divergence,
    wrong_output.detect_random_numbers,
    wrong_output.detect_unsteady,
    user_kernels.detect_padding,
    user_kernels.detect_narrow,
    illegal_memory_access.detect_memory,
    illegal_memory_access.detect_last_launch,
    environment.detect_machine,
)


def _observations() -> Iterator[type[Observation]]:
    """The classes of observations that the modules of `observe/` define."""
    for found in pkgutil.iter_modules(observe.__path__):
        module = importlib.import_module(f"{observe.__name__}.{found.name}")
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and issubclass(value, Observation) and not inspect.isabstract(value):
                yield value


OBSERVATIONS = tuple(_observations())


def observations() -> list[Observation]:
    """One of each, in no particular order."""
    return [make() for make in OBSERVATIONS]
