"""What the text of an error names: the guilty party, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.logs.facts import ErrorFact
from mcp_server.logs.families import Advice
from mcp_server.logs.text import is_expression
from mcp_server.model import Category, ComponentKind

PARTIES: dict[Category, ComponentKind] = {
    "invalid_package": "package",
    "compile_failure": "toolchain",
    "toolchain": "toolchain",
    "arch_mismatch": "package",
    "environment": "environment",
    "device_mismatch": "input",
    "input_mismatch": "input",
    "shape_out_of_range": "input",
    "constants": "constant",
    "custom_op": "op",
    "concurrency": "call",
    "out_of_memory": "environment",
    "index_out_of_bounds": "input",
    "nan_or_inf": "kernel",
    "illegal_memory_access": "kernel",
    "hang": "call",
    "wrong_output": "kernel",
    "script_error": "script",
}


@dataclass(frozen=True)
class Named:
    """Who an error text names: `name` may be empty, `value` is what the text says of it."""

    kind: ComponentKind
    name: str = ""
    value: str | None = None


@dataclass(frozen=True)
class _Words:
    """How the fields of a family make a name and a value; kind None is the usual one of the category."""

    kind: ComponentKind | None
    name: str
    value: str = ""


_CALL_INPUTS = "the call's inputs"
_INPUT = (_Words("input", "input {input}", "{got} (compiled: {expected})"),)
_WORDS: Mapping[str, tuple[_Words, ...]] = {
    "kwarg_names": (_Words("call", "keyword arguments {got}", "{got} (exported: {expected})"),),
    "input_dtype": _INPUT,
    "input_static_dim": _INPUT,
    "input_range": (_Words("input", "input {input}", "{got} (compiled: {relation} {expected})"),),
    "input_stride": _INPUT,
    "input_device": _INPUT,
    "input_count": (_Words("call", _CALL_INPUTS, "{got} tensors (compiled: {expected})"),),
    "input_tree": (_Words("call", _CALL_INPUTS, "{got} leaves (exported: {expected})"),),
    "undefined_symbol": (_Words(None, "{symbol}", "needed by {library}"),),
    "triton_compile": (_Words("kernel", "{function}", "{reason}"), _Words("kernel", "{function}")),
    "link_library": (_Words(None, "-l{library}"), _Words(None, "linker", "{detail}")),
    "linker": (_Words(None, "{symbol}"), _Words(None, "linker", "{detail}")),
    "linker_shim": (_Words(None, "{symbol}"),),
    "inductor_not_imported": (_Words("environment", "torch", "does not import {package}.{module}"),),
    "loaded_twice": (_Words(None, "{library}", "loaded twice"), _Words(None, "libtorch", "loaded twice")),
    "ptxas_old": (_Words(None, "ptxas", "{detail}"),),
    "triton_resources": (
        _Words("kernel", "{kernel}", "{required} needed, {limit} there"),
        _Words("kernel", "a Triton kernel", "{required} of {status} needed, {limit} there"),
    ),
    "torch_without_arch": (_Words("environment", "torch", "has no kernels for {gpu} ({arch})"),),
    "bad_device_index": (
        _Words("call", "device {specified}", "the data is on {actual}"),
        _Words("call", "device {index}", "{count} devices"),
    ),
    "guard_size": (_Words("input", "{path}", "{got} (exported: {expected})"),),
    "guard_range": (_Words("input", "{path}", "{got} (exported: {relation} {expected})"),),
    "no_compiler": (
        *(_Words(None, f"{{{field}}}") for field in ("program", "compiler", "missing")),
        _Words(None, "C++ compiler"),
    ),
    "compiler_refused": (_Words(None, "{program}", "{detail}"),),
    "compiler_status": (_Words(None, "{program}", "{detail}"),),
    "program_missing": (_Words("environment", "{program}", "not on the PATH"),),
    "environment_variable": (_Words(None, "{variable}", "not set"),),
    "network": (_Words(None, "network", "{detail}"),),
    "cpp_header": (
        _Words(None, "{blind}", "does not find <{header}>, of the C++ library"),
        _Words(None, "{header}"),
        _Words(None, "{header2}"),
    ),
    "cpp_headers": (_Words(None, "C++ headers", "{file}:{line}"),),
    "other_archive": (
        _Words(None, "{wrapped}", "a package inside another archive"),
        _Words(None, "{saved}", "a file of torch.save"),
    ),
    "unpacked_library": (_Words(None, "{path}"),),
    "library_version": (_Words(None, "{library}", "lacks {version}"),),
    "compiler_option": (_Words(None, "{program}", "{detail}"),),
    "model_name": (
        _Words(None, "model '{model}'", "the package holds '{holds}'"),
        _Words(None, "model '{model}'"),
    ),
    "not_compiled": (_Words(None, "{archive}", "an exported program"),),
    "package_file_missing": (_Words(None, "{path}"),),
    "unpacking": (_Words(None, "TMPDIR", "{path}: {detail}"),),
    "temp_directory": (_Words(None, "TMPDIR"),),
    "disk": (_Words(None, "{detail}"),),
    "limit_signal": (_Words(None, "{detail}"),),
    "bad_path": (_Words(None, "{path}", "{detail}"), _Words(None, "{detail}")),
    "permission": (_Words(None, "{path}"), _Words(None, "{detail}")),
    "no_driver": (_Words(None, "CUDA driver", "{status}"),),
    "host_out_of_memory": (
        _Words(None, "host memory", "{bytes} bytes asked for"),
        _Words(None, "host memory"),
    ),
    "device_out_of_memory": (
        _Words(None, "memory of GPU {device}", "{asked} asked for, {total} in all"),
        _Words(None, "device memory", "{asked} asked for"),
        _Words(None, "device memory"),
    ),
    "compiler_killed": (_Words(None, "host memory", "the compiler was killed"),),
    "constant_unknown": (_Words(None, "{constant}"),),
    "export_constraints": (
        _Words("script", "dimension {dim}", "{value}"),
        _Words("script", "dimension {dims}"),
    ),
    "data_dependent": (_Words("script", "{expression}"),),
    "module_missing": (_Words("environment", "module {module}"),),
    "cpu_index_assert": (_Words("kernel", "{kernel}"),),
    "device_assert_index": (_Words("kernel", "{kernel}"),),
    "runtime_assert": (_Words("call", _CALL_INPUTS, "{value} where {condition} is assumed"),),
    "stream_capture": (_Words("call", "the call inside a CUDA graph capture"),),
    "runner_device": (_Words("call", "device_index of the load", "{runner}"),),
}

# Fields that name the guilty party in families without words of their own, the most telling first.
_FIELDS = ("operator", "op", "constant", "library", "symbol", "name", "kernel", "package")
_FIELD_KINDS: Mapping[str, ComponentKind] = {"kernel": "kernel", "op": "op", "operator": "op"}

_ACTIONS: Mapping[Advice, str] = {
    "check_inputs": "compare every input with what the package was compiled for, and convert what differs",
    "check_package": "build or copy the package again, for this machine, and compare its checksum",
    "check_machine": "fix the machine or process environment that the text names, then run again",
    "trace_index": "keep the index within the bound of the tensor that it indexes",
    "locate": "find the launch and the line of the access, then fix the index or the size behind it",
    "find_nan": "find the first launch whose output is not finite, and guard its operation",
    "compare": "find the first launch that diverges from the reference",
    "recompile": "fix the line of the model that the compiler names, then compile again",
    "run_again": "run again with blocking launches and input checks, keeping all output",
    "read_cause": "read the error before this one: it holds the cause",
    "constants": "give every constant of the package under its own name, dtype, shape and device",
    "fix_script": "fix the statement that raised",
    "trace_hang": "find the launch or lock that does not return",
}
_OWN_ACTIONS: Mapping[str, str] = {
    "kwarg_names": "call the package with the keyword arguments {expected}",
    "constant_unknown": "pass the names that get_constant_fqns returns to load_constants; a parameter of up "
    "to eight elements is folded into the code, unless it is compiled with always_keep_tensor_constants",
    "input_count": "pass {expected} tensors; arguments that are no tensors do not count",
    "undefined_symbol": "link {library} with the library that defines {symbol}, or load that one first, "
    "for all to see (RTLD_GLOBAL)",
    "no_compiler": "install a C++ compiler, or set CXX to one that exists",
    "link_library": "install what the linker looks for, or build with a compiler that does not ask for it",
    "custom_op_call": "give the operator a fake function (register_fake) that returns new tensors of the "
    "layout of the real result",
    "op_not_registered": "import the module that registers {op} before the package is loaded",
    "limit_signal": "raise the limit (ulimit -t, ulimit -f) for the process and what it starts",
    "temp_directory": "set TMPDIR to a directory that exists and can be written",
    "host_out_of_memory": "make the batch smaller, or give the process more memory",
    "device_out_of_memory": "make the batch smaller, or free device memory before the call",
    "export_constraints": "mark that dimension static, or make the model work for all sizes of it",
    "data_dependent": "use torch.where or torch.cond for the branch, or promise it with torch._check",
    "cpp_header": "let CXX name a compiler that has its C++ library, which {blind} does not find, without "
    "options such as -nostdinc++",
    "linker": "link the library that defines {symbol}, of the release and the C++ ABI of the headers",
    "kernel_file_missing": "load a .pt2 of torch._inductor.aoti_compile_and_package, which holds them; "
    "a bare .so needs its .cubin files where it was compiled",
    "ptxas_old": "let TRITON_PTXAS_PATH name the ptxas of a CUDA toolkit that knows this GPU, or install a "
    "newer Triton",
    "triton_resources": "give the kernel smaller blocks or fewer stages (num_stages)",
    "torch_without_arch": "install a build of torch whose torch.cuda.get_arch_list() holds {arch}",
    "inductor_not_imported": "put `import {package}.{module}` before the load, or install another torch",
    "loaded_twice": "link and load one copy of it: the one that torch brings",
    "bad_device_index": "load the package, its weights and the inputs on one device, not on {specified} "
    "and {actual}",
    "model_library_missing": "give the loader the path of the compiled model as it is on this machine",
    "unpacking": "set TMPDIR to a directory with room for the package, and raise limits on file sizes",
    "own_check": "see what the check compares the results with, and how that is made",
    "not_compiled": "compile it with torch._inductor.aoti_compile_and_package, and load what that writes",
    "model_name": "pass the model_name under which the model was packaged; the text lists what is there",
    "other_archive": "load the .pt2 that torch._inductor.aoti_compile_and_package wrote; unpack what lies "
    "in another archive",
    "zip_open": "see that the path is right, that this process may read it, and that it may open more files",
    "program_missing": "install {program}, or put the directory in which it is into PATH",
    "cpp_headers": "see which directories CPATH, CPLUS_INCLUDE_PATH and options put before the compiler's "
    "own, and whether the compiler is new enough for this torch",
    "library_version": "start with a newer {library}, or compile with the older compiler",
}


# A symbol of libtorch: of its C interface, or in one of its C++ namespaces, as the Itanium ABI writes it.
_OF_TORCH = re.compile(r"aoti_torch_|_Z[A-Z]*N?K?(?:3c10|2at|5torch)")
_OTHER_TORCH = "build {library} again with the libtorch that is installed here, which has no {symbol}"


class _Fields(dict[str, str]):
    """Fields of which a missing one spoils the words; sentences of a log are none."""

    def __missing__(self, name: str) -> str:
        raise KeyError(name)


def named(category: Category, root: ErrorFact) -> Named:
    """The party that `root` names; without a name where it names none."""
    if category == "arch_mismatch" and "built_for" in root.fields:
        return Named(
            "package", "the package", f"built for {root.fields['built_for']}, here {root.fields['here']}"
        )
    if category == "custom_op" and "at_function" in root.fields:
        return Named("op", root.fields["at_function"])
    for words in _WORDS.get(root.family.id, ()):
        if found := _filled(words, category, root):
            return found
    for field in _FIELDS:
        if root.fields.get(field):
            return Named(_FIELD_KINDS.get(field, PARTIES[category]), root.fields[field], _got(root))
    return Named(_unnamed_kind(category, root), "", _got(root))


def _filled(words: _Words, category: Category, root: ErrorFact) -> Named | None:
    name = _fill(words.name, root)
    if not name:
        return None
    return Named(words.kind or PARTIES[category], name, _fill(words.value, root) or _got(root))


def _fill(template: str, root: ErrorFact) -> str:
    told = {name: value for name, value in root.fields.items() if is_expression(value)}
    try:
        return template.format_map(_Fields(told))
    except KeyError:
        return ""


def _unnamed_kind(category: Category, root: ErrorFact) -> ComponentKind:
    """Export and lowering fail on what the model does, C++ on the toolchain."""
    compiled = category == "compile_failure" and root.family.stage in ("export", "compile")
    return "script" if compiled and not root.family.id.startswith("cpp_") else PARTIES[category]


def _got(root: ErrorFact) -> str | None:
    return root.fields.get("got") or root.fields.get("value")


def action(root: ErrorFact, category: Category) -> str:
    """What to do about a fault of this category, of which this text is the root."""
    if category == "script_error" and root.family.advice not in ("read_cause", "compare"):
        return _ACTIONS["fix_script"]
    own = _OWN_ACTIONS.get(root.family.id)
    if root.family.id == "undefined_symbol" and _OF_TORCH.match(root.fields.get("symbol", "")):
        own = _OTHER_TORCH
    return (own and _fill(own, root)) or _ACTIONS[root.family.advice]
