"""Makes text safe to pass on: removes control characters, paths, hosts, users and secrets.

A secret is recognised by the name before it, or by its form: a private key, a login in a URL, a JSON web
token, or the form that most issuers use. A token of another form with no name before it is not recognised.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

_NAME = (
    r"(?:token|secret[_-]?(?:access)?[_-]?key|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|"
    r"auth[_-]?key|credentials?|authtoken)"
)
SECRET_NAME = re.compile(rf"{_NAME}(?:[_-]?id)?$", re.IGNORECASE)
"""The end of the name of a variable whose value is a secret."""

# A token as issuers form it: a short prefix, a separator, then a long rest with a digit; or a JSON web token.
TOKEN = re.compile(
    r"(?<![\w./-])[A-Za-z]{2,6}[_-](?:[A-Za-z\d]{1,12}[_-]){0,2}(?=[A-Za-z]*\d)[A-Za-z\d]{16,}"
    r"(?:[_-][A-Za-z\d]*)*(?![\w/])|"
    r"eyJ[\w=-]+\.[\w=-]+(?:\.[\w.+/=-]*)?"
)
_KEY_BLOCK = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
KEY_BLOCK = re.compile(
    rf"{_KEY_BLOCK}.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)|"
    r"BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PuTTY-User-Key-File-\d",
    re.DOTALL,
)
# A value after the name of a secret. Numbers (counts of tokens), None, true and short words (types) stay.
SECRETS_NAMED = re.compile(
    rf"(?i)(?P<name>(?:{_NAME}(?:[_-]?id)?|(?:key|pass|pw)|_authToken|AWS\w{{0,16}}key)"
    r"[\"']?\]?\s{0,200}(?:=>|:=|::|=|:)\s{0,200}|(?<![\w-])(?:Bearer|Basic)\s+|--(?:password|token)\s+)"
    r"(?P<quote>[\"']?)(?!<|\d{1,18}(?:\.\d*)?(?![\w.-])|None\b|True\b|False\b|null\b)(?P<value>[^\s'\",;]{6,})"
)
SPACED = re.compile(
    rf"(?i)(?P<name>(?:{_NAME}|key|pass|pw)[\"']?\]?\s{{1,200}}[\"']?)(?P<value>[a-z0-9_-]{{20,}})"
)
_COMMON = re.compile(r"(?i)(?:key|pass|pw)\b")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def without_secrets(text: str, found: set[str] | None = None) -> str:
    """Replace each secret in `text` with a mark, and add the secret to `found`."""
    seen: set[str] = set() if found is None else found

    def whole(match: re.Match[str]) -> str:
        seen.add(match[0])
        return "<secret>"

    def named(match: re.Match[str]) -> str:
        value = match["value"]
        # After a common word such as `key`, only a random-looking value counts: long, not made of words.
        mixed = all(re.search(kind, value) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
        random = len(value) >= 20 and (mixed or value.isalnum())
        if (match.re is SPACED or _COMMON.match(match["name"])) and not random:
            return match[0]
        seen.add(value)
        quote = "" if match.re is SPACED else match["quote"]
        return f"{match['name']}{quote}<secret>"

    text = KEY_BLOCK.sub("<secret>", text)
    text = CREDENTIALS.sub("", text)
    text = TOKEN.sub(whole, text)
    return SPACED.sub(named, SECRETS_NAMED.sub(named, text))


# An absolute path of two or more parts: its last part and a line number after it are kept. It may follow a
# colon (LD_LIBRARY_PATH), -B, -I, -L or file://. In a URL, the path after a removed host is kept.
PATH = re.compile(r"(?:(?<![\w./-])(?<!<host>)|(?<= -[BIL])|(?<=file://))~?(?:/[\w.+@%=~-]+)+/([\w.+@%=~-]+)")
# A home directory without a path in it: its last part is the user.
HOME = re.compile(r"(?<![\w.>-])((?:/[\w.-]+){0,2}/(?:home|Users)/)[\w.+@~-]+(?![\w/.+@~-])")
# A home directory on Windows, in logs of other machines, with the path inside it.
WINDOWS_HOME = re.compile(
    r"(?i)(?<![A-Z])[A-Z]:[\\/]+(?:Users|Documents and Settings)[\\/]+[^\\/\r\n\"':<>|]+"
    r"(?P<rest>(?:[\\/]+[\w.+@%=~-]+)*)"
)
ADDRESS = re.compile(
    r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|"
    r"(?<![\w:.])(?:(?i:fe80|f[cdf][0-9a-f]{2}|2[0-9a-f]{3}):[0-9A-Fa-f:]*|"
    r"::ffff:\d{1,3}(?:\.\d{1,3}){3})(?:%[\w.-]+)?(?![\w:])|"
    r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
)
# Hosts: where srun, slurmstepd and torchrun write them; after `@` in shell prompts; and names that end in a
# known domain. Domains such as `net` also end code (`self.model.net`): there a host needs a digit or dash.
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
REDACT_NAMED = re.compile(
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
_CUT_OFF = re.compile(r"[\w.~+/-]{4,}(?= ?…|$)", re.MULTILINE)
_CUT_INTO = re.compile(r"(?<=…)( ?)([\w.~+/-]{4,})")
SHORTEST_NAME = 3  # shorter names, such as `me`, are parts of words


@dataclass(frozen=True)
class Redactor:
    """Redacts texts. `names` maps whole words to their replacements.

    `places` are directories whose full names, even with spaces in them, are replaced.
    """

    names: Mapping[str, str]
    places: tuple[str, ...] = ()

    @classmethod
    def of_this_machine(cls, places: Iterable[Path] = ()) -> Redactor:
        """Create a redactor for this host's names, this user, the home directory and `places`."""
        host, full = socket.gethostname(), socket.getfqdn()
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = Path.home().name
        names = {full: "<host>", host: "<host>", host.partition(".")[0]: "<host>", user: "<user>"}
        ours = {"localhost", "root", "user", ""}
        known = {str(place) for place in (*places, Path.home()) if len(place.parts) > 1}
        return cls(
            {name: what for name, what in names.items() if name not in ours and len(name) >= SHORTEST_NAME},
            tuple(sorted(known, key=len, reverse=True)),
        )

    def __call__(self, text: str, found: set[str] | None = None) -> str:
        """Reduce paths to their last part; remove hosts, users, secrets and addresses from `text`.

        Secrets, mail addresses, hosts and users found by their form are added to `found`.
        """
        seen: set[str] = set() if found is None else found
        for place in self.places:
            text = text.replace(f"{place}/", "…/")
        text = without_secrets(text, seen)
        text = PROMPT_USER.sub("<user>", text)
        text = MAIL.sub(_hide("<mail>", seen), text)
        text = URL.sub(_hide("<host>", seen, 1), text)
        text = HOST.sub(_hide("<host>", seen), text)
        text = REDACT_NAMED.sub(lambda match: _named(match, seen), text)
        text = WINDOWS_HOME.sub(_windows_home, text)
        text = HOME.sub(r"…/<user>", text)
        text = PATH.sub(r"…/\1", text)
        text = ADDRESS.sub(_address, text)
        for name, what in sorted(self.names.items(), key=lambda item: -len(item[0])):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", what, text)
        return text

    def after(self, found: Iterable[str]) -> Callable[[str], str]:
        """A redactor that also removes fragments of the texts in `found` at an ellipsis or line end.

        A verdict quotes parts of the log: a token that was cut off no longer has a recognisable form.
        """
        known = sorted(found)

        def at_end(word: re.Match[str]) -> str:
            return "<cut>" if any(whole.startswith(word[0]) for whole in known) else word[0]

        def at_start(word: re.Match[str]) -> str:
            return f"{word[1]}<cut>" if any(whole.endswith(word[2]) for whole in known) else word[0]

        def redact(text: str) -> str:
            return self(_CUT_INTO.sub(at_start, _CUT_OFF.sub(at_end, text)) if known else text)

        return redact


