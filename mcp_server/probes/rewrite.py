"""Changes generated code without moving a line: adds probes to wrappers, replaces expressions in kernels.

A launch statement of a wrapper becomes, on its own lines, `{ aoti_debug::Launch aoti_debug_launch(7,
"kernel", 3); <views> <arguments> before(); STATEMENT after(); }`. Views created inside the call are first
bound to variables, so that a probe can see them. They are destroyed at the end of the block, where the
original statement would have destroyed them.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mcp_server.errors import ProblemError
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch, Role
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.terms.triton_calls import function_of, signature_of
from mcp_server.package.wrapper import Wrapper
from mcp_server.probes.commands import Skipped
from mcp_server.probes.domain_guard import GUARDED, HELPERS

ROLE_BITS: dict[Role, int] = {"read": 1, "written": 2, "read_write": 3, "unknown": 0}

_CONSTANT = re.compile(r"(?P<declared>auto& (?P<name>\w+) = (?P<value>constants_->at\(\d+\)));")
# A temporary that frees its tensor at the end of the statement, before the second probe.
_OWNER = re.compile(r"RAIIAtenTensorHandle\(")
_HOISTED = re.compile(rf"wrap_with_raii_handle_if_needed\(|{_OWNER.pattern}")
# Expressions that can be evaluated twice: no quotes, assignments, increments or moves.
_PURE = re.compile(
    r"(?!.*(?:\+\+|--|\bmove\(|\brelease\(|\"|'|(?<![=<>!])=(?!=)))[\w\s+\-*/%().:<>,&!|?]+", re.S
)
_HANDLE_ADDRESS = re.compile(r"&(\w+_handle)")
_PLAIN = re.compile(r"[^\x20-\x7e]|[\"\\]")
_NARROW_CPP = re.compile(r"(?P<head>static_cast<|\bfor\s*\(\s*)(?:int32_t|int)\b")
_NARROW_TRITON = re.compile(r"\btl\.(?:program_id|num_programs|arange)\([^()]*\)(?!\.to\()")
_NARROW_TYPE = re.compile(r"\bint(?:8|16|32)_t\b")
_NARROW_CAST = re.compile(
    r"(?P<before>static_cast<|convert<|(?<![\w<:]))int(?:8|16|32)_t(?P<after>>?\(| tmp_acc\w* =)"
)
_INTEGER_VECTOR = re.compile(r"\bVectorized<u?int(?:8|16|32)_t>")
_STATEMENT = re.compile(r"\s*(?:AOTI_TORCH_ERROR_CODE_CHECK\s*\(|[\w:.]+\s*\()")
_DECLARATION = re.compile(r"\s*(?:const\s+)?(?:auto|[\w:]+(?:<[^;=]*>)?)[&*]?\s+\w+\s*[=({]")


class Edit(NamedTuple):
    """A replacement for `text[start:end]`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Rewritten:
    """The new text, the numbers of launches with probes, and the launches without probes and why.

    Launches of `run_impl` keep their index; the numbering continues with those of constant folding.
    """

    text: str
    probed: tuple[int, ...]
    skipped: tuple[Skipped, ...]


def numbered(wrapper: Wrapper) -> list[tuple[int, Launch]]:
    """List every launch with the number under which probes report it."""
    folding = wrapper.folding.launches if wrapper.folding else ()
    return list(enumerate((*wrapper.run.launches, *folding)))


def rewrite(
    wrapper: Wrapper, model: str, refused: dict[int, str] | None = None, *, separate_weights: bool = False
) -> Rewritten:
    """Insert probes into the text from which `wrapper` was read.

    `refused` maps launch numbers to the compiler's error on their probes; those launches stay unchanged.
    `separate_weights` gives each weight that no launch writes its own allocation.
    """
    refused = refused or {}
    bodies = [body for body in (wrapper.run, wrapper.folding) if body is not None and body.launches]
    # An object that lives as long as the call. `this` of the base class is enough to tell runners apart.
    edits = [
        Edit(at.start, at.start, f' aoti_debug::Run aoti_debug_run(this, "{at.name}", (void*)(stream));')
        for at in bodies
    ]
    if separate_weights:
        edits += _separations(wrapper)
    probed: list[int] = []
    reasons = [f"line {problem.line}: {problem.what}" for problem in wrapper.problems]
    skipped = [Skipped(model=model, launch=None, kernel="", reason=reason) for reason in reasons]
    for number, launch in numbered(wrapper):
        reason = refused.get(number) or why_not(wrapper.text, launch)
        if reason:
            skipped.append(Skipped(model=model, launch=number, kernel=launch.kernel, reason=reason))
            continue
        probed.append(number)
        edits += _launch_edits(wrapper.text, number, launch)
    return Rewritten(apply(wrapper.text, edits), tuple(probed), tuple(skipped))


