"""Kernels that were cut, mixed up or nested without end are read as far as they go, and never raise."""

from __future__ import annotations

import time
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import key, parts, say
from mcp_server.package.wrapper import read_wrapper
from tests.package.terms.made import unread
from tests.recorded import RECORDINGS


def kernels() -> list[Kernel]:
    """Recorded kernels of both languages."""
    cpp = RECORDINGS / "kernels" / "computed_index.torch-2.13-cpu.cpp"
    wrappers = [
        ((RECORDINGS / "wrappers" / cpp.name).read_text(), cpp.read_text()),
        *(
            ((RECORDINGS / "wrappers" / f"{name}.torch-2.11-cuda.cpp").read_text(), "")
            for name in ("computed_index", "attention", "jagged", "user_lookup")
        ),
    ]
    return [kernel for pair in wrappers for kernel in read_wrapper(*pair).kernels.values() if kernel.source]


KERNELS = kernels()


@settings(max_examples=150)
@given(st.sampled_from(KERNELS), st.data())
def test_damaged_kernels(kernel: Kernel, data: st.DataObject) -> None:
    """Lines that are dropped, doubled, moved or cut leave a program, maybe not all understood."""
    lines = kernel.source.split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(("drop", "double", "cut", "move"))):
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "cut":
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
            case _:
                lines.append(lines[at])
    found = read_program(replace(kernel, source="\n".join(lines)))
    for value in (*(store.value for store in found.stores), *(check.value for check in found.checks)):
        assert isinstance(unread(value), str)


def test_values_that_are_shared_many_times() -> None:
    """Sixty doublings of one value are sixty terms: neither words nor comparisons write out 2^60."""
    kernel = next(k for k in KERNELS if k.kind == "cpp")
    body = "\n".join(f"auto tmp{n + 1} = tmp{n} * tmp{n};" for n in range(60))
    source = (
        'extern "C" void k(const float* in_ptr0, float* out_ptr0)\n{\n'
        f"auto tmp0 = in_ptr0[static_cast<int64_t>(0L)];\n{body}\n"
        "out_ptr0[static_cast<int64_t>(0L)] = tmp60;\n}\n"
    )
    names = {"in_ptr0": "const float*", "out_ptr0": "float*"}
    parameters = tuple(replace(kernel.parameters[0], name=n, type=t) for n, t in names.items())
    begun = time.monotonic()
    (store,) = read_program(replace(kernel, source=source, parameters=parameters)).stores
    assert len(list(parts(store.value))) == 61
    assert len(say(store.value, lambda _element: "x")) <= 600
    assert key(store.value)[0]
    assert time.monotonic() - begun < 5


def test_a_value_that_needs_itself() -> None:
    """A kernel that no compiler wrote: a variable that is defined by itself is not understood."""
    kernel = next(k for k in KERNELS if k.kind == "cpp")
    source = (
        'extern "C" void k(float* out_ptr0)\n{\nauto tmp1 = tmp1 + 1;\n'
        "out_ptr0[static_cast<int64_t>(0L)] = tmp1;\n}\n"
    )
    parameter = replace(kernel.parameters[0], name="out_ptr0", type="float*")
    (store,) = read_program(replace(kernel, source=source, parameters=(parameter,))).stores
    assert unread(store.value) == "tmp1"
