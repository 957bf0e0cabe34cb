"""Run packages under the audit module and write down every call that their libraries make.

`LD_AUDIT=audit.so AUDIT_REGISTER=FILE python -m tests.witness.record TASKS.json`, where the file lists
objects of `package`, `model` (its name in the package), `inputs`, `exported` (the program with the constants)
and `told` (the file to write).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tests.zoo.models  # noqa: F401 - registers the custom op
from tests.witness.shims import Parameter, read_shims

Json = dict[str, Any]
Words = Any  # a ctypes pointer to 64-bit words

_PROTOTYPE = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_double),
    ctypes.POINTER(ctypes.c_uint64),
)
_REGISTERS = 6
_KERNEL_WORDS = 24
_INTEGERS = {"int64_t": (64, True), "int32_t": (32, True), "int": (32, True), "bool": (8, False)}
# The library asks or tells the runtime something about a handle; nothing of the model is computed.
_HELPERS = (
    "aoti_torch_get_",
    "aoti_torch_delete_",
    "aoti_torch_dtype_",
    "aoti_torch_device_type_",
    "aoti_torch_grad_mode_",
    "aoti_torch_is_",
    "aoti_torch_layout_",
    "aoti_torch_create_cuda_",
    "aoti_torch_empty_strided",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_new_uninitialized_tensor",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_assign_tensors_out",
)


class Runtime:
    """Questions to libtorch about a tensor handle."""

    def __init__(self) -> None:
        library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        self.torch = ctypes.CDLL(str(library))

    def number(self, question: str, handle: int, type_: Any = ctypes.c_int64) -> int:
        answer = type_()
        self.torch[f"aoti_torch_{question}"](ctypes.c_void_p(handle), ctypes.byref(answer))
        return int(answer.value or 0)

    def defined(self, handle: int) -> bool:
        """Whether a tensor is behind a handle; torch 2.8 has no function that tells, and no other answer."""
        known = hasattr(self.torch, "aoti_torch_is_defined")
        return not known or bool(self.number("is_defined", handle, ctypes.c_bool))

    def tensor(self, handle: int) -> torch.Tensor | None:
        """The tensor behind a handle, sharing its memory; None for none or an undefined one."""
        if not handle or not self.defined(handle):
            return None
        copy = ctypes.c_void_p()
        self.torch.aoti_torch_new_tensor_handle(ctypes.c_void_p(handle), ctypes.byref(copy))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(copy.value, None, None))


def facts(tensor: torch.Tensor) -> Json:
    """Where a tensor lies and its shape; strides in elements."""
    return {
        "data": tensor.data_ptr(),
        "storage": tensor.untyped_storage().data_ptr(),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": tensor.device.type,
    }


def content(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()


class Recorder:
    """Collects the calls of one run. A call's results and changes are read when the next call begins."""

    def __init__(self, constants: dict[str, torch.Tensor]) -> None:
        self.constants = constants
        self.runtime = Runtime()
        self.shims = read_shims(Path(torch.__file__).parent / "include")
        self.calls: list[Json] = []
        self.handles: dict[int, int] = {}  # living ones, with the address that the library asked for
        self.unsettled: list[Callable[[], None]] = []

    def see(self, name: str, integers: Words, floats: Words, stack: Words) -> None:
        self.settle()
        if name == "aoti_torch_get_data_ptr":
            self.handles[integers[0]] = self.runtime.number("get_data_ptr", integers[0], ctypes.c_void_p)
        elif name == "aoti_torch_delete_tensor_object":
            self.handles.pop(integers[0], None)
        elif name.startswith("cuLaunch"):
            self._kernel(_gpu_launch(integers, stack))
        elif name.startswith("cpp_"):
            words = [*integers[:_REGISTERS], *stack[:_KERNEL_WORDS]]
            self._kernel({"name": name, "words": words})
        elif not name.startswith(_HELPERS):
            self._shim(name, integers, floats, stack)

    def settle(self) -> None:
        for finish in self.unsettled:
            finish()
        self.unsettled.clear()

    def _kernel(self, call: Json) -> None:
        """A kernel gets bare addresses: they are among those that the library asked handles for."""
        given = frozenset(call["words"]) - {0}
        call["tensors"] = [self._tensor(h) for h, address in self.handles.items() if address in given]
        self.calls.append(call)

    def _tensor(self, handle: int) -> Json | None:
        """Facts of a tensor as it is handed to a call, whether the call changes it, and constants like it."""
        tensor = self.runtime.tensor(handle)
        if tensor is None:
            return None
        found = {**facts(tensor), "constants": [n for n, c in self.constants.items() if _holds(tensor, c)]}
        before = content(tensor)
        self.unsettled.append(lambda: found.update(changed=not torch.equal(before, content(tensor))))
        return found

    def _shim(self, name: str, integers: Words, floats: Words, stack: Words) -> None:
        parameters = self.shims.get(name, ())
        words = iter([*integers[:_REGISTERS], *stack[:_KERNEL_WORDS]])
        reals = iter(floats[:8])
        given = [(p, next(reals) if p.is_float else next(words)) for p in parameters]
        values = {p.name: value for p, value in given}
        call = {"name": name, "known": name in self.shims, "arguments": []}
        call["arguments"] = [self._argument(p, value, values) for p, value in given]
        self.calls.append(call)

    def _argument(self, parameter: Parameter, value: Any, values: dict[str, Any]) -> Json:
        """An argument by its C type: tensors, numbers, a text, or a result to come."""
        told: Json = {"name": parameter.name}
        base, stars = parameter.base, parameter.type.count("*")
        if parameter.is_result:
            self.unsettled.append(lambda: told.update(self._result(base, value)))
        elif parameter.is_float:
            told["value"] = value
        elif base == "AtenTensorHandle":
            self._handles(told, value, stars, _length(parameter, values))
        elif base == "char" and stars == 1:
            told["text"] = ctypes.string_at(value).decode() if value else None
        elif base in _INTEGERS and stars == 0:
            told["value"] = _integer(value, base)
        elif base in _INTEGERS and stars == 1:
            count = _length(parameter, values)
            told["values"] = [_integer(w, base) for w in _words_at(value, 1 if count is None else count)]
        return told

    def _handles(self, told: Json, value: int, stars: int, count: int | None) -> None:
        """A tensor, maybe none, or a list of tensors, of which a proxy call fills in undefined ones."""
        handles = _words_at(value, 1 if count is None else count) if stars else [value]
        tensors = [self._tensor(handle) for handle in handles]
        if count is None:
            told["tensor"] = tensors[0] if tensors else None
        else:
            told["tensors"] = tensors
            self.unsettled.append(lambda: self._fill(tensors, handles))

    def _result(self, type_: str, address: int) -> Json:
        if type_ == "AtenTensorHandle":
            (handle,) = _words_at(address, 1) or [0]
            tensor = self.runtime.tensor(handle)
            return {"result": None if tensor is None else facts(tensor)}
        if type_ in _INTEGERS:
            return {"result": _integer(_words_at(address, 1)[0], type_)}
        return {}

    def _fill(self, tensors: list[Json | None], handles: list[int]) -> None:
        """A proxy call fills in the undefined tensors that it was given."""
        for position, handle in enumerate(handles):
            tensor = self.runtime.tensor(handle) if tensors[position] is None else None
            if tensor is not None:
                tensors[position] = {**facts(tensor), "changed": True, "constants": []}