def apply(text: str, edits: Collection[Edit]) -> str:
    """Apply all edits to the text. They must not overlap; edits at the same position keep their order."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: e.start):
        parts += (text[at : edit.start], edit.text)
        at = edit.end
    return "".join((*parts, text[at:]))


def replaced(wrapper: Wrapper, statements: Mapping[int, str]) -> str:
    """The wrapper's text with some launches replaced by other statements, by launch number."""
    launches = wrapper.launches
    edits = [Edit(launches[at].start, launches[at].end, text) for at, text in statements.items()]
    return apply(wrapper.text, edits)


def _separations(wrapper: Wrapper) -> Iterator[Edit]:
    body = wrapper.run
    written = {n for launch in body.launches for n in launch.writes} | {t.writes for t in body.transfers}
    storages = {buffer.storage for name, buffer in body.buffers.items() if name in written}
    for match in _CONSTANT.finditer(wrapper.text, body.start, body.end):
        buffer = body.buffers.get(match["name"])
        if buffer is not None and buffer.kind == "constant" and buffer.storage not in storages:
            value = f"aoti_debug::separate<RAIIAtenTensorHandle>({match['value']})"
            yield Edit(match.start("declared"), match.end(), f"auto {match['name']} = {value};")


def why_not(text: str, launch: Launch) -> str:
    """Why a launch cannot have probes. Empty if it can."""
    statement = text[launch.start : launch.end]
    if _DECLARATION.match(statement) and not _STATEMENT.match(statement):
        return "the launch is part of a declaration, which a block around it would end"
    if not statement.rstrip().endswith(";"):
        return "the statement is cut"
    return ""


def _launch_edits(text: str, number: int, launch: Launch) -> list[Edit]:
    hoists: list[Edit] = []
    bindings: list[str] = []
    calls: list[str] = []
    for argument in launch.arguments:
        hoisted = _hoist(text, argument, len(hoists))
        if hoisted is not None:
            hoists.append(hoisted[0])
            bindings.append(hoisted[1])
        calls += _report(argument, hoisted[0].text if hoisted else None)
    head = f"{{ aoti_debug::Launch aoti_debug_launch({number}, {quoted(launch.kernel)}, {len(calls)}); "
    reports = "".join(f"aoti_debug_launch.{call}; " for call in calls)
    before = f"{head}{''.join(bindings)}{reports}aoti_debug_launch.before(); "
    return [
        Edit(launch.start, launch.start, before),
        *hoists,
        Edit(launch.end, launch.end, " aoti_debug_launch.after(); }"),
    ]


def _hoist(text: str, argument: Argument, count: int) -> tuple[Edit, str] | None:
    """The edit that replaces an inline view or owner with a variable, and its definition."""
    expression = text[argument.start : argument.end]
    match = (_HOISTED if argument.view else _OWNER).search(expression) if argument.is_tensor else None
    if match is None:
        return None
    start, end, depth = argument.start + match.start(), argument.start + match.end(), 1
    while depth and end < argument.end:  # up to the parenthesis that closes the call
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    if depth:
        return None
    name = f"aoti_debug_view_{count}"
    value = text[start:end].replace("\n", " ")
    return Edit(start, end, name), f"auto&& {name} = {value}; "


def _report(argument: Argument, hoisted: str | None) -> Iterator[str]:
    """Yield the probe call that reports one argument, unless it is neither tensor nor number."""
    if argument.is_tensor and argument.target:
        names = f"{quoted(argument.target)}, {quoted(argument.name)}, {ROLE_BITS[argument.role]}"
        if address := _HANDLE_ADDRESS.fullmatch(argument.expression):
            yield f"result({names}, {address[0]})"
        else:
            yield f"tensor({names}, aoti_debug::handle({hoisted or argument.target}))"
    elif argument.kind in ("symbol", "scalar") and _PURE.fullmatch(argument.expression):
        value = argument.expression.replace("\n", " ")
        yield f"scalar({quoted(argument.name or argument.target or '')}, {value})"


