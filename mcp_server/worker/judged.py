"""The outputs of a call beside what the user expects of them: a file, a check command, or both."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Optional

import torch

from .outputs_check import run_check
from .report import Refused, Report
from .tensors import leaves
from .trial_compare import compare_with_expectation, expectation


class Judge:
    """Reads the expectation at once, so that a bad file is refused before the workload runs.

    Of a request: `expect` (file), `rtol` and `atol` (None: the dtype's), `check` (words of a command).
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.limits = (request.get("rtol"), request.get("atol"))
        self.expected: Optional[list[torch.Tensor]] = (
            expectation(str(request["expect"])) if request.get("expect") else None
        )
        self.check = [str(word) for word in request.get("check") or ()]

    def judge(self, result: Any, report: Report) -> None:
        """Events `compared_expected` (each output) and `checked_outputs` (status and text).

        Raises `Refused` for a check that refuses the expected outputs, too.
        """
        outputs = [leaf for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        if self.expected is not None:
            self._compare(self.expected, outputs, report)
        if not self.check:
            return
        report.event("checking_outputs")
        found = run_check(self.check, outputs)
        report.event("checked_outputs", **asdict(found))
        if found.status and self.expected is not None and run_check(self.check, self.expected).status:
            said = ": " + found.text[-300:] if found.text else ""
            what = "the check command fails on the expected outputs, too" + said
            raise Refused(what, " ".join(self.check), "a command that ends with status 0 for good outputs")

    def _compare(self, expected: list[torch.Tensor], outputs: list[torch.Tensor], report: Report) -> None:
        beside = compare_with_expectation(expected, outputs, self.limits)
        shapes = [[list(want.shape), list(got.shape)] for want, got in zip(expected, outputs)]
        report.event(
            "compared_expected",
            given=True,
            equal=beside.equal,
            layout=beside.layout,
            counts=[len(expected), len(outputs)],
            outputs=[{**asdict(each), "shape": pair} for each, pair in zip(beside.outputs, shapes)],
        )
