"""Every cause that can be suspected, and every observation that can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mcp_server.diagnosis.causes import (
    concurrency,
    constants,
    custom_op,
    environment,
    fixed_arguments,
    hang,
    illegal_memory_access,
    index_out_of_bounds,
    input_mismatch,
    invalid_package,
    log_text,
    nan_or_inf,
    out_of_memory,
    reference_module,
    value_constraints,
    wrong_output,
)
from mcp_server.diagnosis.observe.calls import CheckedRun, Interpret, PlainRun, RepeatCall, WatchRepeats
from mcp_server.diagnosis.observe.edit_scalars import EditScalars
from mcp_server.diagnosis.observe.find_origin import FindOrigin
from mcp_server.diagnosis.observe.intervene import TryInterventions, WatchOperators
from mcp_server.diagnosis.observe.launches import (
    CompareLaunches,
    TraceLaunches,
    TryPadding,
    TryWider,
    WatchLaunches,
)
from mcp_server.diagnosis.observe.locate import LocateFault
from mcp_server.diagnosis.observe.program import CaptureProgram, RunAlone
from mcp_server.diagnosis.observe.static import (
    CheckMachine,
    CompareInputs,
    CompileExported,
    LookAtIndices,
    OpenPackage,
    ReadExported,
    ReadGeneratedKernel,
)
from mcp_server.diagnosis.planner import Action
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect

Detector = Callable[[DiagnosisState], Iterator[Suspect]]


DETECTORS: tuple[Detector, ...] = (
    log_text.detect_from_log,
    wrong_output.detect_own_check,
    environment.detect_outside,
    invalid_package.detect_loading,
    concurrency.detect_lost_update,
    invalid_package.detect_overwritten,
    input_mismatch.detect_contract,
    input_mismatch.detect_other_device,
    input_mismatch.detect_argument_order,
    fixed_arguments.detect_fixed_arguments,
    fixed_arguments.detect_scalars,
    wrong_output.detect_unexpected,
    constants.detect,
    constants.detect_altered_constants,
    constants.detect_viewed_constants,
    reference_module.detect,
    environment.detect_child_end,
    concurrency.detect_concurrency,
    hang.detect_waiting_calls,
    hang.detect_hanging_call,
    hang.detect_no_end,
    environment.detect_process_limits,
    environment.detect_limit_signals,
    environment.detect_small_stack,
    hang.detect_endless_loop,
    illegal_memory_access.detect_died_inside,
    illegal_memory_access.detect_unmapped,
    custom_op.detect_wrong_layout,
    custom_op.detect_unregistered,
    custom_op.detect_operator_results,
    custom_op.detect_operator_error,
    out_of_memory.detect_allocation,
    out_of_memory.detect_data_size,
    index_out_of_bounds.detect_generated,
    index_out_of_bounds.detect_index,
    nan_or_inf.detect_nan_index,
    index_out_of_bounds.detect_operator_index,
    value_constraints.detect_division,
    value_constraints.detect_size,
    log_text.detect_refusal,
    nan_or_inf.detect_bad_values,
    index_out_of_bounds.detect_beyond,
    concurrency.detect_changed_input,
    concurrency.detect_sharing,
    concurrency.detect_rewritten,
    concurrency.detect_aliased,
    concurrency.detect_streams,
    input_mismatch.detect_guard,
    index_out_of_bounds.detect_raised,
    nan_or_inf.detect_made_in_eager,
    wrong_output.detect_compared,
    custom_op.detect_fake_results,
    wrong_output.detect_divergence,
    wrong_output.detect_random_numbers,
    wrong_output.detect_unsteady,
    custom_op.detect_padding,
    custom_op.detect_narrow,
    illegal_memory_access.detect_memory,
    illegal_memory_access.detect_last_launch,
    environment.detect_machine,
)


def actions() -> list[Action]:
    """Everything that can be observed, in no particular order."""
    return [
        CaptureProgram(),
        RunAlone(),
        CompileExported(),
        OpenPackage(),
        ReadExported(),
        CompareInputs(),
        PlainRun(),
        CheckedRun(),
        Interpret(),
        WatchOperators(),
        RepeatCall(),
        WatchRepeats(),
        CompareLaunches(),
        ReadGeneratedKernel(),
        LookAtIndices(),
        WatchLaunches(),
        FindOrigin(),
        LocateFault(),
        TraceLaunches(),
        TryPadding(),
        TryWider(),
        CheckMachine(),
        EditScalars(),
        TryInterventions(),
    ]
