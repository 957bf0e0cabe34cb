"""Chooses the root error of a log, and reorders its candidate categories by the rest of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mcp_server.logs.details import OPERATOR_FILE
from mcp_server.logs.facts import ErrorFact, Frame, PythonException, ThreadStack, last_chain
from mcp_server.logs.families import BY_ID, FAMILIES, Rank
from mcp_server.logs.raised import first, is_passed_on
from mcp_server.logs.sanitizer import SanitizerReport, Site
from mcp_server.model import Category

# Category of a crash by the C++ function on its stack.
_NATIVE: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"constant_buffer|load_constants"), "constants"),
    (re.compile(r"roxy"), "custom_op"),
    (re.compile(r"AOTI"), "toolchain"),
)
# Causes in the arguments of a call. While a package loads, there is no call yet.
_IN_ARGUMENTS: frozenset[Category] = frozenset(
    {"input_mismatch", "shape_out_of_range", "index_out_of_bounds"}
)
_COMPILING = re.compile(r"torch\._(?:inductor|dynamo)\.exc\.\w+: |\bInductorError: |\bLoweringException: ")
# AOTAutograd's names of a graph's inputs and parameters.
_GRAPH_INPUT = re.compile(r"assert_size_stride\((?P<tensor>(?:primals_|arg)\d\w*),")


def settle(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """Adjust the root's family and candidates to the other errors of its process."""
    known = [error for error in errors if error.process == root.process]
    root = _in_headers(_without_files(root, known), known)
    root = _with_op_line(_without_kernels(_in_autotune(root, known), known), known)
    return _in_native(_in_graph_input(_at_compile(_at_load(root, known))))


