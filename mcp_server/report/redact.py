"""Leaves out of a text what says where, and by whom, something was run."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# An absolute path of two parts or more; its last part stays, and so does a line number behind it. It may
# stand behind a colon, as in LD_LIBRARY_PATH, behind -I, -L and file://, but not behind a host.
PATH = re.compile(r"(?:(?<![\w./-])|(?<= -[BIL])|(?<=file://))~?(?:/[\w.+@%=~-]+)+/([\w.+@%=~-]+)")
ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|"
    r"(?<![\w:.])(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{0,4}){3,7}(?![\w:])"
)
# Where srun, slurmstepd and torchrun name a machine, and names of machines in clouds.
HOST = re.compile(
    r"(?<=srun: error: )[\w.-]+(?=: tasks? \d)|(?<=slurmstepd-)[\w.-]+(?=: )|"
    r"(?<= ON )[\w.-]+(?= CANCELLED AT )|(?<=  host      : )[\w.-]+|"
    r"(?<![\w.-])(?:ip-\d+-\d+-\d+-\d+|[a-z][\w-]*\.[\w-]+)(?:\.[\w-]+)*\.(?:internal|local|lan|corp)(?![\w.-])"
)
_SECRET_NAME = r"(?:token|secret|passw(?:or)?d|api[_-]?key|credentials?)"
SECRET_NAME = re.compile(rf"{_SECRET_NAME}$", re.IGNORECASE)
# A value behind such a name (numbers are counts of tokens), and the forms that known secrets have.
SECRET = re.compile(
    rf"(?i:({_SECRET_NAME}(?:=|: )|Bearer ))(?![\d.]+\b)[^\s'\",;]{{6,}}|"
    r"\b(?:hf_\w{20,}|gh[pousr]_\w{20,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
SHORTEST_NAME = 3  # shorter ones, such as `me`, are parts of words


@dataclass(frozen=True)
class Redactor:
    """`names` are words to be replaced wherever they stand alone, by what is given for them.

    `places` are directories that are known by their names, which may have spaces in them.
    """

    names: Mapping[str, str]
    places: tuple[str, ...] = ()

    @classmethod
    def of_this_machine(cls, places: Iterable[Path] = ()) -> Redactor:
        """Knows this host by its names, this user, and the home directory beside `places`."""
        host, full = socket.gethostname(), socket.getfqdn()
        names = {full: "<host>", host: "<host>", host.partition(".")[0]: "<host>", _user(): "<user>"}
        ours = {"localhost", "root", "user", ""}
        known = {str(place) for place in (*places, Path.home()) if len(place.parts) > 1}
        return cls(
            {name: what for name, what in names.items() if name not in ours and len(name) >= SHORTEST_NAME},
            tuple(sorted(known, key=len, reverse=True)),
        )

    def __call__(self, text: str) -> str:
        """`text` without paths above their last part, hosts, users, secrets, network and mail addresses."""
        for place in self.places:
            text = text.replace(f"{place}/", "…/")
        text = CREDENTIALS.sub("", text)
        text = SECRET.sub(lambda found: f"{found[1] or ''}<secret>", text)
        text = MAIL.sub("<mail>", text)
        text = HOST.sub("<host>", text)
        text = PATH.sub(r"…/\1", text)
        text = ADDRESS.sub("<address>", text)
        for name, what in sorted(self.names.items(), key=lambda item: -len(item[0])):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", what, text)
        return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return Path.home().name
