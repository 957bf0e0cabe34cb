"""What a release prints about faults, against the table of error families."""

from __future__ import annotations

from functools import partial

from mcp_server.logs.log import read_log_file
from tests.releases.trial import Outcome, Release, Trials

# Each kind of fault of `provoke`: the family of its root, and the first release that says it; an older one
# says nothing, or what comes of it. Two families are of two releases.
EXPECTED: dict[str, tuple[str, tuple[int, int]]] = {
    "input_dtype": ("input_dtype", (2, 8)),
    "input_static_size": ("input_static_dim", (2, 8)),
    "input_stride": ("input_stride", (2, 8)),
    "input_too_large": ("input_range", (2, 8)),
    "input_too_small": ("input_range", (2, 8)),
    "input_on_another_device": ("input_device", (2, 8)),
    "input_sizes_disagree": ("size_stride_assert", (2, 13)),
    "too_few_inputs": ("input_count", (2, 8)),
    "too_many_arguments": ("input_count", (2, 8)),
    "other_keywords": ("kwarg_names", (2, 8)),
    "bad_index": ("cpu_index_assert", (2, 8)),
    "bad_scatter_index": ("cpu_index_assert aten_index", (2, 8)),
    "nan_assertion": ("nan_check", (2, 13)),
    "size_assertion": ("runtime_assert", (2, 8)),
    "wrong_fake_size": ("size_stride_assert", (2, 13)),
    "wrong_fake_dtype": ("size_stride_assert", (2, 15)),
    "operator_raises": ("operator_raised", (2, 8)),
    "operator_unknown": ("op_not_registered", (2, 8)),
    "no_such_file": ("zip_open", (2, 8)),
    "no_archive": ("zip_archive", (2, 8)),
    "cut_archive": ("zip_archive", (2, 8)),
    "no_such_model": ("model_name", (2, 8)),
    "no_library": ("package_file_missing", (2, 8)),
    "no_metadata": ("package_file_missing", (2, 8)),
    "cut_library": ("segfault", (2, 8)),
    "unknown_constant": ("constant_unknown", (2, 8)),
    "constant_left_out": ("constant_unknown", (2, 8)),
    "dim_too_wide": ("export_constraints", (2, 8)),
    "data_dependent_guard": ("data_dependent", (2, 8)),
    "unknown_option": ("wrong_api_argument", (2, 8)),
    "bad_printer_level": ("wrong_api_argument", (2, 8)),
    "exported_guard": ("guard_failed guard_range", (2, 8)),
    "no_compiler": ("no_compiler", (2, 8)),
}


class Texts:
    """The errors of one release, printed once."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.directory = release.directory / "texts"

    def read_as(self, kind: str) -> Outcome:
        """The root is of the family that the same fault has in every release."""
        log = self.directory / f"{kind}.log"
        if not log.exists():
            self.release.build()
            argv = ("-m", "tests.releases.provoke", str(self.release.zoo), str(self.directory))
            done = self.release.child(*argv)
            assert log.exists(), done.stderr[-400:]
        wanted, _ = EXPECTED[kind]
        root = read_log_file(log).root
        found = root.family.id if root else None
        return "" if found in wanted.split() else f"{found} instead of {wanted}"

    def trials(self) -> Trials:
        said = [kind for kind, (_, since) in EXPECTED.items() if self.release.release >= since]
        return {kind.replace("_", " "): partial(self.read_as, kind) for kind in said}
