"""The forms that secrets have: by a name before them, by a known beginning, by what stands around them.

Tried against the rules of detect-secrets 1.5.0 (tests/report/test_redact.py).
"""

from __future__ import annotations

import re

_NAME = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|"
    r"auth[_-]?key|credentials?|authtoken)"
)
SECRET_NAME = re.compile(rf"{_NAME}(?:[_-]?id)?$", re.IGNORECASE)
"""The end of a variable's name whose value is a secret."""

# Beginnings that the makers of tokens chose so that scanners find them; what follows is a part of it.
_BEGINNINGS = (
    r"hf_",  # Hugging Face
    r"api_org_",
    r"gh[pousr]_",  # GitHub
    r"github_pat_",
    r"gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct)-",  # GitLab
    r"GR1348941",
    r"xox[a-z]-",  # Slack
    r"xapp-",
    r"sk-",  # OpenAI, Anthropic
    r"[rsp]k_(?:live|test)_",  # Stripe
    r"sq0(?:csp|atp|idp)-",  # Square
    r"npm_",
    r"pypi-",
    r"dckr_pat_",
    r"dop_v1_",
    r"AIza",  # Google
    r"ya29\.",
    r"SG\.",  # SendGrid
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])(?=[0-9A-Z])",  # AWS
    r"eyJ(?=[\w-]{6})",  # JSON web tokens
)
_REST = r"[\w.=~+/-]*"
_BEGUN = "|".join(_BEGINNINGS)

WHOLE = re.compile(
    # A long rest, in one word: `hf_hub_download` and `sk-learn` are none.
    rf"(?<![A-Za-z0-9])(?:{_BEGUN})(?=[\w.=~+/-]{{12,}})(?=[^\s]*[0-9A-Z]){_REST}|"
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[0-9A-Z]{16}|"
    r"eyJ[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+(?:\.[\w.+/=-]*)?|"
    r"\bAKC[a-zA-Z0-9]{10,}|\bAP[\dABCDEF][a-zA-Z0-9]{8,}(?=[\s\"]|$)|"  # Artifactory
    r"\b(?:AC|SK)[a-z0-9]{32}|"  # Twilio
    r"\b[0-9a-z]{32}-us[0-9]{1,2}|"  # Mailchimp
    r"\b\d{8,10}:[0-9A-Za-z_-]{35}|"  # Telegram
    r"[MNO][a-zA-Z\d_-]{23,25}\.[a-zA-Z\d_-]{6}\.[a-zA-Z\d_-]{27}|"  # Discord
    r"(?i:https://hooks\.slack\.com/services/)\S+|"
    r"(?i:https?://api\.softlayer\.com/soap/)\S+"
)
_KEY_BLOCK = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
KEY_BLOCK = re.compile(
    rf"{_KEY_BLOCK}.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)|"
    r"BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PuTTY-User-Key-File-\d",
    re.DOTALL,
)
# A value behind such a name. Counts of tokens stay, and so do names of types.
NAMED = re.compile(
    rf"(?i)(?P<name>(?:{_NAME}(?:[_-]?id)?|(?<![a-z])(?:key|pass|pw)|_authToken|AWS\w{{0,16}}key)"
    r"[\"']?\]?\s{0,4}(?:=>|:=|::|=|:)\s{0,4}|(?<![\w-])(?:Bearer|Basic)\s+|--(?:password|token)\s+)"
    r"(?P<quote>[\"']?)(?!<|\d[\d.]*\b(?![\w-])|None\b|True\b|False\b|null\b)(?P<value>[^\s'\",;]{6,})"
)
_COMMON = re.compile(r"(?i)(?:key|pass|pw)\b")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")

CUT = "…"
# A token of which only the beginning is left, where a text was cut.
CUT_SHORT = re.compile(rf"(?<![A-Za-z0-9])(?:{_BEGUN}){_REST}(?= ?{CUT}|\Z)")


def without_secrets(text: str, found: set[str] | None = None) -> str:
    """`text` with a mark for each secret; what was replaced is added to `found`."""
    seen: set[str] = set() if found is None else found

    def whole(match: re.Match[str]) -> str:
        seen.add(match[0])
        return "<secret>"

    def named(match: re.Match[str]) -> str:
        if _COMMON.match(match["name"]) and not _is_random(match["value"]):
            return match[0]
        seen.add(match["value"])
        return f"{match['name']}{match['quote']}<secret>"

    text = KEY_BLOCK.sub("<secret>", text)
    text = CREDENTIALS.sub("", text)
    text = WHOLE.sub(whole, text)
    text = NAMED.sub(named, text)
    return CUT_SHORT.sub("<secret>", text)


def _is_random(value: str) -> bool:
    """Whether a value behind so common a word as `key` looks made up: hexadecimal, or all kinds mixed."""
    mixed = all(re.search(kind, value) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    return re.fullmatch(r"[0-9a-f]{32,}", value) is not None or (len(value) >= 20 and mixed)
