"""Triton kernels that a wrapper configures by macros.

torch 2.14 and later with `triton.autotune_at_compile_time=False` first runs a JIT wrapper, then writes what
autotuning chose as macros before the wrapper (torch/_inductor/codegen/cpp_wrapper_gpu.py 2.15,
generate_aoti_kernel_config_header and generate_lazy). The Triton source is not embedded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_DEFINE = re.compile(
    r"^#define (?P<kernel>\w+?)_(?P<field>CUBIN_PATH|MANGLED_NAME|NUM_WARPS|SHARED_MEM|[XYZ]BLOCKS|R0BLOCKS"
    r"|RSPLIT|RSPLIT_SIZE|CONFIG_INDEX|GLOBAL_SCRATCH|PROFILE_SCRATCH) (?P<value>.*)$",
    re.M,
)
_FIELD = re.compile(r"\b(?P<kernel>\w+)_result\.(?P<field>\w+)(?:\[(?P<index>\d+)\])?")
_CASE = re.compile(r"case (-?\d+): grid_0 = ([^;]*); grid_1 = ([^;]*); grid_2 = ([^;]*); break;")
_MARK = "LazyKernelCompileResult "


@dataclass(frozen=True)
class LazyConfigs:
    """The macros by kernel in capitals and field; empty for a wrapper of another form."""

    values: Mapping[tuple[str, str], str]

    def resolved(self, text: str) -> str:
        """An expression with fields such as `add_0_result.xblocks[0]` replaced by their values."""
        return _FIELD.sub(self._value, text) if self.values else text

    def chosen_grid(self, kernel: str, text: str) -> tuple[str, ...]:
        """The grid that autotuning chose, out of a `switch`; empty where there is none."""
        index = self.values.get((kernel.upper(), "CONFIG_INDEX"))
        return next((match.groups()[1:] for match in _CASE.finditer(text) if match[1] == index), ())

    def _value(self, match: re.Match[str]) -> str:
        value = self.values.get((match["kernel"].upper(), match["field"].upper()))
        if value is None:
            return match[0]
        if match["index"] is None:
            return value
        parts = [part.strip() for part in value.strip("{}").split(",")]
        return parts[int(match["index"])] if int(match["index"]) < len(parts) else match[0]


def read_lazy_configs(text: str) -> LazyConfigs:
    """The configurations of a wrapper's kernels."""
    if _MARK not in text:
        return LazyConfigs({})
    return LazyConfigs({(m["kernel"], m["field"]): m["value"].strip() for m in _DEFINE.finditer(text)})
