"""Leaves out of a text what says where, and by whom, something was run."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from mcp_server.report.secrets import without_secrets

# An absolute path of two parts or more; its last part stays, and so does a line number behind it. It may
# stand behind a colon, as in LD_LIBRARY_PATH, behind -I, -L and file://, but not behind a host.
PATH = re.compile(r"(?:(?<![\w./-])(?<!<host>)|(?<= -[BIL])|(?<=file://))~?(?:/[\w.+@%=~-]+)+/([\w.+@%=~-]+)")
# A home directory itself, whose last part is the user.
HOME = re.compile(r"(?<![\w.>-])((?:/[\w.-]+){0,2}/(?:home|Users)/)[\w.+@~-]+(?![\w/.+@~-])")
# The same on Windows, with backslashes that may be doubled, and shares of other machines.
WINDOWS = re.compile(
    r"(?:(?<![A-Za-z0-9])[A-Za-z]:[\\/]{1,2}|(?<![\w\\])\\{2,4}(?=\w))"
    r"(?:[\w.()+@~$ -]*[\w.()+@~$-][\\/]{1,2})*([\w.()+@~$-]*)"
)
ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|"
    r"(?<![\w:.])(?:(?i:fe80|f[cdf][0-9a-f]{2}|2[0-9a-f]{3}):[0-9A-Fa-f:]*|"
    r"::ffff:\d{1,3}(?:\.\d{1,3}){3})(?:%[\w.-]+)?(?![\w:])|"
    r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
)
# Where srun, slurmstepd and torchrun name a machine, what variables and messages call one, a shell's prompt,
# and names of machines in clouds and companies. `self.model.net` is code: there a digit or a dash decides.
_LABELS = r"[A-Za-z0-9][\w-]*(?:\.[\w-]+)+"
HOST = re.compile(
    r"(?<=srun: error: )[\w.-]+(?=: tasks? \d)|(?<=slurmstepd-)[\w.-]+(?=: )|"
    r"(?<= ON )[\w.-]+(?= CANCELLED AT )|(?<=  host      : )[\w.-]+|"
    r"(?<=@)[A-Za-z][\w.-]*(?=:[~/])|"
    rf"(?<![\w.-])(?:ip-\d+-\d+-\d+-\d+|{_LABELS})\.(?:internal|local|lan|corp|intranet|home|localdomain|"
    r"com|org|edu|gov|cloud|example|invalid)(?![\w-]|\.\w)|"
    r"(?<![\w.-])(?=[\w.]*[-\d])[A-Za-z][\w-]*(?:\.[\w-]+)*\."
    r"(?:internal|local|lan|corp|intranet|example|net|io|ai|dev)(?![\w-]|\.\w)"
)
_HOST_NAME = r"(?:hostname|host|master_addr|slurmd?_nodename|slurm_(?:job_)?nodelist|node_?name)"
_USER_NAME = r"(?:user(?:name)?|logname|login|owner)"
NAMED = re.compile(
    rf"(?i)(?<![\w-])(?:(?P<host>[\w.-]*{_HOST_NAME})|(?P<user>[\w.-]*{_USER_NAME}))"
    r"(?P<sign>[\"']?(?:=| = |: ?)[\"']?)(?P<value>[A-Za-z_][\w.-]{1,252})(?![\w(])"
)
URL = re.compile(r"(?<=://)(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9][\w.-]*)(:\d{1,5})?")
PUBLIC = re.compile(
    r"(?:.+\.)?(?:pytorch\.org|github\.com|githubusercontent\.com|pypi\.org|python\.org|huggingface\.co|nvidia\.com|"
    r"triton-lang\.org|modelcontextprotocol\.io|w3\.org)|localhost",
    re.IGNORECASE,
)
NOBODY = frozenset(("none", "null", "true", "false", "localhost", "code", "defined", "error"))
MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
PROMPT_USER = re.compile(r"(?<![\w.+-])[A-Za-z_][\w.-]{0,31}(?=@[A-Za-z][\w.-]*:[~/])")
_CUT_OFF = re.compile(r"[\w.~+/-]{4,}(?= ?…|\Z)")
_CUT_INTO = re.compile(r"(?<=…)( ?)([\w.~+/-]{4,})")
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

    def __call__(self, text: str, found: set[str] | None = None) -> str:
        """`text` without paths above their last part, hosts, users, secrets, network and mail addresses.

        What was replaced as a secret or a host is added to `found`.
        """
        seen: set[str] = set() if found is None else found
        for place in self.places:
            text = text.replace(f"{place}/", "…/")
        text = without_secrets(text, seen)
        text = PROMPT_USER.sub("<user>", text)
        text = MAIL.sub(_noted("<mail>", seen), text)
        text = URL.sub(lambda match: _url_host(match, seen), text)
        text = HOST.sub(lambda match: _host(match, seen), text)
        text = NAMED.sub(lambda match: _named(match, seen), text)
        text = WINDOWS.sub(_windows, text)
        text = HOME.sub(r"…/<user>", text)
        text = PATH.sub(r"…/\1", text)
        text = ADDRESS.sub(_address, text)
        for name, what in sorted(self.names.items(), key=lambda item: -len(item[0])):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", what, text)
        return text

    def after(self, found: Iterable[str]) -> Callable[[str], str]:
        """This redactor, which also takes away what a cut left of something in `found`.

        A verdict quotes the log in part: a token whose end is cut off has the form of none any more.
        """
        known = sorted(found)

        def redact(text: str) -> str:
            return self(_without_remains(text, known))

        return redact


def _without_remains(text: str, known: list[str]) -> str:
    """`text` without words at a cut, or at its end, with which something known begins or ends."""
    if not known:
        return text
    text = _CUT_OFF.sub(
        lambda word: "<cut>" if any(whole.startswith(word[0]) for whole in known) else word[0], text
    )
    return _CUT_INTO.sub(
        lambda word: f"{word[1]}<cut>" if any(whole.endswith(word[2]) for whole in known) else word[0], text
    )


def _noted(mark: str, seen: set[str]) -> Callable[[re.Match[str]], str]:
    """Puts `mark` in the place of a match, and notes what was there."""

    def replace(match: re.Match[str]) -> str:
        seen.add(match[0])
        return mark

    return replace


def _url_host(match: re.Match[str], seen: set[str]) -> str:
    if PUBLIC.fullmatch(match[1]):
        return match[0]
    seen.add(match[1])
    return "<host>"


def _host(match: re.Match[str], seen: set[str]) -> str:
    if PUBLIC.fullmatch(match[0]):
        return match[0]
    seen.add(match[0])
    return "<host>"


def _named(match: re.Match[str], seen: set[str]) -> str:
    """A value behind the name of a host or user; words that stand for none stay."""
    if match["value"].lower() in NOBODY:
        return match[0]
    seen.add(match["value"])
    name, mark = (match["host"], "<host>") if match["host"] else (match["user"], "<user>")
    return f"{name}{match['sign']}{mark}"


def _windows(match: re.Match[str]) -> str:
    """The last part stays, unless it is the user's own directory."""
    above = re.split(r"[\\/]+", match[0])[:-1]
    return "…/<user>" if above and above[-1].lower() == "users" else f"…/{match[1]}"


def _address(match: re.Match[str]) -> str:
    """What has the form of an IPv6 address is one only if it can be read so: a time of the day is none."""
    text = match[0].partition("%")[0]
    if ":" in text and len(text) != len("00:11:22:33:44:55"):
        try:
            ip_address(text)
        except ValueError:
            return match[0]
    return "<address>"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return Path.home().name
