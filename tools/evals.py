"""Writes the tasks of `evals/evals.json` for `claude plugin eval`: `python tools/evals.py [DIRECTORY]`.

Each case has graders for the cause (a pattern and a judge) and for the use of the skill (schema 1.1).
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVALS = ROOT / "evals"
SERVER = "mcp__plugin_aoti-debug_aoti-debug__"
ALLOWED = ["Read", "Bash", "Skill", f"{SERVER}diagnose", f"{SERVER}wait_job"]
CLAIMS_A_FAULT = r"\bproven\b|root cause is"


def tasks() -> list[dict[str, Any]]:
    return list(json.loads((EVALS / "evals.json").read_text(encoding="utf-8"))["evals"])


def case(task: dict[str, Any]) -> dict[str, Any]:
    """The task as `claude plugin eval` takes it; JSON is YAML."""
    program, healthy = Path(task["files"][0]), task["healthy"]
    pattern = {"pattern": CLAIMS_A_FAULT, "match": "not_contains"} if healthy else {"pattern": task["cause"]}
    cause = "claims-no-proven-fault" if healthy else "names-the-cause"
    judge = "calls-it-healthy" if healthy else "explains-the-cause"
    judged = {"focus": "last_message", "weight": 2, "criteria": task["expectations"][0]}
    used = {"name": "used-the-skill", "tool": "Skill", "min": 1, "arm": "with-only"}
    return {
        "schema_version": "1.1",
        "name": program.stem.replace("_", "-"),
        "description": "a healthy program that looks faulty" if healthy else "a failing program",
        "tags": ["healthy" if healthy else "fault", "cpu"],
        "context": {"scaffold_script": "scaffold.sh"},
        "execution": {
            "prompt": task["prompt"].replace(f"{program.parent.as_posix()}/", ""),
            "max_turns": 40,
            "timeout_seconds": 900,
            "allowed_tools": ALLOWED,
        },
        "graders": [
            {"type": "regex", "name": cause, "target": "last_message", "flags": "i", **pattern},
            {"type": "llm", "name": judge, **judged},
            {"type": "tool_used", **used},
        ],
    }


def write(directory: Path) -> None:
    """Write a folder for each case; its scaffold copies the program into the run's empty workspace."""
    for task in tasks():
        made = case(task)
        folder = directory / made["name"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "case.yaml").write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n")
        scaffold = folder / "scaffold.sh"
        program = shlex.quote(str(ROOT / task["files"][0]))
        scaffold.write_text(f"#!/bin/sh\nset -eu\ncp {program} .\n")
        scaffold.chmod(0o755)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else EVALS)
