"""The parties that can be to blame: inputs, constants, operators, kernels, with what speaks against them."""

from __future__ import annotations

from mcp_server.faults.records import AddressPart, Blame
from mcp_server.faults.situation import Situation
from mcp_server.package.launches import Launch

OPS = ("proxy_executor", "fallback_shim")


class Parties:
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
