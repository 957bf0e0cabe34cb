"""The three forms in which `diagnose` gets a case, and the files that are kept to make them.

A plain run gives the log. A run under the capture hook gives the package and the inputs of the failing call.
Both are done once per version of the script, below `corpus` in the folder of `tools/made.py`.
"""

import hashlib
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchmarks.corpus.answers import PROGRAMS, Answer
from benchmarks.corpus.validate import run_case
from mcp_server.diagnosis.observe.program import suspect_call
from mcp_server.model import ScriptWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import Capture, capture
from tools.made import MADE

FORMS = ("script", "package", "log")
REGISTERS = re.compile(r"library\.custom_op\(|library\.Library\(")
CACHE = MADE / "corpus"


@dataclass(frozen=True)
class Question:
    """What `diagnose` is asked: command-line arguments, and the script where there is one."""

    arguments: tuple[str, ...]
    cwd: Path
    script: Path | None = None


@dataclass(frozen=True)
class Program:
    """A case's script, copied to a directory without an answer."""

    answer: Answer
    path: Path
    home: Path

    def question(self, form: str) -> Question | None:
        """The case in that form. None if it has no such form."""
        if form == "script":
            return Question(("--script", str(self.path)), self.path.parent, self.path)
        return self._package() if form == "package" else self._log()

    def plain_log(self) -> Path:
        """The output of a plain run."""
        log = self.home / "plain" / f"{self.answer.name}.log"
        ending = log.with_suffix(".json")
        if not ending.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            result = run_case(self.answer, self.path.parent, log.parent, CACHE / "inductor")
            ending.write_text(json.dumps(result))
        return log

    def _log(self) -> Question | None:
        if "log" not in self.answer.forms:
            return None
        log = self.plain_log()
        return Question(("--log", str(log)), log.parent)

    def _package(self) -> Question | None:
        """The package and the failing call's inputs, moved to a place without the source."""
        if "package" not in self.answer.forms:
            return None
        kept = self.home / "package"
        if not (kept / "given.json").exists():
            self._capture(kept)
        given = json.loads((kept / "given.json").read_text())
        return Question(tuple(given), kept) if given else None

    def _capture(self, kept: Path) -> None:
        shutil.rmtree(self.home / "capture", ignore_errors=True)
        kept.mkdir(parents=True, exist_ok=True)
        workload = ScriptWorkload(
            script=self.path, cwd=self.path.parent, timeout_s=max(self.answer.timeout_s, 60)
        )
        context = Context(self.home / "capture", Path(sys.executable))
        seen: Capture = anyio.run(capture, context, workload)
        (kept / "given.json").write_text(json.dumps(given_arguments(seen, kept)))
        shutil.rmtree(self.home / "capture", ignore_errors=True)


def given_arguments(seen: Capture, kept: Path) -> list[str]:
    """Arguments for the suspect call of `seen`, with its files copied to `kept`. Empty without a package.

    A script that registers operators is copied under another name: whoever serves such a package has them.
    """
    call = suspect_call(seen)
    if call is None or call.package is None or not call.package.is_file():
        return []
    given = ["--package", _kept(call.package, kept / "model.pt2")]
    if call.inputs is not None:
        given += ["--inputs", _kept(call.inputs, kept / "inputs.pt")]
    given += ["--model-name", str(call.request.get("model_name", "model"))]
    for number, module in enumerate(call.request.get("extra_imports") or ()):
        if Path(module).is_file() and REGISTERS.search(Path(module).read_text()):
            given += ["--extra-imports", _kept(Path(module), kept / f"ops{number}.py")]
    return given


def _kept(source: Path, target: Path) -> str:
    shutil.copyfile(source, target)
    return str(target)


def program(answer: Answer, directory: Path = PROGRAMS) -> Program:
    """The case of `answer`, with its script in `directory`."""
    source = directory / f"{answer.name}.py"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    home = CACHE / "programs" / f"{answer.name}-{digest}"
    path = home / "script" / source.name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    return Program(answer, path, home)
