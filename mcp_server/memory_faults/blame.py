"""Finds the component that made an address invalid, by rules in order of decreasing certainty."""

from collections.abc import Callable

from mcp_server.memory_faults import AddressPart, Blame, BlamedKind, MissedArgument
from mcp_server.memory_faults.situation import FOREIGN, Situation, find_parts, span
from mcp_server.model import Category
from mcp_server.package.launches import Launch
from mcp_server.package.mismatch import compare_inputs

OPS = ("proxy_executor", "fallback_shim")
_SIDES = {"before": "low", "after": "high"}  # where an access misses, and the bound that would prevent it
NEAR_NULL = 1 << 20  # neither CUDA nor Linux allocates below this address


class BlameRules:
    """The blame rules, applied to one situation. A rule returns None if it does not apply."""

    def __init__(self, situation: Situation, missed: MissedArgument | None, parts: list[AddressPart]) -> None:
        self.situation, self.missed, self.parts = situation, missed, parts
        self.view, self.launch, self.access = situation.view, situation.launch, situation.access
        self.user = situation.kernel is None or situation.kernel.kind == "user_triton"

    def blame(self) -> Blame:
        """The result of the first rule that applies; the last rule always does."""
        rules: tuple[Callable[[], Blame | None], ...] = (
            self._unwritten,
            self._host,
            self._misaligned,
            self._other_size,
            self._pointer,
            self._open_mask,
            self._index,
            self._no_memory,
            self._mismatch,
            self._scalar,
            self._unseen,
            self._library_code,
            self._generated,
            self._user_kernel,
        )
        return next(found for rule in rules if (found := rule()) is not None)

    def _unwritten(self) -> Blame | None:
        """initcheck found a read of unwritten memory: blame the launch that should have written it."""
        if self.access.kind != "uninitialised" or self.missed is None:
            return None
        maker = self._maker(self.missed.variable)
        unwritten = f"{self.missed.label} contains elements that nothing wrote"
        if maker is None:
            return self._component("unknown", self.missed.label, "wrong_output", [unwritten], sure=False)
        kind: BlamedKind = "op" if maker.kind in OPS else "upstream_kernel"
        reasons = [f"{unwritten}; launch {maker.index} should have"]
        return self._component(kind, self._name(maker), "wrong_output", reasons, maker)

    def _host(self) -> Blame | None:
        if self.missed is None or self.missed.side != "host":
            return None
        reason = f"{self.missed.label} is a {self.missed.device} tensor, but the kernel runs on the GPU"
        found = self._origin(self.missed.variable, "device_mismatch", [reason])
        return found.model_copy(update={"category": "device_mismatch"})

    def _misaligned(self) -> Blame | None:
        """The address is misaligned. Tensors are aligned, so the kernel's own offset or cast is wrong."""
        access = self.access
        if access.kind != "misaligned" or access.address is None or not access.size:
            return None
        off = access.address % access.size
        reasons = [f"the address is {off} bytes off a multiple of {access.size}"]
        reasons += [f"{p.parameter} = {p.maximum} goes into it" for p in self.parts if p.maximum is not None]
        return self._kernel(reasons, sure=self.user)

    def _other_size(self) -> Blame | None:
        if self.missed is None or self.missed.declared_shape is None:
            return None
        reason = (
            f"the wrapper computes with {self.missed.label} of shape {self.missed.declared_shape}, "
            f"but it has {self.missed.shape}"
        )
        return self._origin(self.missed.variable, "illegal_memory_access", [reason])

    def _pointer(self) -> Blame | None:
        """The address was itself loaded from a tensor: blame the writer of that tensor."""
        if self.situation.indirect is None or not self.parts:
            return None
        part = self.parts[0]
        reasons = [f"the address was loaded from {part.label} ({part.parameter})"]
        if part.producers:
            return self._produced(part, reasons).model_copy(update={"category": "illegal_memory_access"})
        return self._origin(self.situation.variable(part.parameter), "illegal_memory_access", reasons)

    def _open_mask(self) -> Blame | None:
        """The mask of a user's access bounds a loaded index, but not on the side on which the access missed.

        A kernel that masks an index does not trust its values, so it must mask the other side, too.
        """
        missed = self.missed
        if not self.user or missed is None or missed.side not in ("before", "after"):
            return None
        access = next((a for a in self.situation.accesses if missed.parameter in a.parameters), None)
        if access is None or len(access.bounded) != 1 or access.bounded == {_SIDES[missed.side]}:
            return None
        there, needed = ("above", "lower") if missed.side == "before" else ("below", "upper")
        mask = f"the mask in `{access.code}` bounds the index only from {there}"
        reasons = [f"{mask}; it also needs the {needed} bound"]
        reasons += [_range(part) for part in self.parts if part.kind == "index" and part.minimum is not None]
        return self._kernel(reasons, sure=True)

    def _index(self) -> Blame | None:
        """An index tensor contains a value outside the addressed tensor: blame the origin of the index."""
        part = next((p for p in self.parts if p.kind == "index" and p.beyond), None)
        if part is None or self.missed is None:
            return None
        room = f"room for {part.lowest} to {part.limit - 1}" if part.limit is not None else "fewer elements"
        reasons = [f"{_range(part)}; {self.missed.label} has {room}"]
        if part.producers:
            return self._produced(part, reasons)
        found = self._origin(self.situation.variable(part.parameter), "index_out_of_bounds", reasons)
        if part.input_index is not None and found.kind != "input":
            found = self._index_input(part, reasons)
        return found.model_copy(update={"category": "index_out_of_bounds"})

    def _no_memory(self) -> Blame | None:
        """The tensor has no memory. Without a journal, an address close to zero shows this."""
        address = self.access.address
        if self.missed is None:
            return None
        if self.missed.side == "empty":
            no_memory = "no memory, and the address is near null"
            reasons = [f"{self.missed.label} has shape {self.missed.shape}: {no_memory}"]
            if not self.user:
                return self._origin(self.missed.variable, "shape_out_of_range", reasons)
            if self._masked() is False:
                reasons.append("the access has no mask, so it happens for an empty tensor too")
            return self._kernel(reasons, sure=self._masked() is False)
        if self.missed.side != "unknown" or address is None or address >= NEAR_NULL or not self.user:
            return None
        reason = f"address {address:#x} is an offset from null: {self.missed.label} may have no elements"
        return self._kernel([reason], sure=False)

    def _mismatch(self) -> Blame | None:
        """An input that this launch depends on differs from the inputs of the compile."""
        if not self.situation.evidence.inputs:
            return None
        reached: set[str] = set()
        for variable in (a.target for a in self.launch.tensors if a.target):
            reached |= {variable, *self.view.flow.backward(variable, self.launch.index).inputs}
        inputs = {i.index: i for i in self.view.package.inputs}
        for found in compare_inputs(self.view.package.signature, self.situation.evidence.inputs):
            index = found.input_index
            if found.severity == "fatal" and index is not None and inputs[index].name in reached:
                blame = self._input(inputs[index].label, index, found.category, [found.sentence])
                return blame.model_copy(update={"dim": found.dim})
        return None

    def _scalar(self) -> Blame | None:
        part = next((p for p in self.parts if p.kind == "scalar" and p.beyond), None)
        if part is None or self.missed is None:
            return None
        elements = (part.limit or 0) * (part.factor or 1)
        reason = (
            f"the scalar {part.parameter} = {part.maximum} ({part.label}) alone leaves {self.missed.label}, "
            f"which has {elements} elements"
        )
        found = self._kernel([reason], sure=True)
        return found.model_copy(update={"received": True, "input_index": part.input_index, "dim": part.dim})

    def _unseen(self) -> Blame | None:
        """Without a journal, index values are unknown: an index in the address is only a possible cause."""
        if self.situation.seen is not None or not self.user:
            return None
        parts = [p for access in self.situation.accesses for p in find_parts(self.situation, access, None)]
        part = next((p for p in parts if p.kind == "index"), None)
        if part is None:
            return None
        reasons = [f"{part.label} ({part.parameter}) goes into the address, and its values were not seen"]
        if part.producers:
            found = self._produced(part, reasons)
        elif part.input_index is not None:
            found = self._index_input(part, reasons)
        else:
            found = self._component("unknown", part.label, "index_out_of_bounds", reasons)
        return found.model_copy(update={"confidence": "possible"})

    def _library_code(self) -> Blame | None:
        """The launch runs code that was not generated: ATen, a library or a custom operator."""
        launch, ranges = self.launch, self.situation.evidence.ranges
        if launch.kind not in FOREIGN:
            return None
        name = self._name(launch)
        reasons = ["the fault is inside its own code, which the package only calls"]
        for variable in dict.fromkeys(a.target for a in launch.tensors if a.target):
            values = ranges.get((launch.index, variable))
            if values is not None:
                reasons.append(f"{self.view.label(variable)} holds {values.minimum} to {values.maximum}")
        if launch.kind == "extern":
            return self._component("unknown", name, "illegal_memory_access", reasons, launch, sure=False)
        sure = launch.kind == "proxy_executor"
        found = self._component("op", name, "custom_op", reasons, launch, sure=sure)
        return found.model_copy(update={"received": None})

    def _generated(self) -> Blame | None:
        """Inductor's addresses are correct for the compiled sizes, so a tensor has another size."""
        if self.user or self.missed is None:
            return None
        part = next((p for p in self.parts if p.kind == "index"), None)
        if part is None:
            reason = "generated code without a loaded index: a tensor is smaller than compiled for"
            found = self._origin(self.missed.variable, "illegal_memory_access", [reason])
            return found.model_copy(update={"confidence": "likely" if found.kind == "op" else "possible"})
        reason = f"the address is computed from {part.label} ({part.parameter}), whose values were not seen"
        if part.beyond is False:
            reason = f"{_range(part)}, which fits"
        if part.input_index is not None and part.beyond is None:
            return self._index_input(part, [reason]).model_copy(update={"confidence": "possible"})
        return self._component("unknown", part.label, "index_out_of_bounds", [reason], sure=False)

    def _user_kernel(self) -> Blame:
        """The default: blame the user's kernel, since no input explains the address."""
        missed, unseen = self.missed, [p for p in self.parts if p.beyond is None]
        fitting = [p for p in self.parts if p.beyond is False]
        reasons = [f"{p.parameter} holds {p.minimum} to {p.maximum}, which fits" for p in fitting]
        strides = (missed.stride if missed else None) or []
        into = f"goes into the address of a tensor with strides {strides or None}"
        # An argument that equals a stride is used as intended.
        odd = [p for p in unseen if p.maximum is not None and p.maximum not in strides]
        reasons += [f"{p.parameter} = {p.maximum} {into}" for p in odd]
        tensor = self.situation.tensor(missed.parameter) if missed else None
        # An int32 offset that overflows is negative, so the access lies before the tensor.
        if missed is not None and missed.side == "before" and tensor is not None and span(tensor) > 1 << 31:
            reasons.insert(0, f"{missed.label} has elements beyond 2147483647: an int32 offset wraps")
        reasons = reasons or ["no argument explains the address"]
        if self._masked() is False:
            reasons.append("the access has no mask")
        measured = missed is not None and missed.certain and self.situation.seen is not None
        return self._kernel(reasons, sure=measured and not any(p.kind == "index" for p in unseen))

    def _masked(self) -> bool | None:
        """Whether the access to the missed argument is masked. None if the access is unknown."""
        name = self.missed.parameter if self.missed else ""
        return next((a.access.masked for a in self.situation.accesses if name in a.parameters), None)

    def _maker(self, variable: str) -> Launch | None:
        """The last launch before this one that wrote `variable`. None for inputs and constants."""
        numbers = self.view.flow.writing_launches(variable, self.launch.index)
        return self.view.wrapper.launches[numbers[0]] if numbers else None

    def _name(self, launch: Launch) -> str:
        """The custom operator that the launch calls, or its kernel."""
        return self.view.package.proxy_target(launch.proxy_index) or launch.symbol or launch.kernel

    def _origin(self, variable: str, category: Category, reasons: list[str]) -> Blame:
        """Blame the source of a tensor: a model input, a constant, or the launch that last wrote it."""
        source = next((i for i in self.view.package.inputs if i.name == variable), None)
        if source is not None:
            return self._input(source.label, source.index, "input_mismatch", reasons)
        buffer = self.view.wrapper.buffers.get(variable)
        if buffer is not None and buffer.kind == "constant":
            return self._component("constant", self.view.label(variable), "constants", reasons)
        maker = self._maker(variable)
        if maker is None:
            return self._component("unknown", self.view.label(variable), category, reasons)
        if maker.kind in OPS:
            reasons = [
                *reasons,
                f"{self._name(maker)} produced it, and its fake function promises another shape",
            ]
            return self._component("op", self._name(maker), "custom_op", reasons, maker)
        return self._component("upstream_kernel", self._name(maker), category, reasons, maker)

    def _produced(self, part: AddressPart, reasons: list[str]) -> Blame:
        """Blame the producer of an index tensor.

        For a kernel that Inductor generated, blame the model input: such code computes what the model says. A
        user's kernel or operator may itself be wrong.
        """
        launches = [self.view.wrapper.launches[n] for n in part.producers]
        user_maker = next((n for n in launches if n.kind in ("user_triton", *OPS)), None)
        reasons = [*reasons, f"launch {part.producers[0]} ({part.producer_kernels[0]}) wrote it"]
        if user_maker is None and part.input_index is not None:
            return self._index_input(part, [*reasons, f"it is generated code over {part.inputs[0]} only"])
        maker = user_maker or launches[0]
        reasons.append(f"it depends on {', '.join(part.inputs)}" if part.inputs else "it depends on no input")
        sure = user_maker is not None
        return self._component(
            "upstream_kernel", self._name(maker), "index_out_of_bounds", reasons, maker, sure=sure
        )

    def _index_input(self, part: AddressPart, reasons: list[str]) -> Blame:
        name = part.inputs[0] if part.inputs else part.label
        found = self._input(name, part.input_index, "index_out_of_bounds", reasons)
        return found.model_copy(update={"model": part.model})

    def _input(self, name: str, index: int | None, category: Category, reasons: list[str]) -> Blame:
        found = self._component("input", name, category, reasons)
        return found.model_copy(update={"input_index": index, "model": []})

    def _kernel(self, reasons: list[str], *, sure: bool) -> Blame:
        name = self._name(self.launch)
        return self._component("kernel", name, "illegal_memory_access", reasons, self.launch, sure=sure)

    def _component(
        self,
        kind: BlamedKind,
        name: str,
        category: Category,
        reasons: list[str],
        launch: Launch | None = None,
        *,
        sure: bool = True,
    ) -> Blame:
        return Blame(
            kind=kind,
            name=name,
            category=category,
            confidence="likely" if sure else "possible",
            received=None if kind == "unknown" else kind != "kernel",
            launch=launch.index if launch else None,
            reasons=reasons,
            model=list(self.view.provenance(launch or self.launch).locations),
        )


def _range(part: AddressPart) -> str:
    name = "" if f"({part.parameter})" in part.label else f" ({part.parameter})"
    return f"{part.label}{name} holds {part.minimum} to {part.maximum}"