def quoted(name: str) -> str:
    """A name from untrusted text as a C++ string literal."""
    return '"' + _PLAIN.sub("?", name)[:200] + '"'


# Pure functions that a C++ replacement may call, besides those that the kernel calls.
_CPP_FUNCTIONS = re.compile(
    r"abs|acos|asin|atan2?|bool|ceil|clamp(?:_max|_min)?|convert|copysign|cosh?|decltype|double|erfc?|exp2?|expm1"
    r"|fabs|float|floor|fma|fmax|fmin|fmod|hypot|infinity|int(?:32_t|64_t)?|isfinite|isinf|isnan|log(?:10|1p|2)?"
    r"|lowest|max(?:_propagate_nan|imum)?|min(?:_propagate_nan|imum)?|nearbyint|numeric_limits|pow|quiet_NaN"
    r"|reciprocal|round|rsqrt|sigmoid|sinh?|sizeof|sqrt|static_cast|tanh?|trunc|Vectorized|blendv"
)
TRITON_MODULES = frozenset({"tl", "libdevice", "tl_math", "triton_helpers", "math"})
_TRITON_EFFECTS = re.compile(r"store|atomic_\w+|device_\w+|inline_asm\w*|debug_barrier")
FINITE_FILL = "-1e30f"  # replaces -inf: softmax gives 0, or equal shares if all are masked

_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)|\+\+|--")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?\s*\(")
_INDIRECT = re.compile(r"[)\]]\s*\(")
_KEYWORDS = re.compile(r"\b(?:new|delete|throw|asm|goto|return|co_await|co_yield)\b")
_INFINITY = re.compile(
    r"(auto \w+ = [^;\n]*?)-\s*std::numeric_limits<float>::infinity\(\)([^;\n]*;)"
    r"|(tl\.full\([^\n]*?)float\([\"']-inf[\"']\)"
)

# A limit on one side only, for a number or a vector.
_LIMIT = """
template <typename T> inline T NAME(T value, int64_t end) { return value SIGN T(end) ? T(end) : value; }
template <typename T> inline at::vec::Vectorized<T> NAME(at::vec::Vectorized<T> value, int64_t end)
{ return at::vec::FUNCTION(value, at::vec::Vectorized<T>(T(end))); }
template <typename T, int N>
inline at::vec::VectorizedN<T, N> NAME(at::vec::VectorizedN<T, N> value, int64_t end)
{ return at::vec::FUNCTION(value, at::vec::VectorizedN<T, N>(T(end))); }
"""
_LIMITS = {"aoti_debug_at_most": (">", "minimum"), "aoti_debug_at_least": ("<", "maximum")}


def compiled_form(source: str) -> str:
    """Put the definitions of helper functions before the kernel that may call them, on its first line."""
    helpers = ""
    for name, (sign, function) in _LIMITS.items():
        if f"{name}(" in source:
            helper = _LIMIT.replace("NAME", name).replace("SIGN", sign).replace("FUNCTION", function)
            helpers += " ".join(helper.split()) + " "
    source = helpers + source
    return HELPERS + source if GUARDED.search(source) else source


def replaced_once(kernel: Kernel, old: str, new: str) -> str:
    """The kernel's source with its only occurrence of `old` replaced by the expression `new`.

    A statement that occurs in a loop over vectors and again in the loop over the remainder counts once. Raise
    `ProblemError` if `old` does not occur exactly once, with the lines where it does, or if `new` is not a
    pure expression of numbers.
    """
    if not old.strip():
        raise ProblemError("the text to replace is empty", allowed=f"a text out of {kernel.name}")
    # including overlapping occurrences
    places = [match.start() for match in re.finditer(f"(?={re.escape(old)})", kernel.source)]
    first = max(kernel.first_line, 1)  # the kernel's first line in its file
    if not places:
        raise _lacking(kernel, old, first)
    if len(places) > 1 and not _is_one_statement(kernel.source, places):
        texts = kernel.source.split("\n")
        numbers = [kernel.source.count("\n", 0, place) for place in places[:6]]
        lines = [f"line {first + number}: {texts[number].strip()[:160]}" for number in numbers]
        raise ProblemError(
            f"this text occurs {len(places)} times in {kernel.name}: {'; '.join(lines)}",
            value=old,
            allowed="a text that occurs once: add the text around it",
        )
    if not new.strip():
        raise ProblemError("the replacement is empty", allowed="an expression")
    if kernel.kind == "cpp":
        _check_cpp(kernel, old, new)
    else:
        _check_python(new)
    source = kernel.source
    for place in reversed(places):
        source = source[:place] + new + source[place + len(old) :]
    return source


