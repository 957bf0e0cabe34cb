"""The source of a Triton kernel as the wrapper embeds it: its function, its parameters and their types."""

from __future__ import annotations

import ast
import re
import textwrap

from mcp_server.package.terms.dtypes import dtype_of, whole_dtype
from mcp_server.package.terms.program import Source
from mcp_server.package.terms.term import Number, Size, Term

_LONGEST = 400_000  # letters of a source
_SIGNATURE = re.compile(r"'signature':\s*\{(?P<entries>[^{}]*)\}")
_CONSTANTS = re.compile(r"'constants':\s*\{(?P<entries>[^{}]*)\}")
_ENTRY = re.compile(r"'(?P<name>\w+)':\s*'?(?P<value>[^,'}]+)")


def signature_of(source: str) -> dict[str, str]:
    """Types such as `*fp32` and `i64` by parameter, from the `triton_meta` in a Triton kernel's source."""
    found = _SIGNATURE.search(source)
    return dict(_ENTRY.findall(found["entries"])) if found else {}


def constants_of(source: str) -> dict[str, int]:
    """Integer `tl.constexpr` arguments by name, from the `triton_meta` in the source."""
    found = _CONSTANTS.search(source)
    values = _ENTRY.findall(found["entries"]) if found else []
    return {name: int(value) for name, value in values if value.strip().lstrip("-").isdecimal()}


def function_of(kernel: Source) -> ast.FunctionDef | None:
    """The kernel's own function, the last one of its source; None if that cannot be parsed."""
    tree = parsed(kernel.source)
    body = reversed(tree.body) if tree is not None else ()
    return next((node for node in body if isinstance(node, ast.FunctionDef)), None)


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a kernel's source, without its indentation; None if it is invalid or too long."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def module_numbers(tree: ast.Module) -> dict[str, Term]:
    """The whole numbers of the module: `NAME = 16`, `NAME = tl.constexpr(16)`."""
    found: dict[str, Term] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as number))
                | ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=int() as number)])
                )
            ):
                found[name] = Number(number, whole_dtype(number))
    return found


def given_arguments(kernel: Source, function: ast.FunctionDef) -> dict[str, Term]:
    """The parameters of a kernel: addresses, numbers that were compiled in, and scalars."""
    types, constants = signature_of(kernel.source), constants_of(kernel.source)
    tensors = {each.name for each in kernel.parameters if each.type == "tensor"}
    found: dict[str, Term] = {}
    for argument in function.args.args:
        name, fixed = argument.arg, argument.annotation is not None
        type_ = types.get(name, "")
        if name in constants:
            found[name] = Number(constants[name], whole_dtype(constants[name]))
        elif type_.startswith("*") or name in tensors:
            found[name] = Size(name, f"*{dtype_of(type_) or 'float32'}")
        else:
            fixed = fixed and ast.unparse(argument.annotation) == "tl.constexpr"  # type: ignore[arg-type]
            found[name] = Size(name, "int32" if fixed else dtype_of(type_) or "int64")
    return found
