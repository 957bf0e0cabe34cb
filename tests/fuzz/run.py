"""Coverage-guided fuzzing of the readers: `python -m tests.fuzz.run TARGET [--seconds 600]`; needs atheris.

With `all`, each target runs in its own process, one after another. Inputs start from recordings, files made
for this, and `more`. An input that a reader does not tolerate ends the run and is added to `finds.jsonl` as
hexadecimal text, which a test reads: shorten it by hand. Another test uses numbers of thousands of digits,
which a fuzzer does not reach.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import atheris

READERS = ["logs", "package", "recorder.ring", "sweep", "jobs.output", "probes.commands"]
with atheris.instrument_imports(include=[f"mcp_server.{name}" for name in READERS]):
    from tests.fuzz.targets import FINDS, TARGETS, seeds

LONGEST = 200_000


def fuzz(name: str, seconds: int, more: list[Path]) -> NoReturn:
    """Fuzz until the time is over or an input is found. libFuzzer ends the process."""
    target = TARGETS[name]

    def one(data: bytes) -> None:
        try:
            target.tolerates(data)
        except Exception:
            keep(name, data)
            raise

    corpus = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    for number, seed in enumerate([*seeds(target), *(path.read_bytes()[:LONGEST] for path in more)]):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, "-print_final_stats=1", "-verbosity=0"], one)
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def keep(name: str, data: bytes) -> None:
    """Keep an input, named by its content, in hexadecimal, because a skill's folder has no binary files."""
    find = {"target": name, "name": hashlib.sha256(data).hexdigest()[:16], "hex": data.hex()}
    with FINDS.open("a") as kept:
        kept.write(json.dumps(find) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("more", nargs="*", type=Path)
    parser.add_argument("--seconds", type=int, default=600)
    given = parser.parse_args()
    if given.target != "all":
        fuzz(given.target, given.seconds, given.more)
    codes = {name: _child(name, given) for name in TARGETS}
    print("\n".join(f"{name}: {'a find' if code else 'none'}" for name, code in codes.items()))
    return max(codes.values())


def _child(name: str, given: argparse.Namespace) -> int:
    argv = [
        sys.executable,
        "-m",
        "tests.fuzz.run",
        name,
        *map(str, given.more),
        "--seconds",
        str(given.seconds),
    ]
    return int(subprocess.run(argv).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