def _hide(mark: str, seen: set[str], group: int = 0) -> Callable[[re.Match[str]], str]:
    """A function that replaces a match with `mark` and adds it to `seen`; public hosts stay."""

    def replace(match: re.Match[str]) -> str:
        if mark == "<host>" and PUBLIC.fullmatch(match[group]):
            return match[0]
        seen.add(match[group])
        return mark

    return replace


def _named(match: re.Match[str], seen: set[str]) -> str:
    """Replace the value after the name of a host or user, except words that name nobody."""
    if match["value"].lower() in NOBODY:
        return match[0]
    seen.add(match["value"])
    name, mark = (match["host"], "<host>") if match["host"] else (match["user"], "<user>")
    return f"{name}{match['sign']}{mark}"


def _windows_home(match: re.Match[str]) -> str:
    """The last part of a path below a home folder, or a mark for the folder itself."""
    return f"…/{match['rest'].replace(chr(92), '/').rpartition('/')[2] or '<user>'}"


def _address(match: re.Match[str]) -> str:
    """Replace an address. An IPv6 address must also parse, because a time of day has the same form."""
    text = match[0].partition("%")[0]
    if ":" in text and len(text) != len("00:11:22:33:44:55"):
        try:
            ip_address(text)
        except ValueError:
            return match[0]
    return "<address>"


Model = TypeVar("Model", bound=BaseModel)

# Control characters, which HTML forbids, and characters that change the direction of text around them.
UNWANTED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def cleaned(model: Model) -> Model:
    """The same record with unwanted characters removed from its texts."""
    return type(model).model_validate(
        with_texts(model.model_dump(mode="json"), lambda text, _: clean_text(text))
    )


def clean_text(text: str) -> str:
    """Replace each unwanted character in `text`; carriage returns end lines."""
    return UNWANTED.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def with_texts(value: object, change: Callable[[str, str], str], name: str = "") -> object:
    """Apply `change` to each text and key of a JSON value, with the key of the text ("" if it has none)."""
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, dict):
        return {change(key, ""): with_texts(item, change, key) for key, item in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, list) else value
