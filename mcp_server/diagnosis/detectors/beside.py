"""The module that a package is compared with, against the one that was exported: other weights or attributes.

A package keeps the weights and the plain attributes of its export, whatever becomes of the module afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import CounterTest, Depth, Hypothesis
from mcp_server.evidence.captured import (
    CapturedAssertion,
    CapturedCompile,
    CapturedExport,
    ModuleBeside,
)
from mcp_server.model import Evidence, Fix, Party

TRAINING = "training"


def detect(case: Case) -> Iterator[Hypothesis]:
    """Hypotheses for the nearest modules that differ from what the package was compiled from."""
    compiled, compared = _compiled(case), _comparison(case)
    if compiled is None or compared is None:
        return
    near = [m for m in compared.modules if compiled.digests.keys() <= m.digests.keys()]
    for module in [m for m in near if _others(m, compiled)][:1]:
        yield _weights(module, compared, compiled, case)
    changed = [(module, _changed(module, _export(module, compiled, case))) for module in near]
    if changed and all(differences for _, differences in changed):
        yield _attributes(*changed[0], compared, case)


def _compiled(case: Case) -> CapturedCompile | None:
    """The compile of the suspect call's package, unless its constants were updated after the load."""
    seen = case.capture
    call = seen.suspect if seen is not None else None
    load = seen.load_of(call) if seen is not None and call is not None else None
    if seen is None or load is None:
        return None
    updated = any((update.pid, update.load) == (load.pid, load.number) for update in seen.updates)
    return None if updated else seen.compile_of(load)


def _others(near: ModuleBeside, compiled: CapturedCompile) -> list[str]:
    """The constants whose values are not those that were compiled."""
    return [name for name, digest in compiled.digests.items() if near.digests[name] != digest]


def _comparison(case: Case) -> CapturedAssertion | None:
    """The failed comparison that the call made again reproduces."""
    seen = case.capture
    return seen.assertions[-1] if seen is not None and seen.assertions and case.plain_departs else None


def _export(near: ModuleBeside, compiled: CapturedCompile, case: Case) -> CapturedExport | None:
    """The last export of that class before the compile."""
    exports = case.capture.exports if case.capture is not None else []
    same = [e for e in exports if (e.pid, e.type) == (compiled.pid, near.type) and e.n < compiled.n]
    return same[-1] if same else None


def _changed(near: ModuleBeside, export: CapturedExport | None) -> list[tuple[str, str, str]]:
    """(name, at export, now) of each attribute with another value; a whole module's mode counts once."""
    if export is None:
        return []
    pairs = [(n, then, near.attributes.get(n, "")) for n, then in export.attributes.items()]
    differ = [pair for pair in pairs if pair[2] and pair[1] != pair[2]]
    modes = [pair for pair in differ if pair[0].rpartition(".")[2] == TRAINING]
    return [pair for pair in differ if pair not in modes] + modes[:1]


def _weights(
    near: ModuleBeside, compared: CapturedAssertion, compiled: CapturedCompile, case: Case
) -> Hypothesis:
    others = _others(near, compiled)
    shown = ", ".join(others[:4])
    fact = (
        f"{len(others)} of {len(compiled.digests)} constants of {near.name} ({near.type}) are not "
        f"those that the package was compiled with: {shown}"
    )
    return Hypothesis(
        category="constants",
        guilty=Party(
            kind="constant",
            name=others[0],
            value="as compiled; the reference has other values",
            model_locations=[*compared.stack[:2], *compiled.stack[:1]],
        ),
        summary=f"The package has the weights of its compile, and {near.name}, with which it is compared, "
        f"has others: {shown}.",
        depth=Depth.STATE,
        sources=frozenset({"values of constants"}),
        evidence=(Evidence(step="capture", fact=fact, source=str(near.file or "")),),
        fix=Fix(
            action="give the package the weights with load_constants after they change, or compile it again",
            after=f"package.load_constants({near.name}.state_dict(), check_full_update=False)",
        ),
        counter=_reloaded(near, case),
        harmful=case.failed,
        exact=False,
    )


def _reloaded(near: ModuleBeside, case: Case) -> CounterTest | None:
    """The call after the package was given the module's weights."""
    if near.file is None or case.call is None or case.call.operation != "replay":
        return None
    step = {
        "do": "constants",
        "file": near.file,
        "how": "load_constants",
        "arguments": [False, False],
        "only_known": True,
    }
    steps = [step, *case.call.request.get("steps", ())]
    what = f"the call after the package was given the weights of {near.name}"
    return CounterTest(f"weights:{near.file.name}", what, options={"steps": steps})


def _attributes(
    near: ModuleBeside, changed: list[tuple[str, str, str]], compared: CapturedAssertion, case: Case
) -> Hypothesis:
    name, then, now = changed[0]
    told = "; ".join(f"{n} was {a} and is {b}" for n, a, b in changed[:4])
    agrees = case.interpreted is not None and bool((case.interpreted.last("compared") or {}).get("equal"))
    return Hypothesis(
        category="wrong_output",
        guilty=Party(
            kind="script",
            name=f"{near.type}.{name}",
            value=f"{now} (at export: {then})",
            model_locations=compared.stack[:2],
        ),
        summary=f"The package keeps what {near.type} held when it was exported, and {near.name}, with which "
        f"it is compared, differs: {told}.",
        depth=Depth.STATE,
        sources=frozenset({"attributes", *({"eager"} if agrees else ())}),
        evidence=(
            Evidence(step="capture", fact=f"between the export and the comparison, {told}"),
            *((Evidence(step="interpret", fact="package and exported program agree"),) if agrees else ()),
        ),
        fix=Fix(action=_remedy(name)),
        harmful=case.failed,
        exact=False,
    )


def _remedy(name: str) -> str:
    if name.rpartition(".")[2] == TRAINING:
        return "call eval() on the model before it is exported, and compare with it in the same mode"
    return f"make {name} a buffer or an input of the model, or export again after it changes"
