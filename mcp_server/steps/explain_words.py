"""An error in one sentence, and the calls and commands that follow from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path, PurePath
from string import Formatter

from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.evidence.families import Advice
from mcp_server.evidence.text import is_expression
from mcp_server.model import NextStep

PACKAGE = "path/of/the/model.pt2"
INPUTS = "path/of/the/inputs.pt"
SCRIPT = "path/of/the/failing/program.py"

# c10::ScalarType and c10::DeviceType of torch 2.8-2.15 (torch/headeronly/core/ScalarType.h, DeviceType.h).
DTYPES: Mapping[str, str] = {
    "0": "uint8",
    "1": "int8",
    "2": "int16",
    "3": "int32",
    "4": "int64",
    "5": "float16",
    "6": "float32",
    "7": "float64",
    "8": "complex32",
    "9": "complex64",
    "10": "complex128",
    "11": "bool",
    "15": "bfloat16",
    "23": "float8_e5m2",
    "24": "float8_e4m3fn",
}
DEVICES: Mapping[str, str] = {
    "0": "cpu",
    "1": "cuda",
    "12": "xpu",
    "13": "mps",
    "14": "meta",
    "20": "privateuse1",
}

_SENTENCES: Mapping[str, str] = {
    "input_dtype": "Input {input} is {got}, the package was compiled for {expected}.",
    "input_device": "Input {input} is on {got}, the package was compiled for {expected_name}.",
    "input_static_dim": "Input {input} has size {got} in dimension {dim}, compiled for {expected}.",
    "input_range": "Input {input} has size {got} in dimension {dim}, compiled for {relation} {expected}.",
    "input_stride": "Input {input} has stride {got} in dimension {dim}, compiled for {expected}.",
    "input_count": "The package takes {expected} tensors and was given {got}.",
    "device_assert_index": "A kernel's check {lower} <= {index} < {bound} failed at {file}:{line}.",
    "cpu_index_assert": "A CPU kernel's check {lower} <= {index} < {bound} failed.",
    "nan_check": "{kind} in {buffer}.",
    "constant_unknown": "Constant {constant} is not on both sides: the given weights and the package.",
    "op_not_registered": "The operator {op} is not registered in this process.",
    "cpp_undeclared": "The generated code uses {name}, which is not declared ({file}:{line}).",
    "library_version": "{library} has no {version}: it is older than what {needed_by} was built with.",
    "triton_resources": "A kernel needs {required} of {status}, and this GPU has {limit}.",
    "undefined_symbol": "{library} needs the symbol {symbol}, which no loaded library has.",
    "sanitizer_access": "{kernel} did an invalid {direction} of {size} bytes at {file}:{line}.",
    "runtime_assert": "The package expects {condition} and got {value}.",
    "triton_compile": "Triton could not compile {function}, at line {kernel_line} of the kernel.",
}

_CALLS: Mapping[Advice, tuple[str, str]] = {
    "check_inputs": ("check_devices", "compare every input with what the package was compiled for"),
    "check_package": (
        "check_devices",
        "check the package's file, device and architecture against this machine",
    ),
    "check_machine": ("check_devices", "look at driver, devices, memory, compiler and libraries"),
    "trace_index": (
        "inspect_package",
        "trace the assertion to its launch, its bound and the input behind it",
    ),
    "constants": ("inspect_package", "list the package's constants with names, shapes and dtypes"),
    "locate": ("locate_fault", "name the launch, the line and the access"),
    "find_nan": ("dump_kernel_io", "find the first launch whose output is not finite"),
    "compare": ("dump_kernel_io", "look at what each launch reads and writes"),
    "run_again": (
        "run_deterministic",
        "run again with blocking launches and input checks, keeping all output",
    ),
    "read_cause": ("run_deterministic", "run again keeping all output: the cause is on standard error"),
    "recompile": ("diagnose", "repeat the compilation and read the generated code"),
    "fix_script": ("diagnose", "check that nothing but the script is at fault"),
    "trace_hang": ("trace_launches", "see the last launch that began and did not end"),
}

_PACKAGE_TOOLS = frozenset(
    {"inspect_package", "check_devices", "trace_launches", "dump_kernel_io", "locate_fault"}
)
_OFFICIAL = (
    "PYTHONUNBUFFERED=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1 CUDA_LAUNCH_BLOCKING=1 AOTI_RUNTIME_CHECK_INPUTS=1"
)
_FLAGS: Mapping[Advice, str] = {
    "check_inputs": "AOTI_RUNTIME_CHECK_INPUTS=1",
    "trace_index": "AOTI_RUNTIME_CHECK_INPUTS=1",
    "locate": _OFFICIAL,
    "run_again": _OFFICIAL,
    "read_cause": "PYTHONUNBUFFERED=1 AOTI_RUNTIME_CHECK_INPUTS=1",
    "find_nan": "TORCHINDUCTOR_NAN_ASSERTS=1",
    "compare": "AOTI_RUNTIME_CHECK_INPUTS=1",
    "trace_hang": "PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 CUDA_LAUNCH_BLOCKING=1",
}


def as_sentence(root: ErrorFact) -> str:
    """The error with its numbers in plain words; the family's meaning where there is no better.

    Words of a log never stand in it: a value that is no name, number or expression is left to `fields`.
    """
    template = _SENTENCES.get(root.family.id, "")
    fields = _named(root)
    wanted = {name for _, name, _, _ in Formatter().parse(template) if name}
    told = template and all(is_expression(fields.get(name, "")) for name in wanted)
    return template.format_map(fields) if told else root.family.meaning


def _named(root: ErrorFact) -> dict[str, str]:
    """The fields, with codes of dtypes and devices replaced by names."""
    fields = dict(root.fields)
    names = {"input_dtype": DTYPES, "input_device": DEVICES}.get(root.family.id)
    for name in ("expected", "got") if names else ():
        fields[name] = (names or {}).get(fields[name], f"code {fields[name]}")
    return fields


def next_call(root: ErrorFact | None, facts: LogFacts, package: Path | None) -> NextStep:
    """The call that shows most; what the log does not name is a placeholder path."""
    advice: Advice = root.family.advice if root else _without_error(facts)
    tool, why = _CALLS[advice]
    program = program_of(facts)
    if tool in _PACKAGE_TOOLS and advice != "check_machine" and package is None and program:
        what = "; the log names the " + "".join(program)
        return NextStep(why=why + what, tool="diagnose", arguments=program)
    return NextStep(why=why, tool=tool, arguments=_arguments(tool, advice, root, program, package))


def _without_error(facts: LogFacts) -> Advice:
    return "locate" if facts.last_launch else "trace_hang" if not facts.best_lines else "run_again"


def _arguments(
    tool: str, advice: Advice, root: ErrorFact | None, program: dict[str, object], package: Path | None
) -> dict[str, object]:
    if advice == "check_machine":
        return {"package": str(package)} if package else {}
    if tool == "inspect_package":
        return {"package": str(package or PACKAGE), **_question(advice, root)}
    if package is not None or not program:
        return _placeholders(tool, advice, package)
    return program


def _placeholders(tool: str, advice: Advice, package: Path | None) -> dict[str, object]:
    if tool == "diagnose" and package is None:
        return {"script": SCRIPT}
    named = str(package or PACKAGE)
    return {"package": named} if advice == "check_package" else {"package": named, "inputs": INPUTS}


def _question(advice: Advice, root: ErrorFact | None) -> dict[str, object]:
    if root is None or advice != "trace_index":
        return {}
    condition = root.fields.get("assertion") or root.text
    return {"assertion": condition}


def shell_lines(root: ErrorFact | None, facts: LogFacts) -> list[str]:
    """What to type without the server, where a variable helps."""
    advice: Advice = root.family.advice if root else _without_error(facts)
    flags = _FLAGS.get(advice)
    program = program_of(facts)
    words = program.get("command") or ["python", program.get("script", SCRIPT)]
    return [f"{flags} {shlex.join(map(str, words))} > run.log 2>&1"] if flags else []  # type: ignore[call-overload]


def program_of(facts: LogFacts) -> dict[str, object]:
    """What failed, as arguments of `diagnose`: a script, what a shell saw end, or a C++ program.

    Empty where the log names none.
    """
    script = script_of(facts)
    if script:
        return {"script": script}
    words = next((_words(e.fields["ran"]) for e in facts.errors if "ran" in e.fields), [])
    if len(words) > 1 and PurePath(words[0]).name.startswith("python") and words[1].endswith(".py"):
        return {"script": words[1]}
    host = next((e.fields["host"] for e in facts.errors if "host" in e.fields), "")
    words = words or ([host] if host else [])
    return {"command": words} if words else {}


def _words(command: str) -> list[str]:
    """The words of a command, of which a shell's variables are not known any more."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return words if "$" not in command else [word for word in words[:2] if "$" not in word]


def script_of(facts: LogFacts) -> str:
    """The script that failed, where a traceback names it."""
    for exception in facts.exceptions:
        first = exception.frames[0] if exception.frames else None
        if first and first.user and first.function == "<module>" and first.file.endswith(".py"):
            return first.file
    return ""
