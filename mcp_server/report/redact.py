"""Leaves out of a text what says where, and by whom, something was run."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# An absolute path of two parts or more; its last part stays, and so does a line number behind it.
PATH = re.compile(r"(?<![\w.:/<>-])~?(?:/[\w.+@%=~-]+)+/([\w.+@%=~-]+)")
ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
SHORTEST_NAME = 3  # shorter ones, such as `me`, are parts of words


@dataclass(frozen=True)
class Redactor:
    """`names` are words to be replaced wherever they stand alone, by what is given for them."""

    names: Mapping[str, str]

    @classmethod
    def of_this_machine(cls) -> Redactor:
        """Knows this host by its names, and this user."""
        host, full = socket.gethostname(), socket.getfqdn()
        names = {full: "<host>", host: "<host>", host.partition(".")[0]: "<host>", _user(): "<user>"}
        ours = {"localhost", "root", "user", ""}
        return cls(
            {name: what for name, what in names.items() if name not in ours and len(name) >= SHORTEST_NAME}
        )

    def __call__(self, text: str) -> str:
        """`text` without paths above their last part, hosts, users, network and mail addresses."""
        text = CREDENTIALS.sub("", text)
        text = MAIL.sub("<mail>", text)
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
