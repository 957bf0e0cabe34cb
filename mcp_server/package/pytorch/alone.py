"""A launch as one expression over its own arguments: it can be made on what a probe recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.package.launches import Argument, Launch
from mcp_server.package.pytorch.calls import Names


@dataclass(frozen=True)
class Place:
    """Which argument of a launch: its variable in the wrapper, and which of those that are given as that."""

    variable: str
    turn: int = 0


@dataclass(frozen=True)
class Alone:
    """`expression` gives the tensors `gives`, or writes to those of `takes` that the launch writes to."""

    expression: str
    takes: Mapping[str, Place]
    gives: Sequence[str]


def place_of(launch: Launch, argument: Argument) -> Place:
    same = [each for each in launch.tensors if each.target == argument.target]
    return Place(argument.target or "", same.index(argument) if argument in same else 0)


@dataclass
class Bare:
    """Names of a call over its own arguments, `t0` and so on; all that is no tensor as the program has it."""

    names: Names
    launch: Launch
    takes: dict[str, Place] = field(default_factory=dict)
    gives: list[str] = field(default_factory=list)

    def tensor(self, argument: Argument) -> str:
        name = f"t{len(self.takes)}"
        self.takes[name] = place_of(self.launch, argument)
        return name

    def result(self, name: str) -> str:
        self.gives.append(name)
        return name

    def variable(self, name: str) -> str:
        return self.names.variable(name)

    def number(self, expression: str) -> str:
        return self.names.number(expression)

    def array(self, expression: str) -> Sequence[str]:
        return self.names.array(expression)

    def assigned(self, name: str, before: int) -> str | None:
        return self.names.assigned(name, before)