def _lacking(kernel: Kernel, old: str, first: int) -> ProblemError:
    """Say that the text does not occur, and the line where it does with other spaces."""
    spaced = r"\s*".join(re.escape(part) for part in re.findall(r"\w+|[^\w\s]", old))
    hint = ""
    if match := re.search(spaced, kernel.source):
        line = first + kernel.source.count("\n", 0, match.start())
        hint = f" (line {line} matches except for spaces: {match[0]})"
    return ProblemError(
        f"this text does not occur in {kernel.name}{hint}",
        value=old,
        allowed="a text that occurs once, with its spaces",
        next_call=f"inspect_package with kernel={kernel.name} prints the source",
    )


def _is_one_statement(source: str, places: Sequence[int]) -> bool:
    """Whether two positions are copies of one line, in the loops over vectors and over the remainder."""
    lines = {source[source.rfind("\n", 0, at) + 1 : source.find("\n", at)].strip() for at in places}
    between = source[places[0] : places[1]]
    return (
        len(places) == 2 and len(lines) == 1 and "C10_UNLIKELY(" in between and "C10_LIKELY(" not in between
    )


def _check_cpp(kernel: Kernel, old: str, new: str) -> None:
    """Raise `ProblemError` unless `new` only computes a value: no assignment, no unknown function."""
    kept = "an expression of numbers: operators, casts, functions of the kernel and of std"
    if ";" in old or _ASSIGNS.search(old):
        kept = "only the right-hand side is replaced; a trailing ';' stays where it is"
    signs = (sign for sign in (*";{}#\"'\\", "//", "/*") if sign in new)
    known = set(_CALL.findall(kernel.source)) - {kernel.name, "store", "AOTI_TORCH_CHECK"}
    called = (name for name in _CALL.findall(new) if not _CPP_FUNCTIONS.fullmatch(name) and name not in known)
    problem = ""
    if sign := next(signs, ""):
        problem = f"holds {sign!r}, which no expression needs"
    elif _ASSIGNS.search(new):
        problem = "assigns a value, a side effect"
    elif _KEYWORDS.search(new):
        problem = "is more than an expression"
    elif _INDIRECT.search(new):
        problem = "calls a parenthesised or indexed name"
    elif unknown := next(called, ""):
        problem = f"calls {unknown}, an unknown function that may have side effects"
    if problem:
        raise ProblemError(f"the replacement {problem}", value=new, allowed=kept)


def _check_python(new: str) -> None:
    try:
        tree = ast.parse(new.strip(), mode="eval")
    except SyntaxError as error:
        raise ProblemError(
            f"the replacement is not an expression: {error.msg}", value=new, allowed="a Triton expression"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Lambda):
            raise ProblemError("the replacement is more than a value", value=new)
        if isinstance(node, ast.Call) and not _pure(node):
            raise ProblemError(
                f"the replacement calls {ast.unparse(node.func)}, which may have side effects",
                value=new,
                allowed="functions of tl, libdevice and triton_helpers, and what the kernel calls itself",
            )


