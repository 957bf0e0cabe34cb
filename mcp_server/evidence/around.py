"""What the rest of a log says about its root: where it happened, and which candidates that rules out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from mcp_server.evidence.facts import ErrorFact
from mcp_server.evidence.families import BY_ID
from mcp_server.evidence.raised import first
from mcp_server.model import Category

# C++ frames by what the program was doing in them.
_NATIVE: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"constant_buffer|load_constants"), "constants"),
    (re.compile(r"roxy"), "custom_op"),
    (re.compile(r"AOTI"), "toolchain"),
)
_CRASHES = frozenset({"segfault", "heap_corruption", "aborted", "terminate", "generic_api_call"})
# Causes that lie in what a call is given, which there is none of while a package is loaded.
_OF_CALLS: frozenset[Category] = frozenset({"input_mismatch", "shape_out_of_range", "index_out_of_bounds"})
# Complaints of operators, which fake tensors make as well as real ones.
_OPERATORS = frozenset({"aten_index", "matrix_shapes", "operand_dtypes", "int_division", "two_devices"})
_COMPILING = re.compile(r"torch\._(?:inductor|dynamo)\.exc\.\w+: |\bInductorError: |\bLoweringException: ")
# How AOTAutograd names what a graph is given: inputs, and parameters among them.
_GIVEN = re.compile(r"assert_size_stride\((?P<tensor>(?:primals_|arg)\d\w*),")


def settle(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """The root with its family and candidates as the other errors and its own place leave them."""
    known = [error for error in errors if error.process == root.process]
    root = _in_headers(_without_files(root, known), known)
    root = _with_operator(_without_kernels(_in_autotune(root, known), known), known)
    return _in_native(_of_given(_at_compile(_at_load(root, known))))


def _in_autotune(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A kernel's failure while the compiler ran it on tensors of its own, whatever the device says of it."""
    tuned = next((error for error in errors if error.family.id == "autotune_device_fault"), None)
    if tuned is None or root.family.stage != "call" or root.family.id == tuned.family.id:
        return root
    return replace(tuned, fields={**root.fields, **tuned.fields})


def _without_files(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A package that cannot be opened, where something else said that no file can."""
    limit = next((e for e in errors if e.fields.get("detail") == "Too many open files"), None)
    if limit is None or root.family.id != "zip_open":
        return root
    return replace(limit, exception=root.exception)


def _in_headers(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """An error of C++ while headers were precompiled: nothing of the model is in them."""
    precompiles = any("precompiled" in error.fields for error in errors if error.line < root.line)
    if not precompiles or root.family.id not in ("cpp_error", "cpp_undeclared"):
        return root
    family = BY_ID["cpp_headers"]
    return replace(root, family=family, candidates=family.candidates)


def _without_kernels(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A missing kernel image where torch said that it has none for this GPU at all."""
    build = next((error for error in errors if error.family.id == "torch_without_arch"), None)
    if build is None or root.family.id != "no_kernel_image":
        return root
    return replace(root, family=BY_ID["torch_without_arch"], fields={**root.fields, **build.fields})


def _with_operator(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """A size that does not fit, whose operator follows the last of several lines only."""
    named = (e.fields["op"] for e in errors if e.family.id == root.family.id and "op" in e.fields)
    op = next(named, None)
    if root.family.id != "size_stride_assert" or op is None:
        return root
    return replace(root, fields={**root.fields, "op": op})


def _at_load(root: ErrorFact, errors: Iterable[ErrorFact]) -> ErrorFact:
    """An error of the creation of a model: no call has been made yet."""
    creating = any(e.fields.get("call") == "create_func_" and e.line >= root.line for e in errors)
    left = tuple(category for category in root.candidates if category not in _OF_CALLS)
    return replace(root, candidates=left) if creating and left else root


def _at_compile(root: ErrorFact) -> ErrorFact:
    """An operator's complaint inside an exception of the compiler: it was made about fake tensors."""
    if root.family.id not in _OPERATORS or not _COMPILING.search(root.text):
        return root
    return replace(root, candidates=first("compile_failure", root.candidates))


def _of_given(root: ErrorFact) -> ErrorFact:
    """A size that does not fit, of a tensor that the compiled graph is given: no operator returned it."""
    frames = root.exception.frames if root.exception is not None else ()
    found = _GIVEN.search(frames[-1].code) if frames else None
    if root.family.id != "size_stride_assert" or found is None or "op" in root.fields:
        return root
    fields = {**root.fields, "tensor": found["tensor"]}
    return replace(root, fields=fields, candidates=("input_mismatch", "constants", "shape_out_of_range"))


def _in_native(root: ErrorFact) -> ErrorFact:
    """A crash whose C++ stack passes through the load, an update of weights or a custom operator."""
    native = root.fields.get("native", "")
    category = next((category for pattern, category in _NATIVE if pattern.search(native)), None)
    if root.family.id not in _CRASHES or category is None:
        return root
    return replace(root, candidates=first(category, root.candidates))
