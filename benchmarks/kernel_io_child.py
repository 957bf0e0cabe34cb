"""Child of benchmarks.kernel_io: `kernel_io_child.py WORKER_DIRECTORY REQUEST REPORT` prints JSON.

Carries one request of the worker out, and tells what it cost: seconds of the import of torch and of the rest,
processor seconds of the rest (a busy machine does not lengthen them), peak bytes of host and device memory.
Runs where only torch is installed.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path


def main(directory: str, request_file: str, report_file: str) -> None:
    start = time.perf_counter()
    import torch

    imported = time.perf_counter()
    sys.path.insert(0, directory)
    entry = importlib.import_module("main")
    entry.hide()
    entry.adopt()
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    report = importlib.import_module(f"{entry.PACKAGE}.report").Report(report_file)
    used = time.process_time()
    status = entry.perform(request, report)
    facts = {
        "status": status,
        "import_s": imported - start,
        "work_s": time.perf_counter() - imported,
        "work_cpu_s": time.process_time() - used,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
    }
    print("\n" + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