def _length(parameter: Parameter, values: dict[str, Any]) -> int | None:
    """How many elements an array has: another parameter says; None for a pointer to one."""
    name = parameter.name
    counts = (f"{name}_len_", f"num_{name}", f"num_{name.removeprefix('flatten_').removesuffix('_args')}s")
    found = next((values[c] for c in counts if c in values), None)
    return None if found is None else int(found) & 0xFFFFFFFF


def _holds(tensor: torch.Tensor, constant: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds exactly that constant, whatever shape it is seen in."""
    needed = constant.numel() * constant.element_size()
    if tensor.dtype != constant.dtype or tensor.numel() != constant.numel() or not needed:
        return False
    whole = torch.as_strided(tensor, constant.shape, constant.stride(), tensor.storage_offset())
    return bool(torch.equal(whole.cpu(), constant))


def _integer(word: int, type_: str) -> int:
    bits, signed = _INTEGERS[type_]
    value = word & ((1 << bits) - 1)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _words_at(address: int, count: int) -> list[int]:
    return [*(ctypes.c_uint64 * count).from_address(address)] if address else []


def _gpu_launch(integers: Words, stack: Words) -> Json:
    """cuLaunchKernel(function, grid x y z, block x y z, shared bytes, stream, parameters, extra)."""
    cuda = ctypes.CDLL("libcuda.so.1")
    function, name = ctypes.c_void_p(integers[0]), ctypes.c_char_p()
    cuda.cuFuncGetName(ctypes.byref(name), function)
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[int] = []
    while not cuda.cuFuncGetParamInfo(
        function, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
    ):
        sizes.append(size.value)
    places = _words_at(stack[3], len(sizes))
    return {
        "name": (name.value or b"?").decode(),
        "grid": [integers[1] & 0xFFFFFFFF, integers[2] & 0xFFFFFFFF, integers[3] & 0xFFFFFFFF],
        "threads": (integers[4] & 0xFFFFFFFF) * (integers[5] & 0xFFFFFFFF) * (stack[0] & 0xFFFFFFFF),
        "shared_bytes": stack[1] & 0xFFFFFFFF,
        "words": [_number(place, size) for place, size in zip(places, sizes)],  # noqa: B905 - Python 3.9
        "bytes": sizes,
    }


def _number(place: int, size: int) -> int:
    return int.from_bytes(ctypes.string_at(place, size), "little")


def constants_of(exported: str) -> dict[str, torch.Tensor]:
    """Parameters and buffers by their name in the model."""
    program = torch.export.load(exported)
    named = {**program.state_dict, **program.constants}
    return {n: t.detach().cpu().clone() for n, t in named.items() if isinstance(t, torch.Tensor)}


def record(task: dict[str, str]) -> Json:
    """One run of a model: inputs and outputs with their addresses, and the calls between, in order."""
    recorder = Recorder(constants_of(task["exported"]))
    inputs = torch.load(task["inputs"], weights_only=True)
    given = [facts(t) for t in inputs]
    with torch.no_grad(), _watched_by(recorder):
        loader = torch._C._aoti.AOTIModelPackageLoader(task["package"], task["model"], False, 1, -1)
        recorder.calls.clear()  # constants were made of bytes; where they lie stays known
        outputs = loader.run(list(inputs))
    return {"inputs": given, "outputs": [facts(t) for t in outputs], "calls": recorder.calls}


@contextmanager
def _watched_by(recorder: Recorder) -> Iterator[None]:
    """Hand the audit module a function to call; an error in it is raised at the end."""
    failures: list[BaseException] = []

    def see(name: bytes, integers: Words, floats: Words, stack: Words) -> None:
        try:
            recorder.see(name.decode(), integers, floats, stack)
        except BaseException as error:
            failures.append(error)

    callback = _PROTOTYPE(see)
    address = int(Path(os.environ["AUDIT_REGISTER"]).read_text())
    place = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    place[0] = ctypes.cast(callback, ctypes.c_void_p).value
    yield
    place[0] = None
    recorder.settle()
    if failures:
        raise failures[0]


def main(tasks: str) -> None:
    if torch.cuda.is_available():
        import tests.zoo.triton_models  # noqa: F401 - registers the operators of user kernels
    for task in json.loads(Path(tasks).read_text()):
        Path(task["told"]).write_text(json.dumps(record(task)))


if __name__ == "__main__":
    main(*sys.argv[1:])
