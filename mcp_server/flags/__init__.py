"""The table of AOTInductor debugging flags: when each acts, since which release, and on which device.

`select` turns requested flags into environment variables and config entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from mcp_server import FIRST, Release, release_of, release_text
from mcp_server.errors import ProblemError
from mcp_server.flags.rows import BUILDING, CHECKS, PRINTING, RUNTIME
from mcp_server.flags.types import ConfigValue, Device
from mcp_server.flags.types import Flag as Flag
from mcp_server.flags.types import Moment as Moment

FLAGS: tuple[Flag, ...] = CHECKS + PRINTING + BUILDING + RUNTIME

_BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in flag.names()}
_SET_THERE = ": set it there, no recompile is needed"
_PREFIXES = ("torch._inductor.config.", "config.")


@dataclass(frozen=True)
class Chosen:
    """A chosen flag and its value as text."""

    flag: Flag
    value: str


@dataclass(frozen=True)
class FlagPlan:
    """Environment variables for the child process, and entries of `torch._inductor.config`."""

    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    chosen: tuple[Chosen, ...] = ()
    warnings: tuple[str, ...] = ()


def select(
    requested: Mapping[str, object],
    *,
    moment: Moment = "compile",
    torch_version: str | None = None,
    device: Device | None = None,
) -> FlagPlan:
    """The plan for `requested` (name -> value) at `moment`.

    If `torch_version` or `device` is None, rules that depend on it are skipped, and the plan has a warning.
    Raise `ProblemError` for an unknown name, a bad value, or a flag that would have no effect: its run would
    look like a check that found nothing.
    """
    torch = release_of(torch_version) if torch_version else None
    if torch_version and torch is None:
        raise ProblemError(
            "not a torch version", value=torch_version, allowed="such as 2.13.0 or 2.11.0+cu130"
        )
    chosen = tuple(_choose(name, value, moment, torch, device) for name, value in requested.items())
    _check_together(chosen, torch)
    env = {one.flag.env: one.value for one in chosen if one.flag.env}
    # If a flag has a variable and a config entry, only the variable is set: it is the entry's default.
    config = {one.flag.config: one.flag.values.config(one.value) for one in chosen if not one.flag.env}
    warnings = []
    if torch is None and any(one.flag.since > FIRST for one in chosen):
        warnings.append("torch's version is not known: a flag that it does not have does nothing")
    if device is None and any(one.flag.device for one in chosen):
        warnings.append("the model's device is not known: a flag for another device does nothing")
    return FlagPlan(env, config, chosen, tuple(warnings))


def find(name: str) -> Flag:
    """Look up a flag by environment or config name. Raise `ProblemError` with similar names if unknown."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name in _BY_NAME:
        return _BY_NAME[name]
    upper = {known.upper(): known for known in _BY_NAME}
    near = get_close_matches(name.upper(), upper, n=3, cutoff=0.5)
    allowed = "a flag of guides/flags.md"
    allowed += f", such as {', '.join(upper[one] for one in near)}" if near else ""
    raise ProblemError("unknown flag", value=name, allowed=allowed)


def _choose(name: str, value: object, moment: Moment, torch: Release | None, device: Device | None) -> Chosen:
    """The flag with its value as text. Raises `ProblemError` if it cannot act or the value is bad."""
    flag = find(name)
    text = str(int(value) if isinstance(value, bool) else value)
    reason = flag.inert
    if not reason and moment not in flag.acts:
        reason = f"it acts at {' and '.join(flag.acts)} time"
        baked = "compile" in flag.acts
        reason += " and is baked into the package: compile again with it" if baked else _SET_THERE
    first = (device == "cpu" and flag.cpu_since) or flag.since
    if not reason and torch is not None and torch < first:
        reason = f"it needs torch {release_text(first)} or newer, this is {release_text(torch)}"
        reason += f" ({flag.before})" if flag.before else ""
    if not reason and None not in (flag.device, device) and flag.device != device:
        reason = f"it is for {flag.device} models only, this one is for {device}"
    if reason:
        raise ProblemError(f"{flag.name} cannot act: {reason}", value=text)
    if not flag.values.accepts(text):
        raise ProblemError(f"{flag.name} does not accept this value", value=value, allowed=flag.values.words)
    return Chosen(flag, text)


def _check_together(chosen: tuple[Chosen, ...], torch: Release | None) -> None:
    """Raise `ProblemError` if a flag lacks another flag that it needs, or if two exclude each other."""
    on = {one.flag.name: one for one in chosen if one.value != "0"}
    values = {one.flag.name: one.value for one in chosen}
    for one in on.values():
        for need in one.flag.needs:
            old = torch is not None and torch < need.since
            if not old and values.get(need.name) != need.value:
                raise ProblemError(
                    f"{one.flag.name} cannot act: {need.why}",
                    allowed=f"add {need.name}={need.value}, or leave it out",
                )
        for other in on.keys() & set(one.flag.conflicts):
            raise ProblemError(f"{one.flag.name} and {other} cannot be set together", allowed="one of them")
