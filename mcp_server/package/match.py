"""Compares the inputs of a call with the compiled signature. Nothing runs.

The package's own check (`AOTI_RUNTIME_CHECK_INPUTS`) sees neither rank, relations between dimensions, nor
structure (torch 2.8-2.15); this module checks all of them. `mismatch.py` lists two known false alarms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from mcp_server.model import Fix
from mcp_server.package.arithmetic import evaluate
from mcp_server.package.mismatch import (
    GivenTensor,
    Mismatch,
    check_range,
    check_relations,
    contiguous_strides,
    symbol_values,
)
from mcp_server.package.signature import CompiledInput, Signature

__all__ = ["GivenTensor", "Mismatch", "compare_inputs"]

_MAX_SWAPS = 64


def compare_inputs(
    signature: Signature, tensors: Sequence[GivenTensor], *, device_index: int | None = None
) -> list[Mismatch]:
    """All differences, fatal ones first, then by input. `tensors` are the flat inputs in calling order.

    `device_index` is the device on which the package is loaded, if the caller chose one. An unknown signature
    gives no differences.
    """
    if not signature.known:
        return []
    if len(tensors) != len(signature.inputs):
        return [_count(signature, tensors)]
    found = [
        *_swapped(signature, tensors),
        *_differences(signature, tensors),
        *_device_indices(signature, tensors, device_index),
    ]
    return sorted(found, key=lambda m: (m.severity != "fatal", m.aspect != "order"))


def _differences(signature: Signature, tensors: Sequence[GivenTensor]) -> list[Mismatch]:
    values = symbol_values(signature, tensors)
    pairs = zip(signature.inputs, tensors, strict=True)
    alone = [m for item, tensor in pairs for m in _one_input(signature, item, tensor, values)]
    unrankable = {m.input_index for m in alone if m.aspect == "rank"}
    related = [m for m in check_relations(signature, tensors) if m.input_index not in unrankable]
    return alone + related


def _one_input(
    signature: Signature, item: CompiledInput, tensor: GivenTensor, values: dict[str, int]
) -> Iterator[Mismatch]:
    yield from _device(item, tensor)
    yield from _dtype(item, tensor)
    if not item.described:
        return
    if len(tensor.shape) != len(item.dims):
        yield _rank(item, tensor)
        return
    sizes = [*_sizes(item, tensor), *_ranges(signature, item, tensor)]
    yield from sizes
    if not any(m.aspect == "size" for m in sizes):
        yield from _strides(item, tensor, {**values, **_own_symbols(item, tensor)})


def _own_symbols(item: CompiledInput, tensor: GivenTensor) -> dict[str, int]:
    """Symbol values from this input's own sizes, to check its strides independently of other inputs.

    A conflict with other inputs is reported as a size mismatch only.
    """
    pairs = zip(item.dims, tensor.shape, strict=True)
    return {dim.expression: size for dim, size in pairs if dim.expression and dim.expression.isidentifier()}


def _count(signature: Signature, tensors: Sequence[GivenTensor]) -> Mismatch:
    wanted, got = len(signature.inputs), len(tensors)
    names = ", ".join(f"{item.path or item.name} {item.dtype}{item.shape}" for item in signature.inputs[:8])
    return Mismatch(
        category="input_mismatch",
        aspect="count",
        severity="fatal",
        sentence=f"the package takes {wanted} tensors and {got} are given",
        expected=f"{wanted}: {names}",
        got=str(got),
        fix=Fix(action="pass every tensor of the exported call, in its order; the rest was fixed at export"),
    )


def _device(item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    if item.device_type is None or tensor.device_type == item.device_type:
        return
    yield Mismatch(
        category="device_mismatch",
        aspect="device",
        severity="fatal",
        sentence=f"{item.label} is on {tensor.device} and the package was compiled for {item.device_type}",
        expected=item.device_type,
        got=tensor.device,
        fix=_moved(_code_name(item), item.device_type, tensor),
        input_index=item.index,
    )


def _moved(name: str, device: str, tensor: GivenTensor) -> Fix:
    """The fix for a wrong device. A meta tensor has no data to move."""
    if tensor.device_type == "meta":
        return Fix(
            action=f"make it on {device} in the first place, with its values: a meta tensor has none to move",
            before=name,
            after=f"torch.empty_like({name}, device={device!r})  # and fill it",
        )
    action = f"move it to {device} before the call"
    return Fix(action=action, before=name, after=f"{name}.to({device!r})")


def _device_indices(
    signature: Signature, tensors: Sequence[GivenTensor], loaded_on: int | None
) -> Iterator[Mismatch]:
    """Inputs on another GPU than the model. Neither torch nor the package checks this."""
    if loaded_on is not None:
        pairs = zip(signature.inputs, tensors, strict=True)
        yield from (
            _wrong_device_index(*p, loaded_on) for p in pairs if p[1].device_index not in (None, loaded_on)
        )
    elif len(devices := {tensor.device for tensor in tensors if tensor.device_index is not None}) > 1:
        yield _several_devices(", ".join(sorted(devices)))


def _wrong_device_index(item: CompiledInput, tensor: GivenTensor, loaded_on: int) -> Mismatch:
    home = f"{tensor.device_type}:{loaded_on}"
    return Mismatch(
        category="device_mismatch",
        aspect="device_index",
        severity="suspicious",
        sentence=f"{item.label} is on {tensor.device} and the package was loaded on {home}; the checks "
        "compare the type only",
        expected=home,
        got=tensor.device,
        fix=_moved(_code_name(item), home, tensor),
        input_index=item.index,
    )


def _several_devices(devices: str) -> Mismatch:
    return Mismatch(
        category="device_mismatch",
        aspect="device_index",
        severity="suspicious",
        sentence=f"inputs are on several devices ({devices}); the checks compare the type only",
        expected="one device",
        got=devices,
        fix=Fix(action="move every input to the device on which the package is loaded (device_index)"),
    )


def _dtype(item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    got = tensor.dtype.removeprefix("torch.")
    if item.dtype is None or got == item.dtype:
        return
    name = _code_name(item)
    yield Mismatch(
        category="input_mismatch",
        aspect="dtype",
        severity="fatal",
        sentence=f"{item.label} is {got} and was compiled as {item.dtype}: kernels read its bytes as that",
        expected=item.dtype,
        got=got,
        fix=Fix(action="convert it before the call", before=name, after=f"{name}.to(torch.{item.dtype})"),
        input_index=item.index,
    )


def _rank(item: CompiledInput, tensor: GivenTensor) -> Mismatch:
    wanted, got = len(item.dims), len(tensor.shape)
    return Mismatch(
        category="input_mismatch",
        aspect="rank",
        severity="fatal",
        sentence=f"{item.label} has rank {got} ({list(tensor.shape)}) and was compiled with rank {wanted} "
        f"({item.shape}); no run-time check of AOTInductor sees that",
        expected=f"{wanted}: {item.shape}",
        got=f"{got}: {list(tensor.shape)}",
        fix=Fix(action=f"reshape it to {item.shape} (unsqueeze or squeeze) before the call"),
        input_index=item.index,
    )


def _sizes(item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    for dim, got in zip(item.dims, tensor.shape, strict=True):
        if dim.size is not None and dim.size != got:
            yield Mismatch(
                category="input_mismatch",
                aspect="size",
                severity="fatal",
                sentence=f"{item.label}: dimension {dim.index} is {got} and was compiled as {dim.size}",
                expected=str(dim.size),
                got=str(got),
                fix=Fix(
                    action=f"pass {dim.size} there, or export again with dimension {dim.index} dynamic",
                    before=f"dynamic_shapes has no Dim for dimension {dim.index} of {item.path or item.name}",
                    after=f"{{{dim.index}: Dim('n', max={max(got, dim.size)})}}",
                ),
                input_index=item.index,
                dim=dim.index,
            )


def _ranges(signature: Signature, item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    for dim, got in zip(item.dims, tensor.shape, strict=True):
        if dim.size is None:
            yield from check_range(item, dim, got, signature.definition(item.name, dim.index))


def _strides(item: CompiledInput, tensor: GivenTensor, values: dict[str, int]) -> Iterator[Mismatch]:
    expected = [_stride(stride, values) for stride in item.strides]
    wrong = [
        dim
        for dim, (want, got) in enumerate(zip(expected, tensor.strides, strict=False))
        if want is not None and want != got
    ]
    if wrong:
        harmless = tensor.numel <= 1 or all(tensor.shape[dim] == 1 for dim in wrong)
        yield _stride_mismatch(item, tensor, expected, wrong[0], harmless)


def _stride(stride: int | str | None, values: dict[str, int]) -> int | None:
    if not isinstance(stride, str):
        return stride
    value = evaluate(stride, values)
    return int(value) if value is not None and value.denominator == 1 else None


def _stride_mismatch(
    item: CompiledInput, tensor: GivenTensor, expected: list[int | None], dim: int, harmless: bool
) -> Mismatch:
    strides = tuple_text(expected)
    effect = (
        "only dimensions of size 1 differ: harmless to kernels, but AOTI_RUNTIME_CHECK_INPUTS refuses it"
        if harmless
        else "kernels step through memory with the compiled strides"
    )
    return Mismatch(
        category="input_mismatch",
        aspect="stride",
        severity="suspicious" if harmless else "fatal",
        sentence=f"{item.label} has strides {tensor.strides} and was compiled for {strides}: {effect}",
        expected=strides,
        got=str(tensor.strides),
        fix=_stride_fix(item, tensor, expected, strides),
        input_index=item.index,
        dim=dim,
    )


def tuple_text(expected: Sequence[int | str | None]) -> str:
    """Format a tuple as Python does, with `?` for unknown strides."""
    inner = ", ".join("?" if stride is None else str(stride) for stride in expected)
    return f"({inner},)" if len(expected) == 1 else f"({inner})"


def _stride_fix(item: CompiledInput, tensor: GivenTensor, expected: list[int | None], strides: str) -> Fix:
    name = _code_name(item)
    contiguous = contiguous_strides(tensor.shape)
    if all(want in (None, have) for want, have in zip(expected, contiguous, strict=True)):
        return Fix(action="make it contiguous before the call", before=name, after=f"{name}.contiguous()")
    copy = f"torch.empty_strided({list(tensor.shape)}, {strides}, dtype={name}.dtype, device={name}.device)"
    return Fix(action="copy it into a tensor of those strides", before=name, after=f"{copy}.copy_({name})")


def _swapped(signature: Signature, tensors: Sequence[GivenTensor]) -> Iterator[Mismatch]:
    """Swapped inputs: exchanging two of them removes every fatal difference."""
    bad = sorted({m.input_index for m in _fatal(signature, tensors) if m.input_index is not None})
    for first, second in list(combinations(bad, 2))[:_MAX_SWAPS]:
        order = list(range(len(tensors)))
        order[first], order[second] = second, first
        if not _fatal(signature, [tensors[i] for i in order]):
            yield _swap(signature.inputs[first], signature.inputs[second])
            return


def _fatal(signature: Signature, tensors: Sequence[GivenTensor]) -> list[Mismatch]:
    return [m for m in _differences(signature, tensors) if m.severity == "fatal"]


def _swap(first: CompiledInput, second: CompiledInput) -> Mismatch:
    a, b = _code_name(first), _code_name(second)
    return Mismatch(
        category="input_mismatch",
        aspect="order",
        severity="fatal",
        sentence=f"{first.label} and {second.label} are in each other's place: exchanged, both fit",
        expected=f"{a}, {b}",
        got=f"{b}, {a}",
        fix=Fix(action="exchange the two inputs", before=f"model({b}, {a})", after=f"model({a}, {b})"),
        input_index=first.index,
    )


def _code_name(item: CompiledInput) -> str:
    return item.path or f"inputs[{item.index}]"
