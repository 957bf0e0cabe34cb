"""Chooses the root error of a log. Uses the rest of the log to determine the error's family and categories.

An exception that no family matched is classified by the file that raised it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from mcp_server.logs.details import OPERATOR_FILE
from mcp_server.logs.facts import ErrorFact, Frame, PythonException, ThreadStack, last_chain
from mcp_server.logs.families import BY_ID, FAMILIES, Rank
from mcp_server.logs.sanitizer import SanitizerReport
from mcp_server.logs.text import bound
from mcp_server.model import Category

_COMPILE_FILE = re.compile(
    r"[/\\]torch[/\\](?:_inductor|_dynamo|export|fx|_functorch|_export)[/\\]|[/\\]triton[/\\]"
)
# The frame of `AOTICompiledModel.__call__`; frames inside it belong to the package (torch 2.8-2.15).
_PACKAGE_CALL = re.compile(r"\bloader\.(?:boxed_)?run\(")
PACKAGE_FILE = re.compile(r"[/\\]torch[/\\](?:export[/\\]pt2_archive|_inductor[/\\]package)[/\\]")
_LOAD = re.compile(r"\b(?:aoti_load_package|load_package|AOTIModelPackageLoader|aot_load)\(")
# The frame of `Module.__call__`; frames inside it belong to the model.
_MODULE_FILE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_ENVIRON = re.compile(r"^<frozen os>$|[/\\]os\.py$")  # frame of `os.environ.__getitem__` (Python 3.9-3.14)
_OF_FILES = frozenset({"OSError", "FileNotFoundError", "BlockingIOError", "ChildProcessError"})
# An exit status in a message of the program. Numbers outside `_EXIT_STATUSES` are HTTP statuses.
_EXIT_STATUS = re.compile(
    r"\b(?:fail|exit|end|terminat|die|return|crash)\w*\b[^\n]{0,40}?"
    r"\b(?:status|code|rc)\b[ =:]*(?P<status>-?\d{1,3})\b"
)
_EXIT_STATUSES = range(-64, 256)
# Where Inductor lowers a model and writes code for it (torch 2.8-2.15); its other files run compilers.
_LOWERS = re.compile(
    r"[/\\]torch[/\\]_inductor[/\\](?:codegen[/\\]\w+|kernel[/\\]\w+|fx_passes[/\\]\w+|\w*lowering|graph|ir|scheduler|"
    r"loop_body|dependencies|sizevars|ops_handler|index_propagation|decomposition)\.py$"
)
_INDUCTOR = re.compile(r"[/\\]torch[/\\]_inductor[/\\]")
_TORCH = re.compile(r"[/\\]torch[/\\]")
# Exceptions that the machine causes, regardless of the model.
_OF_HOST = re.compile(
    r"(?:\w*OSError|\w*IOError|\w*MemoryError|\w*Timeout\w*|\w*Interrupt|File\w+|Permission\w+)\b"
)
_OWN_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def settle_exception(error: ErrorFact) -> ErrorFact:
    """Classify an exception that no family matched, using the file that raised it."""
    exception = error.exception
    if exception is None or not exception.frames:
        return error
    in_package = "inside" in error.fields
    if error.family.id == "inductor_error":
        # Lowering or code generation raised it, and the machine did not cause it.
        inductor = [at for at, frame in enumerate(exception.frames) if _INDUCTOR.search(frame.file)]
        deeper = exception.frames[inductor[-1] + 1 :] if inductor else ()
        lowers = bool(inductor) and _LOWERS.search(exception.frames[inductor[-1]].file)
        of_host = _OF_HOST.match(error.fields.get("detail", ""))
        internal = lowers and all(_TORCH.search(frame.file) for frame in deeper) and not of_host
        return _changed(error, "inductor_internal") if internal else error
    if "operand" in error.family.tags:
        in_model = any(
            _is_package_call(frame) or _MODULE_FILE.search(frame.file) for frame in exception.frames
        )
        if exception.frames[-1].user and not in_model and not in_package:
            return _changed(error, candidates=_first("script_error", error.candidates))
        return error
    if error.family.id != "python_exception":
        return error
    error = _changed(error, "operator_refused" if in_package else _exception_family(exception))
    if error.family.id == "environment_variable" and (variable := exception.message.strip("'\"")):
        return _changed(error, variable=variable)
    return error


def _changed(
    error: ErrorFact, family: str = "", candidates: tuple[Category, ...] = (), **fields: str
) -> ErrorFact:
    """A copy of the error with another family, other candidates, or more fields."""
    row = BY_ID[family] if family else error.family
    candidates = candidates or (row.candidates if family else error.candidates)
    return replace(error, family=row, candidates=candidates, fields={**error.fields, **fields})


def _first(category: Category | None, candidates: tuple[Category, ...]) -> tuple[Category, ...]:
    """`candidates` with `category` moved or added to the front. None changes nothing."""
    return (category, *(other for other in candidates if other != category)) if category else candidates


def _is_package_call(frame: Frame) -> bool:
    return PACKAGE_FILE.search(frame.file) is not None and _PACKAGE_CALL.search(frame.code) is not None


# No C++ loader raises these. If a line that loads a package does, it failed to compute the arguments.
_OF_PYTHON_ALONE = frozenset({"KeyError", "IndexError", "NameError", "UnboundLocalError"})
_WRONG_ARGUMENTS = re.compile(r"\w\(\) (?:got an unexpected keyword|got multiple values|missing \d+|takes )")


def _exception_family(exception: PythonException) -> str:
    frames, inner = exception.frames, exception.frames[-1]
    if exception.type == "KeyError" and inner.function == "__getitem__" and _ENVIRON.search(inner.file):
        return "environment_variable"
    if any(_is_package_call(frame) for frame in frames):
        return "operator_raised" if inner.user else "operator_refused"
    wrong = _WRONG_ARGUMENTS.search(exception.message)
    own = inner.user and (exception.type in _OF_PYTHON_ALONE or wrong is not None)
    if not own and any(_LOAD.search(frame.code) for frame in frames[-1 if inner.user else -3 :]):
        return "load_exception"
    checks = _OWN_CHECK.match(inner.code) or exception.type.endswith("AssertionError")
    if inner.user and checks:
        status = _EXIT_STATUS.search(exception.message)
        return "child_failed" if status and int(status["status"]) in _EXIT_STATUSES else "own_check"
    of_script = own or (inner.user and exception.type in _OF_FILES)
    for frame in () if of_script else frames:  # a line of the model may fail only while it is traced
        named = any(word in frame.function for word in ("compile", "export", "lower"))
        if named and _COMPILE_FILE.search(frame.file):
            return "bad_path" if exception.type in _OF_FILES else "compiler_exception"
    return "script_exception" if inner.user else "python_exception"


def unnamed_exception(errors: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> ErrorFact | None:
    """The last exception of the log as an error. None if a family matched it or one that led to it."""
    chain = last_chain(exceptions)
    if not chain or any(error.exception in chain for error in errors):
        return None
    last = chain[-1]
    family = BY_ID["python_exception"]
    text = bound(f"{last.type}: {last.message}".rstrip(": "))
    fields = {"type": last.type, "detail": bound(last.message, 300)}
    return ErrorFact(family, fields, last.line, text, family.candidates, 1, last.process, last)


def choose_root(errors: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> ErrorFact | None:
    """The error of the highest rank; of several, one that ended the program, or else the first.

    An error ended the program if it belongs to the chain of the last traceback: the program survived earlier
    tracebacks. Noise is never the root, nor is an exception with which the program reported a known error.
    """
    known = [error for error in errors if error.rank > Rank.NOISE]
    known = [error for error in known if not _raises_again(error, known, exceptions)]
    if not known:
        return None
    best = max(error.rank for error in known)
    equals = sorted((error for error in known if error.rank == best), key=lambda error: error.line)
    chain = last_chain(exceptions)
    fatal = [error for error in equals if error.exception is not None and error.exception in chain]
    return (fatal or equals)[0]


def _raises_again(
    error: ErrorFact, known: Sequence[ErrorFact], exceptions: Sequence[PythonException]
) -> bool:
    """Whether this error only reports another: raised `from` it, or in the function that caught it."""
    raised = error.exception
    if error.family.id != "own_check" or raised is None or raised not in exceptions[1:]:
        return False
    caught = exceptions[exceptions.index(raised) - 1]
    if not any(other.exception == caught for other in known):
        return False
    if raised.relation != "during":
        return raised.relation == "cause"
    ends = [(frame.file, frame.function) for frame in (*raised.frames[-1:], *caught.frames[:1])]
    return len(ends) == 2 and ends[0] == ends[1]


_BY_SITE = {kind: family for family in FAMILIES for kind in family.sites}
_NULL_PAGE = 1 << 16  # addresses below this are offsets from a null pointer
_FAR = 1 << 40  # bytes; an address farther from the nearest device allocation belongs to the host


def sanitizer_errors(report: SanitizerReport, line: int) -> list[ErrorFact]:
    """Create an error for each site that compute-sanitizer reported."""
    errors = []
    for site in report.faults:
        if site.kind not in _BY_SITE:
            continue
        names = ("kernel", "file", "line", "direction", "size", "problem")
        known = {name: getattr(site, name) for name in names}
        pointer = ""
        if site.address is not None:
            known["address"] = hex(site.address)
            far = site.nearest is not None and site.nearest.distance > _FAR
            if site.kind in ("invalid_access", "misaligned"):
                known["pointer"] = pointer = "null" if site.address < _NULL_PAGE else "host" if far else ""
        fields = {name: str(value) for name, value in known.items() if value not in (None, "")}
        family = _BY_SITE[site.kind]
        candidates = _first("device_mismatch" if pointer == "host" else None, family.candidates)
        errors.append(ErrorFact(family, fields, line, site.text, candidates, site.count))
    return errors


# The category of a crash by the C++ function on its stack.
_NATIVE: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"constant_buffer|load_constants"), "constants"),
    (re.compile(r"roxy"), "custom_op"),
    (re.compile(r"AOTI"), "toolchain"),
)
# The category of an error that occurs in several stages, by the innermost Python frame that shows the stage.
_STAGES: tuple[tuple[re.Pattern[str], Category], ...] = (
    (
        re.compile(r"\b(?:load_constants|update_constant_buffer|swap_constant_buffer|load_state_dict)\b"),
        "constants",
    ),
    (re.compile(r"\b(?:aoti_load_package|load_package|AOTIModelPackageLoader|aot_load)\b"), "toolchain"),
    (re.compile(r"\b(?:aoti_compile_and_package|aot_compile)\b"), "compile_failure"),
)
# Categories whose cause is in the arguments of a call: impossible while a package loads.
_IN_ARGUMENTS = frozenset({"input_mismatch", "shape_out_of_range", "index_out_of_bounds"})
_COMPILING = re.compile(r"torch\._(?:inductor|dynamo)\.exc\.\w+: |\bInductorError: |\bLoweringException: ")
# Names that AOTAutograd gives a graph's inputs and parameters.
_GRAPH_INPUT = re.compile(r"assert_size_stride\((?P<tensor>(?:primals_|arg)\d\w*),")
# The arguments of `aoti_torch_proxy_executor_call_function` (torch 2.8-2.15).
_NODE = re.compile(r"proxy_executor, (\d+),")
# Candidates by the status that CUDA prints at teardown.
_ASSERTS: tuple[Category, ...] = (
    *("index_out_of_bounds", "input_mismatch", "device_mismatch", "illegal_memory_access"),
)
_ACCESSES: tuple[Category, ...] = (
    *("illegal_memory_access", "device_mismatch", "input_mismatch", "index_out_of_bounds"),
)
_DEVICE_STATUS: tuple[tuple[str, tuple[Category, ...]], ...] = (
    ("device-side assert", _ASSERTS),
    ("illegal memory access", _ACCESSES),
    ("address space", _ACCESSES),
    ("misaligned", ("illegal_memory_access", "input_mismatch")),
    ("out of memory", ("out_of_memory",)),
)
_NOT_FINITE = re.compile(r"(?<![\w.])(?:nan|inf)(?![\w.])", re.IGNORECASE)


def refine(root: ErrorFact, errors: Sequence[ErrorFact], threads: Sequence[ThreadStack]) -> ErrorFact:
    """Adjust the root's family and candidates to fit the log's other errors and stacks."""
    if "bare_status" in root.family.tags:  # the status that CUDA prints at teardown may name the fault
        statuses = " ".join(error.fields.get("status", "") for error in errors if error is not root)
        for text, candidates in _DEVICE_STATUS:
            if text in statuses:
                root = _changed(root, candidates=candidates, device_status=text)
                break
    of_process = [error for error in errors if error.process == root.process]
    root = _explained_by_others(root, of_process)
    root = _at_its_stage(root, of_process)
    root = _by_the_machine(root, errors)
    root = _in_operator(_reported_by_call(root, errors), errors)
    stack = next((thread.frames for thread in threads if thread.current), ())
    if "crash" in root.family.tags:
        # faulthandler's stack shows a crash inside a Python operator.
        own = next((place for place in reversed(range(len(stack))) if stack[place].user), 0)
        if any(OPERATOR_FILE.search(frame.file) for frame in stack[max(own - 2, 0) : own]):
            candidates = _first("custom_op", _first("illegal_memory_access", root.candidates))
            at = {"at_file": stack[own].file, "at_line": str(stack[own].line)}
            root = _changed(root, candidates=candidates, **at, at_function=stack[own].function)
    if "stageless" in root.family.tags:
        frames = stack if root.exception is None else root.exception.frames
        calls = (f"{frame.function}\n{frame.code}" for frame in reversed(frames))
        found = (category for call in calls for pattern, category in _STAGES if pattern.search(call))
        root = _changed(root, candidates=_first(next(found, None), root.candidates))
    if "result_check" in root.family.tags:
        not_finite = any(error.family.id == "not_close_nan" for error in errors)
        if not_finite or _NOT_FINITE.search(root.text):
            root = _changed(root, candidates=_first("nan_or_inf", root.candidates))
    if root.family.id == "size_stride_assert" and "op" in root.fields:
        # `Error in op: input` means that the caller's tensor is wrong; any other name is that of an operator.
        of_input = root.fields["op"].strip() == "input"
        blamed: tuple[Category, ...] = (
            ("input_mismatch", "shape_out_of_range") if of_input else ("custom_op",)
        )
        root = _changed(root, candidates=blamed)
    return replace(root, fields={name: value for name, value in root.fields.items() if name != "inside"})


def _explained_by_others(root: ErrorFact, known: Sequence[ErrorFact]) -> ErrorFact:
    """The root, reclassified if another error of its process explains it."""
    by_id = {error.family.id: error for error in reversed(known)}
    limit = next((e for e in known if e.fields.get("detail") == "Too many open files"), None)
    if limit is not None and root.family.id == "zip_open":
        root = replace(limit, exception=root.exception)
    precompiles = any("precompiled" in error.fields for error in known if error.line < root.line)
    if precompiles and root.family.id in ("cpp_error", "cpp_undeclared"):  # not in the code of the model
        root = _changed(root, "cpp_headers")
    tuned = by_id.get("autotune_device_fault")
    if tuned is not None and root.family.stage == "call":  # autotuning called a kernel with its own tensors
        root = replace(tuned, fields={**root.fields, **tuned.fields})
    build = by_id.get("torch_without_arch")
    if build is not None and root.family.id == "no_kernel_image":
        root = _changed(root, build.family.id, build.candidates, **build.fields)
    if root.family.id == "size_stride_assert":
        # `Error in op` is printed once, after the last of several errors of the same operator.
        ops = [e.fields["op"] for e in known if e.family.id == root.family.id and "op" in e.fields]
        root = _changed(root, op=ops[0]) if ops else root
    return root


def _at_its_stage(root: ErrorFact, known: Sequence[ErrorFact]) -> ErrorFact:
    """The root with candidates that fit what was running when it occurred: load, compile or call."""
    creating = any(e.fields.get("call") == "create_func_" and e.line >= root.line for e in known)
    left = tuple(category for category in root.candidates if category not in _IN_ARGUMENTS)
    if creating:
        root = _changed(root, candidates=left)
    if "fake_operand" in root.family.tags and _COMPILING.search(root.text):
        root = _changed(root, candidates=_first("compile_failure", root.candidates))
    code = root.exception.frames[-1].code if root.exception is not None and root.exception.frames else ""
    tensor = _GRAPH_INPUT.search(code)
    if root.family.id == "size_stride_assert" and tensor is not None and "op" not in root.fields:
        # The tensor is an input of the graph. No operator returned it, so no operator is at fault.
        candidates: tuple[Category, ...] = ("input_mismatch", "constants", "shape_out_of_range")
        root = _changed(root, candidates=candidates, tensor=tensor["tensor"])
    if "native_stack" in root.family.tags:
        native = root.fields.get("native", "")
        category = next((category for pattern, category in _NATIVE if pattern.search(native)), None)
        root = _changed(root, candidates=_first(category, root.candidates))
    return root


def _by_the_machine(root: ErrorFact, errors: Sequence[ErrorFact]) -> ErrorFact:
    """The root, reclassified if the compiler, the processor or the file format explains it."""
    header = root.fields.get("header", root.fields.get("header2", "."))
    compiler = next((e.fields["compiler"] for e in errors if "compiler" in e.fields), None)
    if root.family.id == "cpp_header" and compiler is not None and "." not in header:
        root = _changed(root, blind=compiler)  # the compiler lacks the C++ library: `<vector>`
    if root.family.stage == "load" and root.rank >= Rank.ERROR:
        # A package may still work with another instruction set or GPU, but not on another machine type.
        machines = [e.fields for e in errors if e.family.id == "device_information"]
        of_machine = (fields for fields in machines if fields.get("key") == "AOTI_MACHINE")
        other = next((fields for fields in of_machine if fields["here"] != fields["package"]), None)
        if other is not None:
            built_for, here = other["package"], other["here"]
            root = _changed(root, candidates=("arch_mismatch",), built_for=built_for, here=here)
    if root.family.id == "model_name" and root.fields.get("holds") == root.fields.get("model", ""):
        return _changed(root, "other_folder")
    if root.family.id == "model_name" and "holds" not in root.fields:  # the archive has no compiled package
        if "archive" in root.fields:
            return _changed(root, "not_compiled")
        if {"saved", "wrapped"} & root.fields.keys():
            return _changed(root, "other_archive")
    return root


def _reported_by_call(root: ErrorFact, errors: Sequence[ErrorFact]) -> ErrorFact:
    """The root, reclassified if the generated code reported that an operator call raised it."""
    logged = root.family.id == "shim_exception"
    if not logged and "unclassified" not in root.family.tags:
        return root
    reports, after = ({"shim_call", "shim_exception"}, root.line) if logged else ({"shim_call"}, 0)
    calls = (e for e in errors if e.family.id in reports and e.process == root.process and e.line > after)
    call = next(calls, None)
    if call is not None and "call" in call.fields:
        return _changed(root, "operator_refused", op=call.fields["call"])
    return _changed(root, "operator_refused") if logged else root


def _in_operator(root: ErrorFact, errors: Sequence[ErrorFact]) -> ErrorFact:
    """The root, reclassified if it was raised inside a user's Python operator that torch called.

    Out-of-memory and late CUDA errors are excluded because they can surface in any operator. The field `node`
    is the number of the operator's node in the package, if the log has it.
    """
    at, call = root.fields.get("at"), root.fields.get("operator_call")
    if at is None or call is None or int(at) > int(call):
        return root
    if root.family.late or "out_of_memory" in root.candidates:
        return root
    calls = (_NODE.match(e.fields["arguments"]) for e in errors if e.family.id == "shim_call")
    nodes = [found[1] for found in calls if found]
    node = {"node": nodes[0]} if nodes else {}
    return _changed(root, "operator_raised", ("custom_op", "input_mismatch"), **node)
