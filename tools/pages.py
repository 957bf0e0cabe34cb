"""Writes the pages that repeat tables of the code: docs/errors.md, docs/tools.md and docs/llms.txt.

With `--check` it only compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from manifests import site
from pydantic.fields import FieldInfo

from mcp_server.cli.parameters import NOT_ON_THE_COMMAND_LINE, targets_of
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.model import CATEGORIES
from mcp_server.operations.arguments import OPTION_NAMES, RUNS_USER_CODE, Declaration, fields_of
from mcp_server.operations.table import OPERATIONS, command_name
from mcp_server.server.resources import GUIDES, REFERENCE
from mcp_server.server.running import STOP_JOB, WAIT_JOB

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by tools/pages.py. -->"


def errors_page() -> str:
    """Every family of error texts, one heading each, below the guide that covers it."""
    titles = {guide.file: guide.title for guide in GUIDES}
    lines = [
        "# Error texts",
        "",
        NOTE,
        "",
        f"The {len(FAMILIES)} families of error texts that `explain_error` and `diagnose` know. Each has an "
        "anchor of its own: `errors.md#FAMILY`. A text may mean several things; the likeliest category is "
        "first. What a text does **not** prove is as important as what it says.",
        "",
    ]
    for guide in sorted(
        {family.guide for family in FAMILIES}, key=lambda file: (file == "SKILL.md", titles[file])
    ):
        lines += [f"## {titles[guide]}", "", f"Guide: [{guide}](../{guide}).", ""]
        for family in FAMILIES:
            if family.guide == guide:
                lines += family_lines(family)
    lines += ["## Categories", "", "| category | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in CATEGORIES.items()]
    return "\n".join(lines) + "\n"


def family_lines(family: Family) -> Iterator[str]:
    """One family: an example of its text, what it means and what it does not prove."""
    yield from (f"### {family.id}", "", "```text", family.example, "```", "", family.meaning, "")
    if family.not_proven:
        yield from (f"**Does not prove:** {family.not_proven}", "")
    categories = ", ".join(f"`{name}`" for name in family.candidates)
    releases = f" · torch {family.torch}" if family.torch else ""
    yield from (f"Category: {categories} · stage: {family.stage}{releases}", "")


def tools_page() -> str:
    """Every tool with its description, its arguments and examples of the command of the same name."""
    lines = [
        "# Tools",
        "",
        NOTE,
        "",
        "Each tool is also a command with hyphens: `check_devices` is `aoti-debug check-devices`. The second "
        "column says how a shell spells an argument: a word in capitals stands without a name, and TARGET is "
        "what the command works on.",
        "",
        "| tool | does | runs your code |",
        "| --- | --- | --- |",
    ]
    every: list[Declaration] = [*OPERATIONS, WAIT_JOB, STOP_JOB]
    lines += [f"| [`{one.name}`](#{one.name}) | {one.title} | {runs(one)} |" for one in every]
    for one in every:
        lines += ["", f"## {one.name}", "", one.description, ""]
        lines += ["| argument | in a shell | meaning |", "| --- | --- | --- |"]
        for name, field in fields_of(one.arguments):
            text = " ".join(filter(None, (field.description, choices(field.annotation, field.description))))
            text = text.replace("|", "\\|")
            lines.append(f"| `{name}` | {in_a_shell(name, field, one)} | {text} |")
        examples = getattr(one, "examples", ())
        if examples:
            lines += ["", "```console", *(f"$ {example}" for example in examples), "```"]
    return "\n".join(lines) + "\n"


def in_a_shell(name: str, field: FieldInfo, tool: Declaration) -> str:
    """How the command of a tool spells an argument; empty for what a shell does not need."""
    if name in NOT_ON_THE_COMMAND_LINE or tool not in OPERATIONS:
        return ""
    targets = targets_of(tool.arguments)
    if field.is_required():
        return f"`{name.upper()}`"
    if name == "script_args" and "script" in targets:
        return "`ARGS`"
    spellings = OPTION_NAMES.get(name, (f"--{command_name(name)}",))
    return ", ".join(f"`{each}`" for each in (*(["TARGET"] if name in targets else []), *spellings))


def choices(annotation: object, said: str | None) -> str:
    """The values that an argument takes, where it takes a few and its text does not name them."""
    values = [value for value in get_args(annotation) if value] if get_origin(annotation) is Literal else []
    missing = [value for value in values if str(value) not in (said or "")]
    return f"One of {', '.join(f'`{value}`' for value in values)}." if missing else ""


def runs(declaration: Declaration) -> str:
    """Whether the tool starts a program of the user's."""
    return "yes" if declaration.hints is RUNS_USER_CODE else "no"


def llms_page() -> str:
    """The site for a language model (llmstxt.org): one line, then every page with its address."""
    lines = [
        "# aoti-debug",
        "",
        "> Finds out why a PyTorch AOTInductor model (.pt2) fails: a skill with guides, an MCP server and a",
        "> command line. It runs the failing call and names kernel, model line, cause and fix.",
        "",
        "## Guides",
        "",
    ]
    pages = [(guide.title, f"guides/{guide.file}") for guide in (*GUIDES, *REFERENCE)]
    lines += [f"- [{title}]({address(page)})" for title, page in pages]
    lines += ["", "## Documentation", ""]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({address(path.relative_to(ROOT / 'docs').as_posix())})")
    return "\n".join(lines) + "\n"


def address(page: str) -> str:
    """Where the site serves a page: a directory for each."""
    return site() + (page.removesuffix(".md") + "/").removesuffix("index/")


PAGES = {"docs/errors.md": errors_page, "docs/tools.md": tools_page, "docs/llms.txt": llms_page}


def main() -> int:
    written = {path: make() for path, make in PAGES.items()}
    if "--check" in sys.argv[1:]:
        changed = [path for path, text in written.items() if (ROOT / path).read_text() != text]
        print("\n".join(f"stale: {path}" for path in changed) or "all pages agree with the code")
        return int(bool(changed))
    for path, text in written.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
