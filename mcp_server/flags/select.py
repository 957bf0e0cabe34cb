"""Turns requested flags into environment variables and config entries; rejects flags without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from mcp_server import versions
from mcp_server.versions import Release

from ..errors import ProblemError
from .building import BUILDING, CHECKS
from .printing import PRINTING, RUNTIME
from .types import ConfigValue, Device, Flag, Moment

FLAGS: tuple[Flag, ...] = CHECKS + PRINTING + BUILDING + RUNTIME

_BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in flag.names()}
_PREFIXES = ("torch._inductor.config.", "config.")


@dataclass(frozen=True)
class Chosen:
    """A flag of a plan and its value as text."""

    flag: Flag
    value: str

    @property
    def off(self) -> bool:
        return self.value == "0"


@dataclass(frozen=True)
class FlagPlan:
    """Environment variables for the child process, and entries of `torch._inductor.config`."""

    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    chosen: tuple[Chosen, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Target:
    moment: Moment
    torch: Release | None
    device: Device | None


def select(
    requested: Mapping[str, object],
    *,
    moment: Moment = "compile",
    torch_version: str | None = None,
    device: Device | None = None,
) -> FlagPlan:
    """The plan for `requested` (name -> value) at `moment`.

    Without `torch_version` or `device` the rules that depend on it are skipped and the plan has a warning.
    Raises `ProblemError` for an unknown name, a bad value, and a flag that would have no effect: a flag that
    silently does nothing looks like a clean result.
    """
    target = _Target(moment, parse_version(torch_version) if torch_version else None, device)
    chosen = tuple(_choose(name, value, target) for name, value in requested.items())
    _check_together(chosen, target)
    env = {one.flag.env: one.value for one in chosen if one.flag.env}
    # A flag with both spellings is set through its variable only: torch reads config defaults from it.
    config = {one.flag.config: one.flag.values.config(one.value) for one in chosen if not one.flag.env}
    return FlagPlan(env, config, chosen, _warnings(chosen, target))


def find(name: str) -> Flag:
    """Look up a flag by environment or config name. Raises `ProblemError` listing similar names."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise ProblemError("unknown flag", value=name, allowed=_near(name))


def parse_version(text: str) -> Release:
    """(2, 13) from `2.13.0+cpu`. Raises `ProblemError` for other text."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    if match is None:
        raise ProblemError("not a torch version", value=text, allowed="such as 2.13.0 or 2.11.0+cu130")
    return int(match[1]), int(match[2])


def _near(name: str) -> str:
    upper = {known.upper(): known for known in _BY_NAME}
    near = get_close_matches(name.upper(), upper, n=3, cutoff=0.5)
    return "nearest: " + ", ".join(upper[one] for one in near) if near else "a name of the flag table"


def _choose(name: str, value: object, target: _Target) -> Chosen:
    flag = find(name)
    text = str(int(value) if isinstance(value, bool) else value)
    for reason in (
        flag.inert,
        _wrong_moment(flag, target),
        _too_old(flag, target),
        _wrong_device(flag, target),
    ):
        if reason:
            raise ProblemError(f"{flag.name} cannot act: {reason}", value=text)
    if not flag.values.accepts(text):
        raise ProblemError(f"{flag.name} does not accept this value", value=value, allowed=flag.values.words)
    return Chosen(flag, text)


def _wrong_moment(flag: Flag, target: _Target) -> str:
    if target.moment in flag.acts:
        return ""
    when = " and ".join(flag.acts)
    if "compile" in flag.acts:
        return f"it acts at {when} time and is baked into the package: compile again with it"
    return f"it acts at {when} time: set it there, no recompile is needed"


def _too_old(flag: Flag, target: _Target) -> str:
    first = flag.first_release(target.device)
    if target.torch is None or target.torch >= first:
        return ""
    reason = f"it needs torch {versions.text(first)} or newer, this is {versions.text(target.torch)}"
    return f"{reason} ({flag.before})" if flag.before else reason


def _wrong_device(flag: Flag, target: _Target) -> str:
    if flag.device is None or target.device is None or flag.device == target.device:
        return ""
    return f"it is for {flag.device} models only, this one is for {target.device}"


def _check_together(chosen: tuple[Chosen, ...], target: _Target) -> None:
    values = {one.flag.name: one.value for one in chosen}
    for one in chosen:
        if not one.off:
            _check_needs(one.flag, values, target)
            _check_conflicts(one.flag, chosen)


def _check_needs(flag: Flag, values: Mapping[str, str], target: _Target) -> None:
    for need in flag.needs:
        old = target.torch is not None and target.torch < need.since
        if not old and values.get(need.name) != need.value:
            raise ProblemError(
                f"{flag.name} cannot act: {need.why}",
                allowed=f"add {need.name}={need.value}, or leave it out",
            )


def _check_conflicts(flag: Flag, chosen: tuple[Chosen, ...]) -> None:
    for other in chosen:
        if other.flag.name in flag.conflicts and not other.off:
            raise ProblemError(
                f"{flag.name} and {other.flag.name} cannot be set together", allowed="one of them"
            )


def _warnings(chosen: tuple[Chosen, ...], target: _Target) -> tuple[str, ...]:
    unknown = []
    if target.torch is None and any(one.flag.since > versions.FIRST for one in chosen):
        unknown.append("torch's version is not known: a flag that it does not have does nothing")
    if target.device is None and any(one.flag.device for one in chosen):
        unknown.append("the model's device is not known: a flag for another device does nothing")
    return tuple(unknown)