def _in_autotune(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A kernel that failed while the compiler tuned it: the tensors were the compiler's."""
    tuned = next((error for error in errors if error.family.id == "autotune_device_fault"), None)
    if tuned is None or root.family.stage != "call" or root.family.id == tuned.family.id:
        return root
    return replace(tuned, fields={**root.fields, **tuned.fields})


def _without_files(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A package could not be opened because the process had too many open files."""
    limit = next((e for e in errors if e.fields.get("detail") == "Too many open files"), None)
    if limit is None or root.family.id != "zip_open":
        return root
    return replace(limit, exception=root.exception)


def _in_headers(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A C++ error while headers were precompiled: no code of the model was involved."""
    precompiles = any("precompiled" in error.fields for error in errors if error.line < root.line)
    if not precompiles or root.family.id not in ("cpp_error", "cpp_undeclared"):
        return root
    family = BY_ID["cpp_headers"]
    return replace(root, family=family, candidates=family.candidates)


def _without_kernels(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A missing kernel image, where torch warned that it has no kernels for this GPU."""
    build = next((error for error in errors if error.family.id == "torch_without_arch"), None)
    if build is None or root.family.id != "no_kernel_image":
        return root
    return replace(root, family=BY_ID["torch_without_arch"], fields={**root.fields, **build.fields})


def _with_op_line(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """Copy the operator's name from the last of several equal errors: `Error in op` is printed once."""
    named = (e.fields["op"] for e in errors if e.family.id == root.family.id and "op" in e.fields)
    op = next(named, None)
    if root.family.id != "size_stride_assert" or op is None:
        return root
    return replace(root, fields={**root.fields, "op": op})


def _at_load(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """An error while a model was created: no call was made yet."""
    creating = any(e.fields.get("call") == "create_func_" and e.line >= root.line for e in errors)
    left = tuple(category for category in root.candidates if category not in _IN_ARGUMENTS)
    return replace(root, candidates=left) if creating and left else root


def _at_compile(root: ErrorFact) -> ErrorFact:
    """An operator's error inside an exception of the compiler: its operands were fake tensors."""
    if "fake_operand" not in root.family.tags or not _COMPILING.search(root.text):
        return root
    return replace(root, candidates=first("compile_failure", root.candidates))


def _in_graph_input(root: ErrorFact) -> ErrorFact:
    """A size mismatch of a graph input. No operator returned that tensor, so none is at fault."""
    frames = root.exception.frames if root.exception is not None else ()
    found = _GRAPH_INPUT.search(frames[-1].code) if frames else None
    if root.family.id != "size_stride_assert" or found is None or "op" in root.fields:
        return root
    fields = {**root.fields, "tensor": found["tensor"]}
    return replace(root, fields=fields, candidates=("input_mismatch", "constants", "shape_out_of_range"))


def _in_native(root: ErrorFact) -> ErrorFact:
    """A crash inside the load, an update of constants or a custom operator, by its C++ stack."""
    native = root.fields.get("native", "")
    category = next((category for pattern, category in _NATIVE if pattern.search(native)), None)
    if "native_stack" not in root.family.tags or category is None:
        return root
    return replace(root, candidates=first(category, root.candidates))


# Arguments of `aoti_torch_proxy_executor_call_function` (torch 2.8-2.15).
_NODE = re.compile(r"proxy_executor, (\d+),")
_STAGES: tuple[tuple[re.Pattern[str], Category], ...] = (
    (
        re.compile(r"\b(?:load_constants|update_constant_buffer|swap_constant_buffer|load_state_dict)\b"),
        "constants",
    ),
    (re.compile(r"\b(?:aoti_load_package|load_package|AOTIModelPackageLoader|aot_load)\b"), "toolchain"),
    (re.compile(r"\b(?:aoti_compile_and_package|aot_compile)\b"), "compile_failure"),
)
_DEVICE_STATUS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    (
        "device-side assert",
        ("index_out_of_bounds", "input_mismatch", "device_mismatch", "illegal_memory_access"),
    ),
    (
        "illegal memory access",
        ("illegal_memory_access", "device_mismatch", "input_mismatch", "index_out_of_bounds"),
    ),
    ("address space", ("illegal_memory_access", "device_mismatch", "input_mismatch", "index_out_of_bounds")),
    ("misaligned", ("illegal_memory_access", "input_mismatch")),
    ("out of memory", ("out_of_memory",)),
)
_BY_SITE = {kind: family for family in FAMILIES for kind in family.sites}
_NULL_PAGE = 1 << 16
_FAR = 1 << 40
_NOT_FINITE = re.compile(r"(?<![\w.])(?:nan|inf)(?![\w.])", re.IGNORECASE)
_SCALAR_INPUT = "input"


def choose_root(errors: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> ErrorFact | None:
    """The error of the highest rank; of equals, one that ended the program, else the first.

    Among equals, one of the last traceback's chain counts: the program survived earlier ones. Neither noise
    nor a known error that the program raised again is a root.
    """
    known = [error for error in errors if error.rank > Rank.NOISE]
    if not known:
        return None
    known = [error for error in known if not _passes_on(error, known, exceptions)]
    best = max(error.rank for error in known)
    equals = sorted((error for error in known if error.rank == best), key=lambda error: error.line)
    chain = last_chain(exceptions)
    fatal = [error for error in equals if error.exception is not None and error.exception in chain]
    return (fatal or equals)[0]


def _passes_on(error: ErrorFact, known: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> bool:
    """Whether the program only re-raised another error of the log."""
    raised = error.exception
    if error.family.id != "own_check" or raised is None or raised not in exceptions:
        return False
    place = exceptions.index(raised)
    before = exceptions[place - 1] if place else None
    if before is None or not any(other.exception == before for other in known):
        return False
    return is_passed_on(raised, before)


def sanitizer_errors(report: SanitizerReport, line: int) -> list[ErrorFact]:
    """An error for each site that compute-sanitizer reported."""
    return [_sanitizer_error(site, line) for site in report.faults if site.kind in _BY_SITE]


def _sanitizer_error(site: Site, line: int) -> ErrorFact:
    family = _BY_SITE[site.kind]
    known = {
        "kernel": site.kernel,
        "file": site.file,
        "line": site.line,
        "direction": site.direction,
        "size": site.size,
        "problem": site.problem,
        "address": None if site.address is None else hex(site.address),
    }
    fields = {name: str(value) for name, value in known.items() if value not in (None, "")}
    pointer = _pointer(site)
    if pointer:
        fields["pointer"] = pointer
    candidates = first("device_mismatch", family.candidates) if pointer == "host" else family.candidates
    return ErrorFact(family, fields, line, site.text, candidates, site.count)


def _pointer(site: Site) -> str:
    """Classify an address far from every device allocation: "null", "host", or "" if unknown."""
    if site.address is None or site.kind != "invalid_access":
        return ""
    if site.address < _NULL_PAGE:
        return "null"
    far = site.nearest is not None and site.nearest.distance > _FAR
    return "host" if far else ""


def refine(root: ErrorFact, errors: Iterable[ErrorFact], threads: Sequence[ThreadStack]) -> ErrorFact:
    """Reorder the root's candidates by the other errors and the stacks of the log."""
    root = settle(_with_device_status(root, errors), errors)
    root = _uncompiled(_with_machine(_with_compiler(root, errors), errors))
    root = _died_in_operator(_in_operator(_with_shim(root, errors), errors), threads)
    root = _with_stage(root, _root_frames(root, threads))
    root = _with_op_candidates(_with_values(root, errors))
    return replace(root, fields={name: value for name, value in root.fields.items() if name != "inside"})


def _root_frames(root: ErrorFact, threads: Sequence[ThreadStack]) -> tuple[Frame, ...]:
    if root.exception is not None:
        return root.exception.frames
    return next((thread.frames for thread in threads if thread.current), ())


def _with_device_status(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """Take the candidates from the device status that CUDA printed at teardown."""
    if "bare_status" not in root.family.tags:
        return root
    statuses = " ".join(error.fields.get("status", "") for error in errors if error is not root)
    for text, candidates in _DEVICE_STATUS:
        if text in statuses:
            fields = {**root.fields, "device_status": text}
            return replace(root, fields=fields, candidates=candidates)
    return root


def _with_stage(root: ErrorFact, frames: Sequence[Frame]) -> ErrorFact:
    if "stageless" not in root.family.tags:
        return root
    for frame in reversed(frames):
        for pattern, category in _STAGES:
            if pattern.search(frame.function) or pattern.search(frame.code):
                return replace(root, candidates=first(category, root.candidates))
    return root


def _with_machine(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A library failed to load because the package was built for another processor."""
    other = next((e for e in errors if e.family.id == "device_information" and _foreign(e)), None)
    if other is None or root.family.stage != "load" or root.rank < Rank.ERROR:
        return root
    fields = {**root.fields, "built_for": other.fields["package"], "here": other.fields["here"]}
    return replace(root, fields=fields, candidates=("arch_mismatch",))


def _with_compiler(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """The compiler lacks its own C++ library: the missing header has no suffix, as in `<vector>`."""
    header = root.fields.get("header", root.fields.get("header2", "."))
    compiler = next((e.fields["compiler"] for e in errors if "compiler" in e.fields), None)
    if root.family.id != "cpp_header" or compiler is None or "." in header:
        return root
    return replace(root, fields={**root.fields, "blind": compiler})


def _uncompiled(root: ErrorFact) -> ErrorFact:
    """No model was found, because the archive's members are not those of a compiled package."""
    if root.family.id != "model_name" or "holds" in root.fields:
        return root
    other = bool({"saved", "wrapped"} & root.fields.keys())
    kind = "not_compiled" if "archive" in root.fields else "other_archive" if other else ""
    return replace(root, family=BY_ID[kind]) if kind else root


def _foreign(error: ErrorFact) -> bool:
    """Whether the machine type differs. Other instruction sets and GPUs may still work."""
    return error.fields.get("key") == "AOTI_MACHINE" and error.fields["here"] != error.fields["package"]


def _with_shim(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """An unclassified exception that an operator call of the generated code reported."""
    logged = root.family.id == "shim_exception"
    if not logged and "unclassified" not in root.family.tags:
        return root
    called = {"shim_call", "shim_exception"} if logged else {"shim_call"}
    after = root.line if logged else 0
    calls = (e for e in errors if e.family.id in called and e.process == root.process and e.line > after)
    call = next(calls, None)
    named = {"op": call.fields["call"]} if call is not None and "call" in call.fields else {}
    if not named and not logged:
        return root
    family = BY_ID["operator_refused"]
    return replace(root, family=family, fields={**root.fields, **named}, candidates=family.candidates)


def _in_operator(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """An exception of a Python operator: torch's operator call is on the stack outside the user's frames.

    Out-of-memory and late CUDA errors are excluded: they can surface in any operator.
    Field `node` is the number of the operator's node in the package, if the caller reported it.
    """
    within, call = root.fields.get("at"), root.fields.get("operator_call")
    if within is None or call is None or int(within) > int(call):
        return root
    if root.family.late or "out_of_memory" in root.candidates:
        return root
    calls = (_NODE.match(e.fields["arguments"]) for e in errors if e.family.id == "shim_call")
    node = next((found[1] for found in calls if found), None)
    fields = {**root.fields, **({"node": node} if node else {})}
    family = BY_ID["operator_raised"]
    return replace(root, family=family, fields=fields, candidates=("custom_op", "input_mismatch"))


def _died_in_operator(root: ErrorFact, threads: Sequence[ThreadStack]) -> ErrorFact:
    """A crash inside a Python operator, by faulthandler's stack."""
    if "crash" not in root.family.tags:
        return root
    frames = next((thread.frames for thread in threads if thread.current), ())
    own = next((place for place in reversed(range(len(frames))) if frames[place].user), 0)
    if not any(OPERATOR_FILE.search(frame.file) for frame in frames[max(own - 2, 0) : own]):
        return root
    at = {"at_file": frames[own].file, "at_line": str(frames[own].line), "at_function": frames[own].function}
    candidates = first("custom_op", first("illegal_memory_access", root.candidates))
    return replace(root, fields={**root.fields, **at}, candidates=candidates)


def _with_values(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A failed check of results whose text shows NaN or inf: suspect the values first."""
    if "result_check" not in root.family.tags:
        return root
    nan_seen = any(error.family.id == "not_close_nan" for error in errors) or _NOT_FINITE.search(root.text)
    return replace(root, candidates=first("nan_or_inf", root.candidates)) if nan_seen else root


def _with_op_candidates(root: ErrorFact) -> ErrorFact:
    """`Error in op: input` blames the caller's tensor, any other name blames the operator."""
    if root.family.id != "size_stride_assert" or "op" not in root.fields:
        return root
    if root.fields["op"].strip() == _SCALAR_INPUT:
        return replace(root, candidates=("input_mismatch", "shape_out_of_range"))
    return replace(root, candidates=("custom_op",))
