"""Finds the component that made an address bad, by rules in order of decreasing certainty."""

from __future__ import annotations

from collections.abc import Callable

from mcp_server.memory_faults.choose_launch import FOREIGN
from mcp_server.memory_faults.missed import extent, find_parts
from mcp_server.memory_faults.records import AddressPart, Blame, MissedArgument
from mcp_server.memory_faults.situation import Situation
from mcp_server.package.launches import Launch
from mcp_server.package.mismatch import Mismatch, compare_inputs

OPS = ("proxy_executor", "fallback_shim")


class BlameBuilder:
    """Builds `Blame` records for one situation."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation

    def origin(self, variable: str, category: str, reasons: list[str]) -> Blame:
        """Blame the source of a tensor: a model input, a constant, or the launch that last wrote it."""
        view = self.situation.view
        buffer = view.wrapper.buffers.get(variable)
        kind = buffer.kind if buffer else ""
        position = next((i for i in view.package.inputs if i.name == variable), None)
        if position is not None:
            return Blame(
                kind="input",
                name=position.label,
                category="input_mismatch",
                confidence="likely",
                received=True,
                input_index=position.index,
                reasons=reasons,
            )
        if kind == "constant":
            return self.component("constant", view.label(variable), "constants", None, reasons)
        maker = self.maker(variable)
        if maker is None:
            return self.component("unknown", view.label(variable), category, None, reasons)
        if maker.kind in OPS:
            reasons = [*reasons, f"{self.name(maker)} made it: its fake function promises another shape"]
            return self.component("op", self.name(maker), "custom_op", maker, reasons)
        return self.component("upstream_kernel", self.name(maker), category, maker, reasons)

    def maker(self, variable: str) -> Launch | None:
        """The last launch before this one that wrote `variable`; None for inputs and constants."""
        writers = self.situation.view.flow.last_writers(variable, self.situation.launch.index)
        numbers = [step.launch for step in writers if step.launch is not None]
        return self.situation.view.wrapper.launches[numbers[0]] if numbers else None

    def name(self, launch: Launch) -> str:
        """The custom operator that the launch calls, else its kernel."""
        target = self.situation.view.package.proxy_target(launch.proxy_index)
        return target or launch.symbol or launch.kernel

    def component(
        self,
        kind: str,
        name: str,
        category: str | None,
        launch: Launch | None,
        reasons: list[str],
        sure: bool = True,
    ) -> Blame:
        at = launch or self.situation.launch
        return Blame.model_validate(
            {
                "kind": kind,
                "name": name,
                "category": category,
                "confidence": "likely" if sure else "possible",
                "received": None if kind == "unknown" else kind != "kernel",
                "launch": launch.index if launch else None,
                "reasons": reasons,
                "model": list(self.situation.view.provenance(at).locations),
            }
        )

    def input(self, part: AddressPart, reasons: list[str]) -> Blame:
        return Blame(
            kind="input",
            name=part.inputs[0] if part.inputs else part.label,
            category="index_out_of_bounds",
            confidence="likely",
            received=True,
            input_index=part.input_index,
            reasons=reasons,
            model=part.model,
        )

    def produced(self, part: AddressPart, reasons: list[str]) -> Blame:
        """Blame the producer of an index tensor.

        Inductor's code computes what the model says, so the model input is blamed instead. A user's kernel or
        operator may be wrong itself, so it is blamed directly.
        """
        launches = [self.situation.view.wrapper.launches[n] for n in part.producers]
        user_maker = next((n for n in launches if n.kind in ("user_triton", *OPS)), None)
        reasons = [*reasons, f"launch {part.producers[0]} ({part.producer_kernels[0]}) wrote it"]
        if user_maker is None and part.input_index is not None:
            reasons.append(f"it is generated code over {part.inputs[0]} only")
            return self.input(part, reasons)
        maker = user_maker or launches[0]
        behind = f"it depends on {', '.join(part.inputs)}" if part.inputs else "it depends on no input"
        return self.component(
            "upstream_kernel",
            self.name(maker),
            "index_out_of_bounds",
            maker,
            [*reasons, behind],
            user_maker is not None,
        )

    def kernel(self, reasons: list[str], *, sure: bool) -> Blame:
        launch = self.situation.launch
        return Blame(
            kind="kernel",
            name=self.name(launch),
            category="illegal_memory_access",
            confidence="likely" if sure else "possible",
            received=False,
            launch=launch.index,
            reasons=reasons,
            model=list(self.situation.view.provenance(launch).locations),
        )


NEAR_NULL = 1 << 20  # neither CUDA nor Linux allocates below this address


class BlameRules:
    """The blame rules, applied to one situation. Each rule returns None where it does not apply."""

    def __init__(self, situation: Situation, missed: MissedArgument | None, parts: list[AddressPart]) -> None:
        self.situation, self.missed, self.parts = situation, missed, parts
        self.build = BlameBuilder(situation)
        self.user = situation.kernel is None or situation.kernel.kind == "user_triton"

    def blame(self) -> Blame:
        """The result of the first rule that applies; the last rule always does."""
        rules: tuple[Callable[[], Blame | None], ...] = (
            self._unwritten,
            self._host,
            self._misaligned,
            self._other_size,
            self._pointer,
            self._index,
            self._empty,
            self._near_null,
            self._mismatch,
            self._scalar,
            self._unseen,
            self._library_code,
            self._generated,
            self._user_kernel,
        )
        return next(found for rule in rules if (found := rule()) is not None)

    def _unwritten(self) -> Blame | None:
        """initcheck: memory was read that nothing wrote. Blame the launch that should have written it."""
        if self.situation.access.kind != "uninitialised" or self.missed is None:
            return None
        maker = self.build.maker(self.missed.variable)
        unwritten = f"{self.missed.label} holds elements that nothing wrote"
        if maker is None:
            return self.build.component(
                "unknown", self.missed.label, "wrong_output", None, [unwritten], False
            )
        kind = "op" if maker.kind in OPS else "upstream_kernel"
        reasons = [f"{unwritten}; launch {maker.index} was to"]
        return self.build.component(kind, self.build.name(maker), "wrong_output", maker, reasons)

    def _misaligned(self) -> Blame | None:
        """Tensors are aligned to their element size, so the kernel's own offset or cast is wrong."""
        access = self.situation.access
        if access.kind != "misaligned" or access.address is None or not access.size:
            return None
        off = access.address % access.size
        reasons = [f"the address is {off} bytes off a multiple of {access.size}"]
        reasons += [f"{p.parameter} = {p.maximum} goes into it" for p in self.parts if p.maximum is not None]
        return self.build.kernel(reasons, sure=self.user)

    def _host(self) -> Blame | None:
        if self.missed is None or self.missed.side != "host":
            return None
        reason = f"{self.missed.label} is a {self.missed.device} tensor, and the kernel runs on the GPU"
        found = self.build.origin(self.missed.variable, "device_mismatch", [reason])
        return found.model_copy(update={"category": "device_mismatch"})

    def _other_size(self) -> Blame | None:
        if self.missed is None or self.missed.declared_shape is None:
            return None
        reason = (
            f"the wrapper computes with {self.missed.label} of shape {self.missed.declared_shape}, "
            f"and it has {self.missed.shape}"
        )
        return self.build.origin(self.missed.variable, "illegal_memory_access", [reason])

    def _index(self) -> Blame | None:
        """An index tensor holds a value outside the addressed tensor: blame where the index came from."""
        part = next((p for p in self.parts if p.kind == "index" and p.beyond), None)
        if part is None or self.missed is None:
            return None
        room = f"room for {part.lowest} to {part.limit - 1}" if part.limit is not None else "fewer elements"
        holds = f"{part.label} ({part.parameter}) holds {part.minimum} to {part.maximum}"
        reason = f"{holds}; {self.missed.label} has {room}"
        if part.producers:
            return self.build.produced(part, [reason])
        variable = self.situation.variable(part.parameter)
        found = self.build.origin(variable, "index_out_of_bounds", [reason])
        if part.input_index is not None and found.kind != "input":
            found = self.build.input(part, [reason])
        return found.model_copy(update={"category": "index_out_of_bounds"})

    def _pointer(self) -> Blame | None:
        """The address was itself loaded from a tensor: blame the writer of that tensor."""
        if self.situation.indirect is None or not self.parts:
            return None
        part = self.parts[0]
        reason = f"the address was loaded from {part.label} ({part.parameter})"
        if part.producers:
            return self.build.produced(part, [reason]).model_copy(
                update={"category": "illegal_memory_access"}
            )
        return self.build.origin(self.situation.variable(part.parameter), "illegal_memory_access", [reason])

    def _near_null(self) -> Blame | None:
        """No journal, and an address close to zero: an offset from a null pointer."""
        address = self.situation.access.address
        if self.missed is None or self.missed.side != "unknown" or address is None or address >= NEAR_NULL:
            return None
        reason = f"address {address:#x} is an offset from null: {self.missed.label} may have no elements"
        return self.build.kernel([reason], sure=False) if self.user else None

    def _empty(self) -> Blame | None:
        if self.missed is None or self.missed.side != "empty":
            return None
        reasons = [
            f"{self.missed.label} has shape {self.missed.shape}: no memory, and the address is near null"
        ]
        if not self.user:
            return self.build.origin(self.missed.variable, "shape_out_of_range", reasons)
        if self._masked() is False:
            reasons.append("the access has no mask, so it happens for an empty tensor too")
        return self.build.kernel(reasons, sure=self._masked() is False)

    def _masked(self) -> bool | None:
        """Whether the access to the missed argument is masked; None when the access is unknown."""
        name = self.missed.parameter if self.missed else ""
        return next((a.masked for a in self.situation.accesses if name in a.parameters), None)

    def _mismatch(self) -> Blame | None:
        """An input that this launch depends on differs from what the package was compiled for."""
        found = self._fatal_mismatch()
        if found is None or found.input_index is None:
            return None
        return Blame(
            kind="input",
            name=self.situation.view.package.inputs[found.input_index].label,
            category=found.category,
            confidence="likely",
            received=True,
            input_index=found.input_index,
            dim=found.dim,
            reasons=[found.sentence],
        )

    def _fatal_mismatch(self) -> Mismatch | None:
        view, inputs = self.situation.view, self.situation.evidence.inputs
        if not inputs:
            return None
        fatal = [m for m in compare_inputs(view.package.signature, inputs) if m.severity == "fatal"]
        variables = [a.target for a in self.situation.launch.tensors if a.target]
        reached = {
            name
            for variable in variables
            for name in (variable, *view.flow.backward(variable, self.situation.launch.index).inputs)
        }
        names = {i.index: i.name for i in view.package.inputs}
        return next((m for m in fatal if m.input_index is not None and names[m.input_index] in reached), None)

    def _scalar(self) -> Blame | None:
        part = next((p for p in self.parts if p.kind == "scalar" and p.beyond), None)
        if part is None or self.missed is None:
            return None
        elements = (part.limit or 0) * (part.factor or 1)
        reasons = [
            f"the scalar {part.parameter} = {part.maximum} ({part.label}) alone leaves {self.missed.label}, "
            f"which has {elements} elements"
        ]
        found = self.build.kernel(reasons, sure=True)
        return found.model_copy(update={"received": True, "input_index": part.input_index, "dim": part.dim})

    def _unseen(self) -> Blame | None:
        """No journal: an index used in the address is only a possible cause, as its values are unknown."""
        if self.situation.seen is not None or not self.user:
            return None
        found = [p for access in self.situation.accesses for p in find_parts(self.situation, access, None)]
        part = next((p for p in found if p.kind == "index"), None)
        if part is None:
            return None
        reason = f"{part.label} ({part.parameter}) goes into the address, and its values were not seen"
        return self._index_origin(part, [reason]).model_copy(update={"confidence": "possible"})

    def _index_origin(self, part: AddressPart, reasons: list[str]) -> Blame:
        """Blame an earlier launch or the caller for an index."""
        if part.producers:
            return self.build.produced(part, reasons)
        if part.input_index is not None:
            return self.build.input(part, reasons)
        return self.build.component("unknown", part.label, "index_out_of_bounds", None, reasons, False)

    def _library_code(self) -> Blame | None:
        """The launch runs code that was not generated: ATen, a library or a custom operator."""
        launch = self.situation.launch
        if launch.kind not in FOREIGN:
            return None
        reasons = [
            f"the fault is inside {self.build.name(launch)}, code that the package only calls",
            *self._integer_ranges(),
        ]
        if launch.kind == "extern":
            return self.build.component(
                "unknown", self.build.name(launch), "illegal_memory_access", launch, reasons, False
            )
        sure = launch.kind == "proxy_executor"
        found = self.build.component("op", self.build.name(launch), "custom_op", launch, reasons, sure)
        return found.model_copy(update={"received": None})

    def _integer_ranges(self) -> list[str]:
        """The value ranges of the launch's integer tensors, as sentences."""
        ranges, launch = self.situation.evidence.ranges, self.situation.launch
        found = {a.target: ranges.get((launch.index, a.target)) for a in launch.tensors if a.target}
        label = self.situation.view.label
        return [f"{label(n)} holds {r.minimum} to {r.maximum}" for n, r in found.items() if r is not None]

    def _generated(self) -> Blame | None:
        """Inductor's addresses are right for the compiled sizes, so a tensor has another size."""
        if self.user or self.missed is None:
            return None
        indices = [p for p in self.parts if p.kind == "index"]
        if indices:
            return self._generated_index(indices)
        reason = "generated code without a loaded index: a tensor is smaller than compiled for"
        found = self.build.origin(self.missed.variable, "illegal_memory_access", [reason])
        return found.model_copy(update={"confidence": "likely" if found.kind == "op" else "possible"})

    def _generated_index(self, indices: list[AddressPart]) -> Blame:
        part = indices[0]
        reason = f"the address is computed from {part.label} ({part.parameter}), whose values were not seen"
        if part.beyond is False:
            reason = f"{part.label} ({part.parameter}) holds {part.minimum} to {part.maximum}, which fits"
        if part.input_index is not None and part.beyond is None:
            return self.build.input(part, [reason]).model_copy(update={"confidence": "possible"})
        return self.build.component("unknown", part.label, "index_out_of_bounds", None, [reason], False)

    def _user_kernel(self) -> Blame:
        """Default: the user's kernel, since no input explains the address."""
        seen = [p for p in self.parts if p.beyond is False]
        reasons = [f"{p.parameter} holds {p.minimum} to {p.maximum}, which fits" for p in seen]
        unseen = [p for p in self.parts if p.beyond is None]
        stride = self.missed.stride if self.missed else None
        reasons += [
            f"{p.parameter} = {p.maximum} goes into the address of a tensor with strides {stride}"
            for p in unseen
            if p.maximum is not None
        ]
        open_indices = [p for p in unseen if p.kind == "index"]
        tensor = self.situation.tensor(self.missed.parameter) if self.missed else None
        beyond_int32 = tensor is not None and extent(tensor).bytes // tensor.itemsize > 1 << 31
        # An int32 offset that overflows is negative, so the access lies before the tensor.
        if self.missed is not None and self.missed.side == "before" and beyond_int32:
            reasons.insert(0, f"{self.missed.label} has elements beyond 2147483647: an int32 offset wraps")
        reasons = reasons or ["no argument explains the address"]
        if self._masked() is False:
            reasons.append("the access has no mask")
        measured = self.missed is not None and self.missed.certain and self.situation.seen is not None
        return self.build.kernel(reasons, sure=measured and not open_indices)
