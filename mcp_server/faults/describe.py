"""One sentence about a fault."""

from __future__ import annotations

from mcp_server.faults.records import Fault, MissedArgument

_KINDS = {
    "assert": "An index assertion failed",
    "misaligned": "A misaligned access",
    "uninitialised": "A read of memory that nothing wrote",
    "race": "A race in shared memory",
    "barrier": "A barrier that not all threads reach",
    "undefined": "Undefined behaviour",
    "signal": "A crash",
}


def summarise(fault: Fault) -> str:
    """What, where, which argument, and who is to blame."""
    parts = [
        _what(fault),
        _where(fault),
        _missed(fault.missed) if fault.kind != "assert" else "",
        _blame(fault),
    ]
    return " ".join(part for part in parts if part)


def _what(fault: Fault) -> str:
    known = _KINDS.get(fault.kind)
    what = known or ("An out-of-bounds " + (fault.direction or "access"))
    if fault.kind == "assert":
        what += f" ({fault.text})"
    size = f" of {fault.access_bytes} bytes" if fault.access_bytes else ""
    at = f" at {fault.address}" if fault.address else ""
    return f"{what}{size}{at}"


def _where(fault: Fault) -> str:
    kernel = f"in kernel {fault.kernel}" if fault.kernel else "in a kernel that the tool did not name"
    line = fault.location or (f"line {fault.generated_line}" if fault.generated_line else "")
    place = f"{kernel} ({line})" if line else kernel
    if fault.launch is None:
        return f"{place}."
    sure = "" if fault.launch.certain else ", not for sure"
    model = fault.launch.model[0] if fault.launch.model else None
    told = f", from {model.file.rpartition('/')[2]}:{model.line}" if model else ""
    return f"{place}, launch {fault.launch.index}{sure}{told}."


def _missed(missed: MissedArgument | None) -> str:
    if missed is None:
        return ""
    told = missed.shape is not None and " of shape " not in missed.label
    shape = f" of shape {missed.shape}" if told else ""
    what = f"{missed.parameter} ({missed.label}{shape})"
    if missed.side in ("before", "after"):
        index = f": index {missed.index}" if missed.index else ""
        if not missed.certain:
            return f"The nearest argument, {what}, is {missed.bytes_outside} bytes away."
        return f"It missed {what} by {missed.bytes_outside} bytes {missed.side} it{index}."
    if missed.side == "empty":
        return f"It went through {what}, which is empty."
    if missed.side == "host":
        return f"It went through {what}, which lies in host memory."
    if missed.side == "inside":
        return f"The address lies inside {what}."
    return f"It went through {what}."


def _blame(fault: Fault) -> str:
    blame = fault.blame
    if blame is None or blame.kind == "unknown":
        return "Who made the address bad is not known." if blame is not None else ""
    verb = {"likely": "Likely", "possible": "Possibly"}[blame.confidence]
    why = f": {blame.reasons[0]}" if blame.reasons else ""
    kind = blame.kind.replace("_", " ")
    who = blame.name if blame.name.startswith(kind) else f"{kind} {blame.name}"
    return f"{verb} guilty: {who}{why}."
