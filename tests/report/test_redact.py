"""What `--redact` takes away, tried with the rules of a maintained scanner, and what it leaves."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from detect_secrets.plugins import (
    artifactory,
    aws,
    azure_storage_key,
    basic_auth,
    cloudant,
    discord,
    github_token,
    gitlab_token,
    ibm_cloud_iam,
    ibm_cos_hmac,
    jwt,
    mailchimp,
    openai,
    private_key,
    pypi_token,
    sendgrid,
    slack,
    softlayer,
    square_oauth,
    stripe,
    telegram_token,
    twilio,
)
from detect_secrets.plugins.base import RegexBasedDetector
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.subject import Subject
from mcp_server.model import Evidence, Verdict
from mcp_server.report.bundle import write_bundle
from mcp_server.report.page import Source
from mcp_server.report.redact import Redactor

RULES: tuple[RegexBasedDetector, ...] = (
    artifactory.ArtifactoryDetector(),
    aws.AWSKeyDetector(),
    azure_storage_key.AzureStorageKeyDetector(),
    basic_auth.BasicAuthDetector(),
    cloudant.CloudantDetector(),
    discord.DiscordBotTokenDetector(),
    github_token.GitHubTokenDetector(),
    gitlab_token.GitLabTokenDetector(),
    ibm_cloud_iam.IbmCloudIamDetector(),
    ibm_cos_hmac.IbmCosHmacDetector(),
    jwt.JwtTokenDetector(),
    mailchimp.MailchimpDetector(),
    openai.OpenAIDetector(),
    private_key.PrivateKeyDetector(),
    pypi_token.PypiTokenDetector(),
    sendgrid.SendGridDetector(),
    slack.SlackDetector(),
    softlayer.SoftlayerDetector(),
    square_oauth.SquareOAuthDetector(),
    stripe.StripeDetector(),
    telegram_token.TelegramBotTokenDetector(),
    twilio.TwilioKeyDetector(),
)
REDACT = Redactor({}, ())
# A word that a person would write, in a line that a program would print.
PLAIN = st.text(alphabet="abcdefghijklmnopqrstuvwxyz ", max_size=12)


def secrets() -> Iterator[object]:
    for rule in RULES:
        for number, pattern in enumerate(rule.denylist):
            yield pytest.param(rule, pattern, id=f"{rule.secret_type} {number}")


@pytest.mark.parametrize(("rule", "pattern"), list(secrets()))
def test_no_rule_of_detect_secrets_finds_anything_left(
    rule: RegexBasedDetector, pattern: re.Pattern[str]
) -> None:
    """Any text that a rule's pattern describes, in a line of a log, holds nothing for that rule any more."""

    flags = (pattern.flags & ~re.UNICODE) | re.ASCII

    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.from_regex(re.compile(pattern.pattern, flags), fullmatch=True), PLAIN)
    def holds(secret: str, before: str) -> None:
        text = f"{before} {secret.strip()}\nnext line"
        found = [value for value in rule.analyze_string(text) if len(value) > 5]
        left = list(rule.analyze_string(REDACT(text)))
        assert not [value for value in left if value in found], (text, REDACT(text))

    holds()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://intranet.corp.example/x", "https://<host>/x"),
        ("connect to db01.corp.example:5432", "connect to <host>:5432"),
        ("tcp://node17:29500 failed", "tcp://<host> failed"),
        ("https://docs.pytorch.org/x and https://github.com/pytorch/pytorch/issues/1", None),
        ("/home/bob", "…/<user>"),
        ("fe80::1 2001:db8::1%eth0 ::ffff:10.0.0.1", "<address> <address> <address>"),
        ("00:11:22:33:44:55", "<address>"),
        ("bob@node17:~$ python x.py", "<user>@<host>:~$ python x.py"),
        ("USER=bob LOGNAME='bob' hostname: gpu17", "USER=<user> LOGNAME='<user>' hostname: <host>"),
        ("glpat-abcdefghij0123456789", "<secret>"),
        ("xoxb-123456789012-abcdefghij", "<secret>"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = <secret>"),
        ("self.model.net.forward x[::2] c10::add a::b std::vector q@k model.py foo.so:bar", None),
        ("hf_hub_download(x) key=buf3 token: 12 num_tokens=7 pass: quantization", None),
        ("cpp_fused_cat_embedding_0 args[1] = 1024, ratio 3/4, 12:34:56, 0 <= tmp4 < ks1", None),
    ],
)
def test_hosts_users_and_code(text: str, wanted: str | None) -> None:
    """Where and by whom something was run goes; code, numbers and public addresses stay (None: as it is)."""
    assert REDACT(text) == (text if wanted is None else wanted)


TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


def test_what_a_cut_left_of_a_secret_goes_too(tmp_path: Path) -> None:
    """A verdict that quotes half a token, or half a host, of the log holds neither half after redaction."""
    host = "db01.corp.example"
    log = f"login {TOKEN} at https://{host}/ with session_token=plainlookingvalue\n"
    facts = [f"login {TOKEN[:14]}…", f"… {TOKEN[-12:]} at", "with plainlooking…", f"at {host[:8]}"]
    evidence = [Evidence(step="read_log", fact=fact, source="run.log:1") for fact in facts]
    verdict = Verdict(outcome="inconclusive", summary=f"it ended with {TOKEN[:9]}", evidence=evidence)
    write_bundle(Source(verdict, Subject(), log=log), tmp_path / "b.zip", redacted=True)
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    for name, text in texts.items():
        for private in (TOKEN[:9], TOKEN[-12:], "plainlooking", host[:8]):
            assert private not in text, name
