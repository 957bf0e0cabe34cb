"""The row type of the flag table, and the kinds of values."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mcp_server import FIRST, Release

Moment = Literal["compile", "load", "run"]
Device = Literal["cpu", "cuda"]
ConfigValue = bool | int | float | str


@dataclass(frozen=True)
class Values:
    """The values that a flag accepts: any text that matches `pattern` completely.

    `config` converts the text to the Python value for `torch._inductor.config`.
    """

    pattern: str
    words: str
    config: Callable[[str], ConfigValue] = str

    def accepts(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.DOTALL) is not None


SWITCH = Values("[01]", "exactly 0 or 1", lambda text: text == "1")
LEVEL = Values("[0-3]", "the string 0, 1, 2 or 3")
PROVENANCE = Values("[0-2]", "0, 1 or 2", int)
REPRO = Values("[1-4]", "1, 2, 3 or 4", int)
FRACTION = Values(r"0(\.[0-9]+)?|1(\.0+)?", "a number from 0 to 1", float)
TEXT = Values(".+", "text, not empty")
KERNELS = Values(r"[^,]+(,[^,]+)*", "kernel names, comma between; each must be the whole name")
FIRST_NOT_ZERO = Values(".*", "off if the value starts with 0; on otherwise, even if empty")
OPTIMISATION = Values("O[0-3]", "O0, O1, O2 or O3")
DISK_FORMAT = Values("pickle_weights|binary_blob", "pickle_weights or binary_blob")


@dataclass(frozen=True)
class Need:
    """Another flag that must also be set, in release `since` and later."""

    name: str
    value: str
    why: str
    since: Release = FIRST


@dataclass(frozen=True)
class Flag:
    """One switch of torch: an environment variable, a `torch._inductor.config` entry, or both.

    `since` is the first release in which the flag affects AOTInductor code; torch may know the name earlier.
    `before` says what older releases do with the flag. `cpu_since` replaces `since` for CPU models. `inert`
    says why a well-known flag never has an effect.
    """

    shows: str
    values: Values = SWITCH
    misses: str = ""
    acts: tuple[Moment, ...] = ("compile",)
    env: str = ""
    config: str = ""
    alias: str = ""
    cost: str = ""
    since: Release = FIRST
    before: str = ""
    cpu_since: Release | None = None
    device: Device | None = None
    needs: tuple[Need, ...] = ()
    conflicts: tuple[str, ...] = ()
    inert: str = ""

    @property
    def name(self) -> str:
        return self.env or self.config

    def names(self) -> tuple[str, ...]:
        """All names of the flag: environment variable, config entry, alias."""
        return tuple(filter(None, (self.env, self.config, self.alias)))
