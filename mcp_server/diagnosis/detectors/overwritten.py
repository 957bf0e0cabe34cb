"""Models of one package that were compiled to one path, each over the one before, and packaged afterwards.

The path of `aot_compile` is named by the generated code, in which the values of weights do not count (torch
2.8-2.15): models of one architecture share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.loading import package_name
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import Captured, CapturedCompile, CapturedPackaging
from mcp_server.model import Evidence, Fix, ModelLocation, Party
from mcp_server.package.twins import twins


@dataclass(frozen=True)
class _Overwritten:
    """Models that were packaged from the output of one path, and the compiles that wrote it by then."""

    packaged: CapturedPackaging
    names: tuple[str, ...]
    compiles: tuple[CapturedCompile, ...]


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where a check refused what a call of such a model gave, and the package shows it."""
    seen = case.capture
    if seen is None or case.package is None or not (case.own_check or seen.assertions):
        return
    found = _overwritten(seen)
    same = {case.package.model_name, *twins(case.package)}
    if found is not None and same.issuperset(found.names):
        yield _suspect(found, case)


def _overwritten(seen: Captured) -> _Overwritten | None:
    """Of the suspect call's package: several models from one path, and several programs compiled to it."""
    call = seen.suspect
    load = seen.load_of(call) if call is not None else None
    if call is None or load is None or call.outcome != "ok":
        return None
    packaged = next(
        (p for p in reversed(seen.packagings) if p.package == load.package and p.t < load.t),
        None,
    )
    file = packaged.files.get(str(load.options.get("model_name", "model"))) if packaged is not None else None
    if packaged is None or file is None:
        return None
    names = tuple(name for name, other in packaged.files.items() if other == file)
    before = [p.n for p in seen.packagings if p.pid == packaged.pid and p.n < packaged.n]
    used = max((p.n for p in seen.packagings if p.n in before and file in p.files.values()), default=0)
    wrote = tuple(
        c
        for c in seen.compiles
        if (c.pid, c.package, c.outcome) == (packaged.pid, file, "ok") and used < c.n < packaged.n
    )
    different = {frozenset(c.digests.items()) for c in wrote if c.digests}
    return _Overwritten(packaged, names, wrote) if len(names) > 1 and len(different) > 1 else None


def _suspect(found: _Overwritten, case: Case) -> Suspect:
    names = ", ".join(found.names)
    count = len(found.compiles)
    compiled = (
        f"{count} compiles, of different weights, wrote {found.compiles[-1].package} one after the other, "
        f"before {names} were packaged from it"
    )
    same = f"{names} are one and the same model in the package, byte for byte"
    return Suspect(
        category="invalid_package",
        guilty=Party(
            kind="package",
            name=package_name(case),
            value=f"{names} are the model that was compiled last",
            model_locations=_lines(found),
        ),
        summary=f"The models {names} of the package are all the one that was compiled last: each compile "
        "wrote over the files of the one before, which the package then took.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="capture", fact=compiled), Evidence(step="open_package", fact=same)),
        fix=Fix(
            action="give each compile a path of its own (options={'aot_inductor.output_path': ...}), or "
            "package each before the next is compiled"
        ),
        harmful=case.failed,
    )


def _lines(found: _Overwritten) -> list[ModelLocation]:
    """Those of the last compile, then that which packages."""
    return [*found.compiles[-1].stack[:2], *found.packaged.stack[:1]]
