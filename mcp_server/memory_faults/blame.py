"""Which component made an address bad: rules from the surest to the weakest."""

from __future__ import annotations

from collections.abc import Callable

from mcp_server.memory_faults.choose_launch import FOREIGN
from mcp_server.memory_faults.missed import extent, find_parts
from mcp_server.memory_faults.records import AddressPart, Blame, MissedArgument
from mcp_server.memory_faults.situation import Situation
from mcp_server.package.launches import Launch
from mcp_server.package.match import compare_inputs
from mcp_server.package.mismatch import Mismatch

OPS = ("proxy_executor", "fallback_shim")


class Components:
    """Makes `Blame` records for one situation."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation

    def origin(self, variable: str, category: str, reasons: list[str]) -> Blame:
        """An input, a constant, or the operator that made a tensor."""
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
            return self.party("constant", view.label(variable), "constants", None, reasons)
        maker = self.maker(variable)
        if maker is None:
            return self.party("unknown", view.label(variable), category, None, reasons)
        if maker.kind in OPS:
            told = [*reasons, f"{self.name(maker)} made it: its fake function promises another shape"]
            return self.party("op", self.name(maker), "custom_op", maker, told)
        return self.party("upstream_kernel", self.name(maker), category, maker, reasons)

    def maker(self, variable: str) -> Launch | None:
        """The launch that wrote a variable last before this one."""
        writers = self.situation.view.flow.last_writers(variable, self.situation.launch.index)
        numbers = [step.launch for step in writers if step.launch is not None]
        return self.situation.view.wrapper.launches[numbers[0]] if numbers else None

    def name(self, launch: Launch) -> str:
        """The operator that it calls, or its kernel."""
        target = self.situation.view.package.proxy_target(launch.proxy_index)
        return target or launch.symbol or launch.kernel

    def party(
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
        """Generated code computes what the model says: behind it stands the input.

        A kernel of the user may be wrong itself.
        """
        launches = [self.situation.view.wrapper.launches[n] for n in part.producers]
        own = next((n for n in launches if n.kind in ("user_triton", *OPS)), None)
        told = [*reasons, f"launch {part.producers[0]} ({part.producer_kernels[0]}) wrote it"]
        if own is None and part.input_index is not None:
            told.append(f"it is generated code over {part.inputs[0]} only")
            return self.input(part, told)
        maker = own or launches[0]
        behind = f"it depends on {', '.join(part.inputs)}" if part.inputs else "it depends on no input"
        return self.party(
            "upstream_kernel",
            self.name(maker),
            "index_out_of_bounds",
            maker,
            [*told, behind],
            own is not None,
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


NEAR_NULL = 1 << 20  # no allocation of a GPU or of Linux lies below


class BlameRules:
    """The rules over one situation."""

    def __init__(self, situation: Situation, missed: MissedArgument | None, parts: list[AddressPart]) -> None:
        self.situation, self.missed, self.parts = situation, missed, parts
        self.parties = Components(situation)
        self.user = situation.kernel is None or situation.kernel.kind == "user_triton"

    def blame(self) -> Blame:
        """The first rule that holds."""
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
            self._foreign,
            self._generated,
            self._own,
        )
        return next(found for rule in rules if (found := rule()) is not None)

    def _unwritten(self) -> Blame | None:
        """initcheck: whoever was to write the memory that was read."""
        if self.situation.access.kind != "uninitialised" or self.missed is None:
            return None
        maker = self.parties.maker(self.missed.variable)
        told = f"{self.missed.label} holds elements that nothing wrote"
        if maker is None:
            return self.parties.party("unknown", self.missed.label, "wrong_output", None, [told], False)
        kind = "op" if maker.kind in OPS else "upstream_kernel"
        return self.parties.party(
            kind, self.parties.name(maker), "wrong_output", maker, [f"{told}; launch {maker.index} was to"]
        )

    def _misaligned(self) -> Blame | None:
        """A tensor starts at a multiple of its element size: the kernel's own offset or cast is to blame."""
        access = self.situation.access
        if access.kind != "misaligned" or access.address is None or not access.size:
            return None
        off = access.address % access.size
        reasons = [f"the address is {off} bytes off a multiple of {access.size}"]
        reasons += [f"{p.parameter} = {p.maximum} goes into it" for p in self.parts if p.maximum is not None]
        return self.parties.kernel(reasons, sure=self.user)

    def _host(self) -> Blame | None:
        if self.missed is None or self.missed.side != "host":
            return None
        reason = f"{self.missed.label} is a {self.missed.device} tensor, and the kernel runs on the GPU"
        found = self.parties.origin(self.missed.variable, "device_mismatch", [reason])
        return found.model_copy(update={"category": "device_mismatch"})

    def _other_size(self) -> Blame | None:
        if self.missed is None or self.missed.declared_shape is None:
            return None
        reason = (
            f"the wrapper computes with {self.missed.label} of shape {self.missed.declared_shape}, "
            f"and it has {self.missed.shape}"
        )
        return self.parties.origin(self.missed.variable, "illegal_memory_access", [reason])

    def _index(self) -> Blame | None:
        """An index that the tensor cannot hold came from outside the kernel."""
        part = next((p for p in self.parts if p.kind == "index" and p.beyond), None)
        if part is None or self.missed is None:
            return None
        room = f"room for {part.lowest} to {part.limit - 1}" if part.limit is not None else "fewer elements"
        holds = f"{part.label} ({part.parameter}) holds {part.minimum} to {part.maximum}"
        reason = f"{holds}; {self.missed.label} has {room}"
        if part.producers:
            return self.parties.produced(part, [reason])
        variable = self.situation.variable(part.parameter)
        found = self.parties.origin(variable, "index_out_of_bounds", [reason])
        if part.input_index is not None and found.kind != "input":
            found = self.parties.input(part, [reason])
        return found.model_copy(update={"category": "index_out_of_bounds"})

    def _pointer(self) -> Blame | None:
        """The address itself was read from a tensor: whoever wrote it there."""
        if self.situation.chased is None or not self.parts:
            return None
        part = self.parts[0]
        reason = f"the address was loaded from {part.label} ({part.parameter})"
        if part.producers:
            return self.parties.produced(part, [reason]).model_copy(
                update={"category": "illegal_memory_access"}
            )
        return self.parties.origin(self.situation.variable(part.parameter), "illegal_memory_access", [reason])

    def _near_null(self) -> Blame | None:
        """Without a journal: an address close to zero is an offset from a pointer that is null."""
        address = self.situation.access.address
        if self.missed is None or self.missed.side != "unknown" or address is None or address >= NEAR_NULL:
            return None
        reason = f"address {address:#x} is an offset from null: {self.missed.label} may have no elements"
        return self.parties.kernel([reason], sure=False) if self.user else None

    def _empty(self) -> Blame | None:
        if self.missed is None or self.missed.side != "empty":
            return None
        reasons = [
            f"{self.missed.label} has shape {self.missed.shape}: no memory, and the address is near null"
        ]
        if not self.user:
            return self.parties.origin(self.missed.variable, "shape_out_of_range", reasons)
        if self._masked() is False:
            reasons.append("the access has no mask, so it happens for an empty tensor too")
        return self.parties.kernel(reasons, sure=self._masked() is False)

    def _masked(self) -> bool | None:
        """Whether the access to the missed argument has a mask; None when the access is not known."""
        name = self.missed.parameter if self.missed else ""
        return next((a.masked for a in self.situation.accesses if name in a.parameters), None)

    def _mismatch(self) -> Blame | None:
        """An input that is not what the package was compiled for, and that this launch depends on."""
        found = self._fatal()
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

    def _fatal(self) -> Mismatch | None:
        view, given = self.situation.view, self.situation.evidence.given
        if not given:
            return None
        fatal = [m for m in compare_inputs(view.package.signature, given) if m.severity == "fatal"]
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
        found = self.parties.kernel(reasons, sure=True)
        return found.model_copy(update={"received": True, "input_index": part.input_index, "dim": part.dim})

    def _unseen(self) -> Blame | None:
        """No journal: an index that goes into the address is the first to suspect, and no more than that."""
        if self.situation.seen is not None or not self.user:
            return None
        found = [p for access in self.situation.accesses for p in find_parts(self.situation, access, None)]
        part = next((p for p in found if p.kind == "index"), None)
        if part is None:
            return None
        reason = f"{part.label} ({part.parameter}) goes into the address, and its values were not seen"
        return self._behind(part, [reason]).model_copy(update={"confidence": "possible"})

    def _behind(self, part: AddressPart, reasons: list[str]) -> Blame:
        """Whoever made an index: a launch before, or the caller."""
        if part.producers:
            return self.parties.produced(part, reasons)
        if part.input_index is not None:
            return self.parties.input(part, reasons)
        return self.parties.party("unknown", part.label, "index_out_of_bounds", None, reasons, False)

    def _foreign(self) -> Blame | None:
        """A kernel that is not generated: of ATen, a library or a custom operator."""
        launch = self.situation.launch
        if launch.kind not in FOREIGN:
            return None
        told = [
            f"the fault is inside {self.parties.name(launch)}, code that the package only calls",
            *self._integers(),
        ]
        if launch.kind == "extern":
            return self.parties.party(
                "unknown", self.parties.name(launch), "illegal_memory_access", launch, told, False
            )
        sure = launch.kind == "proxy_executor"
        found = self.parties.party("op", self.parties.name(launch), "custom_op", launch, told, sure)
        return found.model_copy(update={"received": None})

    def _integers(self) -> list[str]:
        """What the integer tensors of the launch held."""
        ranges, launch = self.situation.evidence.ranges, self.situation.launch
        found = {a.target: ranges.get((launch.index, a.target)) for a in launch.tensors if a.target}
        label = self.situation.view.label
        return [f"{label(n)} holds {r.minimum} to {r.maximum}" for n, r in found.items() if r is not None]

    def _generated(self) -> Blame | None:
        """Generated addresses are right for the compiled sizes: the tensor is not what was compiled for."""
        if self.user or self.missed is None:
            return None
        indices = [p for p in self.parts if p.kind == "index"]
        if indices:
            return self._indirect(indices)
        reason = "generated code without a loaded index: a tensor is smaller than compiled for"
        found = self.parties.origin(self.missed.variable, "illegal_memory_access", [reason])
        return found.model_copy(update={"confidence": "likely" if found.kind == "op" else "possible"})

    def _indirect(self, indices: list[AddressPart]) -> Blame:
        part = indices[0]
        reason = f"the address is computed from {part.label} ({part.parameter}), whose values were not seen"
        if part.beyond is False:
            reason = f"{part.label} ({part.parameter}) holds {part.minimum} to {part.maximum}, which fits"
        if part.input_index is not None and part.beyond is None:
            return self.parties.input(part, [reason]).model_copy(update={"confidence": "possible"})
        return self.parties.party("unknown", part.label, "index_out_of_bounds", None, [reason], False)

    def _beyond_int32(self) -> bool:
        tensor = self.situation.tensor(self.missed.parameter) if self.missed else None
        return tensor is not None and extent(tensor).bytes // tensor.itemsize > 1 << 31

    def _own(self) -> Blame:
        """A kernel of the user whose inputs look good."""
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
        if self.missed is not None and self.missed.side == "before" and self._beyond_int32():
            reasons.insert(0, f"{self.missed.label} has elements beyond 2147483647: an int32 offset wraps")
        reasons = reasons or ["no argument explains the address"]
        if self._masked() is False:
            reasons.append("the access has no mask")
        measured = self.missed is not None and self.missed.certain and self.situation.seen is not None
        return self.parties.kernel(reasons, sure=measured and not open_indices)
