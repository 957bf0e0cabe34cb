"""Writes the fake function of a custom operator that has none, from its results in eager mode."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What torch 2.8-2.15 says of an operator of `torch.library.custom_op`, and of one of a `Library`.
NO_FAKE = re.compile(
    r"no fake impl registered for <CustomOpDef\((?P<made>[\w.]+::\w+)|"
    r"(?P<defined>[\w.]+::\w+)(?:\.\w+)?: attempted to run this operator with Meta tensors"
)


@dataclass
class Call:
    """One call of the operator in eager mode: its arguments by name, and its result."""

    arguments: Dict[str, Any]
    result: Any


class _Watch(TorchDispatchMode):
    """Keeps the first call of an operator."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.call: Optional[Call] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.call is None and func._schema.name == self.name:
            names = [each.name for each in func._schema.arguments]
            self.call = Call({**dict(zip(names, args)), **(kwargs or {})}, result)
        return result


def call_of(name: str, run: Callable[[], Any]) -> Optional[Call]:
    """Return the first call of the operator in `run`; None if there is none, or if `run` fails."""
    with contextlib.suppress(Exception), torch.no_grad(), _Watch(name) as watch:
        run()
        return watch.call
    return None


def written(name: str, calls: List[Call]) -> str:
    """Return the code of a fake function that fits all calls; empty if no simple one does."""
    schema = _schema_of(name)
    first = calls[0].result if calls else None
    several = isinstance(first, (tuple, list))
    if schema is None or schema.is_mutable or not calls:
        return ""
    results = [list(each.result) if several else [each.result] for each in calls]
    made = [_output(calls, [each[place] for each in results]) for place in range(len(results[0]))]
    if not made or not all(made):
        return ""
    body = ", ".join(made)
    body = f"[{body}]" if isinstance(first, list) else f"({body},)" if several else body
    names = ", ".join(each.name for each in schema.arguments)
    return f'@torch.library.register_fake("{name}")\ndef _({names}):\n    return {body}'


def _schema_of(name: str) -> Any:
    space, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, space), operator, None)
    return getattr(getattr(packet, "default", None), "_schema", None)


def _output(calls: List[Call], outputs: List[Any]) -> str:
    """Return an expression for one output of the calls; empty if none fits."""
    if not all(isinstance(each, torch.Tensor) for each in outputs):
        return ""
    tensors = [n for n, value in calls[0].arguments.items() if isinstance(value, torch.Tensor)]
    given = {n: [each.arguments[n] for each in calls] for n in tensors}
    like = next((n for n in tensors if all(map(_alike, given[n], outputs))), "")
    if like:
        return f"torch.empty_like({like})"
    of_kind = next((n for n in tensors if all(map(_same_kind, given[n], outputs))), "")
    if not tensors or not all(each.is_contiguous() for each in outputs):
        return ""
    sizes = [_size(given, [each.shape[dim] for each in outputs]) for dim in range(outputs[0].dim())]
    dtype = "" if of_kind else f", dtype={outputs[0].dtype}"
    return f"{of_kind or tensors[0]}.new_empty([{', '.join(sizes)}]{dtype})" if all(sizes) else ""


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.stride() == other.stride()
    return same and _same_kind(one, other)


def _same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def _size(given: Dict[str, List[torch.Tensor]], wanted: List[int]) -> str:
    """Return the size of an argument that equals `wanted` in all calls, or a number; empty if none does."""
    for name, tensors in given.items():
        for dim in range(min(each.dim() for each in tensors)):
            if [each.shape[dim] for each in tensors] == wanted:
                return f"{name}.shape[{dim}]"
    return str(wanted[0]) if len(set(wanted)) == 1 else ""


@contextlib.contextmanager
def registered(name: str, code: str) -> Iterator[None]:
    """Register the fake function of this code, and undo it."""
    library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    custom_ops: Any = torch._library.custom_ops
    operator = custom_ops._maybe_get_opdef(name)
    before = getattr(operator, "_abstract_fn", None)
    names: Dict[str, Any] = {"torch": torch}
    try:
        exec(code.partition("\n")[2], names)
        torch.library.register_fake(name, names["_"], lib=library)
        yield
    finally:
        library._destroy()
        if operator is not None:
            operator._abstract_fn = before