def _pure(call: ast.Call) -> bool:
    """Whether a call only computes a value: `tl.where(...)`, `float(...)`, `tmp0.to(...)`."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ("float", "int", "min", "max", "abs")
    if not isinstance(function, ast.Attribute) or _TRITON_EFFECTS.fullmatch(function.attr):
        return False
    base = function.value
    module = base.id if isinstance(base, ast.Name) else ""
    return module in TRITON_MODULES or function.attr in ("to", "exp", "sum", "max", "min")


def with_bounds_kept(kernel: Kernel) -> str:
    """The kernel with each checked index clamped to its bounds. Raises `ProblemError` if impossible."""
    asserts = find_asserts(kernel.source)
    if kernel.kind != "cpp" or not asserts:
        raise ProblemError(
            f"{kernel.name} has no index check in C++ that names the bound",
            value=kernel.kind,
            allowed="a C++ kernel with an index check",
            next_call="`kernel` NAME, `replace` OLD NEW",
        )
    lines, program = kernel.source.split("\n"), read_program(kernel)
    for check in asserts:
        made = program.check_at(check.line)
        number = program.defining_line(made) if made is not None else None
        if number is None or check.upper is None:
            raise ProblemError(f"the definition of the index is not found: {check.text}", value=kernel.name)
        head, sign, value = lines[number - 1].partition(" = ")
        if value.startswith("aoti_debug_at_most("):
            continue
        if not sign or not value.endswith(";"):
            raise ProblemError("the definition of the index spans lines", value=lines[number - 1].strip())
        kept = f"aoti_debug_at_least({value[:-1]}, {check.lower or '0'})"
        lines[number - 1] = f"{head} = aoti_debug_at_most({kept}, ({check.upper.rstrip('L')}) - 1);"
    return "\n".join(lines)


def with_limits(kernel: Kernel, lines: Collection[int], low: int | None, high: int | None) -> str:
    """Limit the values that these lines (1-based) of a kernel define. Raise `ProblemError` if impossible."""
    texts = kernel.source.split("\n")
    for number in lines:
        head, sign, value = texts[number - 1].partition(" = ")
        if kernel.kind != "cpp" or not sign or not value.endswith(";"):
            raise ProblemError("the value is not defined on this line", value=texts[number - 1].strip())
        value = value[:-1]
        if low is not None:
            value = f"aoti_debug_at_least({value}, {low}L)"
        if high is not None:
            value = f"aoti_debug_at_most({value}, {high}L)"
        texts[number - 1] = f"{head} = {value};"
    return "\n".join(texts)


def with_finite_mask(kernel: Kernel) -> str:
    """The kernel with a finite number in place of -inf. Raises `ProblemError` if it has no -inf."""
    if kernel.kind == "cpp":
        text, count = _INFINITY.subn(rf"\g<1>{FINITE_FILL}\g<2>", kernel.source)
    else:
        text, count = re.subn(r"float\([\"']-inf[\"']\)", FINITE_FILL.rstrip("f"), kernel.source)
    if not count:
        raise ProblemError(
            f"{kernel.name} fills nothing with minus infinity",
            allowed="a kernel with -std::numeric_limits<float>::infinity() or float('-inf')",
        )
    return text


def with_wide_indices(kernel: Kernel) -> str:
    """The kernel with its indices computed in 64 bits. Raises `ProblemError` if they already are."""
    if kernel.kind == "cpp":
        text, count = _NARROW_CPP.subn(r"\g<head>int64_t", kernel.source)
    else:
        text, count = _NARROW_TRITON.subn(r"\g<0>.to(tl.int64)", kernel.source)
        function = function_of(kernel)
        assert function is not None, "only a kernel that was read has a defect"
        stored = {
            n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        narrow = [name for name, type_ in signature_of(kernel.source).items() if type_ == "i32"]
        lines = text.split("\n")
        head, body = (lines[: function.body[0].lineno - 1], lines[function.body[0].lineno - 1 :])
        for name in set(narrow) - stored:
            body = [re.sub(rf"(?<![\w.])({name})\b(?!\s*=[^=])", r"\1.to(tl.int64)", line) for line in body]
        text = "\n".join([*head, *body])
    if text == kernel.source or not count:
        raise ProblemError(f"no index of {kernel.name} is computed in fewer than 64 bits", value=kernel.name)
    return text


def with_wide_integers(kernel: Kernel) -> str:
    """The kernel with integer loads and arithmetic widened to int64; stores keep their dtype.

    Raise `ProblemError` if no integer is narrower, or for C++ vector code.
    """
    if kernel.kind == "cpp":
        if _INTEGER_VECTOR.search(kernel.source):
            raise ProblemError(f"{kernel.name} computes with vectors of integers", value=kernel.name)
        pointers = [p.name for p in kernel.parameters if "*" in p.type and _NARROW_TYPE.search(p.type)]
        text = _NARROW_CAST.sub(r"\g<before>int64_t\g<after>", kernel.source)
        load, wide = r"(auto \w+ = )({}\[.*\]);$", r"\1static_cast<int64_t>(\2);"
    else:
        types = signature_of(kernel.source)
        pointers = [name for name, type_ in types.items() if type_ in ("*i8", "*i16", "*i32")]
        text = re.sub(r"\btl\.int(?:8|16|32)\b", "tl.int64", kernel.source)
        load, wide = r"(\w+ = )(tl\.load\({}\b.*\))$", r"\1(\2).to(tl.int64)"
    for name in pointers:
        text = re.sub(load.format(re.escape(name)), wide, text, flags=re.M)
    if text == kernel.source:
        raise ProblemError(f"no whole number of {kernel.name} has fewer than 64 bits", value=kernel.name)
    return text
