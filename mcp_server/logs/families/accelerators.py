"""Errors of GPUs and drivers beyond CUDA's runtime: ROCm, XPU, the kernel's log, statuses that no other row knows.

Texts: c10/hip and c10/xpu of torch 2.8-2.15, ROCm's runtime, SYCL's Unified Runtime, and the NVIDIA driver's Xid
lines (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from .kinds import BUILD_GUIDE, HANG_GUIDE, MEMORY_GUIDE, Defaults, Family, Rank

_table = Defaults(stage="call", guide=BUILD_GUIDE, advice="check_machine")
_add = _table.add

_XID = r"NVRM: Xid \([^)]*\): "

_add(
    "device_function",
    (
        r"(?:CUDA|HIP) (?:driver )?error: (?P<status>invalid device function|invalid kernel file|shared object initialization failed)",
        r"(?P<status>hipErrorNoBinaryForGpu|hipErrorInvalidDeviceFunction|cudaErrorInvalidDeviceFunction)",
    ),
    (
        "invalid device function",
        "invalid kernel file",
        "shared object init",
        "BinaryForGpu",
        "DeviceFunction",
    ),
    ("arch_mismatch", "environment"),
    "A kernel was built for no architecture that this GPU can run: of torch itself, or of what it loaded.",
    "RuntimeError: HIP error: invalid device function",
    not_proven="Whether torch, an extension or a package lacks the code: some cards are in no build.",
)
_add(
    "gpu_page_fault",
    (
        r"(?P<status>Memory access fault by GPU node-\d+).* on address (?P<address>0x[0-9a-f]+)",
        _XID + r"(?P<xid>13|31|43|45), (?P<detail>.*)",
    ),
    ("Memory access fault by GPU", "NVRM: Xid"),
    (
        "illegal_memory_access",
        "device_mismatch",
        "input_mismatch",
        "shape_out_of_range",
        "index_out_of_bounds",
    ),
    "A kernel touched memory that is not mapped on the device.",
    "Memory access fault by GPU node-1 (Agent handle: 0x55d0) on address 0x7f1c00000000. Reason: Page not present or supervisor privilege.",
    rank=Rank.SYMPTOM,
    guide=MEMORY_GUIDE,
    advice="locate",
    not_proven="Which kernel, and whether it is at fault: a bad index or a host pointer may have been given to it.",
    late=True,
)
_add(
    "device_lost",
    (
        r"(?P<status>uncorrectable ECC error encountered|GPU is lost|has fallen off the bus|devices? (?:is|are) busy or unavailable|cudaErrorECCUncorrectable|cudaErrorDevicesUnavailable)",
        _XID + r"(?P<xid>48|62|63|64|74|79|9[2-5]|119|120), (?P<detail>.*)",
    ),
    (
        "ECC error",
        "GPU is lost",
        "fallen off",
        "busy or unavailable",
        "ECCUncorrectable",
        "DevicesUnavailable",
        "NVRM: Xid",
    ),
    "environment",
    "The GPU itself failed, or another process holds it: no program can use it as it is.",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    stage="any",
    rank=Rank.CAUSE,
)
_add(
    "device_reset",
    r"(?P<status>UR_RESULT_ERROR_DEVICE_LOST|PI_ERROR_DEVICE_NOT_AVAILABLE|hipErrorLaunchTimeOut|cudaErrorLaunchTimeout|the launch timed out and was terminated|HW Exception by GPU node-\d+)",
    ("DEVICE_LOST", "DEVICE_NOT_AVAILABLE", "LaunchTime", "launch timed out", "HW Exception by GPU"),
    ("hang", "illegal_memory_access", "environment"),
    "The driver reset the device: a kernel ran longer than it allows, or did what the hardware does not bear.",
    "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
    rank=Rank.SYMPTOM,
    not_proven="Which kernel, and whether it or the driver is at fault.",
    late=True,
    guide=HANG_GUIDE,
)
_add(
    "device_status",
    (
        r"\b(?P<backend>CUDA|HIP|XPU|MPS|NPU)(?: driver| runtime)? error: (?P<status>[A-Za-z].*)",
        r"\b(?P<backend>level_zero|opencl) backend failed with error: (?P<status>.+)",
        r"\b(?P<call>(?:cuda|hip)[A-Z]\w{2,40})\b.{0,60}? failed(?: with error)?: (?P<status>.+)",
        r"Native API failed\. Native API returns: (?P<status>.+)",
        r"Error: (?P<status>UR error)\s*$",
    ),
    (
        "CUDA error: ",
        "HIP error: ",
        "XPU error: ",
        "MPS error: ",
        "NPU error: ",
        "driver error: ",
        "runtime error: ",
        "backend failed with",
        "Native API failed",
        "UR error",
        " failed: ",
        " failed with error: ",
    ),
    ("environment", "illegal_memory_access", "device_mismatch", "input_mismatch"),
    "The device or its driver refused some work or broke it off; the call that raises is seldom the one that did it.",
    "RuntimeError: CUDA error: operation not supported",
    rank=Rank.CONSEQUENCE,
    guide=MEMORY_GUIDE,
    advice="run_again",
    not_proven="What the device refused: run again with blocking launches.",
    late=True,
    tags="bare_status",
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)
