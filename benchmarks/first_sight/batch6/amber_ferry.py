"""Noise floor of every trace of a seismic survey: one level per trace."""

import os
import tempfile

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

SAMPLES = 4096
SURVEY_TRACES = 900_000


@triton.jit
def _trace_power(traces, power, SAMPLES: tl.constexpr):
    trace = tl.program_id(0)
    t = tl.arange(0, SAMPLES)
    wave = tl.load(traces + trace * SAMPLES + t).to(tl.float32)
    tl.store(power + trace, tl.sum(wave * wave, axis=0))


@triton_op("survey::trace_power", mutates_args={})
def trace_power(traces: torch.Tensor) -> torch.Tensor:
    count = traces.shape[0]
    power = torch.empty((count,), dtype=torch.float32, device=traces.device)
    wrap_triton(_trace_power)[(count,)](traces, power, SAMPLES=SAMPLES)
    return power


class NoiseFloor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calibration", torch.tensor(0.75))

    def forward(self, traces):
        rms = torch.sqrt(trace_power(traces) / SAMPLES)
        return rms * self.calibration


def build(folder):
    stage = torch.randn(256, SAMPLES, device="cuda").half()
    program = torch.export.export(
        NoiseFloor().cuda().eval(),
        (stage,),
        dynamic_shapes={"traces": {0: torch.export.Dim("count", min=2, max=1 << 20)}},
        strict=False,
    )
    path = os.path.join(folder, "noise_floor.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def reference(traces):
    parts = [chunk.float().square().mean(1).sqrt() for chunk in traces.split(8192)]
    return torch.cat(parts) * 0.75


def record(count):
    traces = torch.empty((count, SAMPLES), dtype=torch.float16, device="cuda")
    return traces.normal_(0.0, 2.0)


def survey(model, count):
    traces = record(count)
    levels = model(traces)
    torch.cuda.synchronize()
    torch.testing.assert_close(levels, reference(traces), rtol=2e-3, atol=2e-3)
    print(f"{count} traces: median level {levels.median().item():.3f}")


def main():
    torch.manual_seed(5)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model = build(folder)
        survey(model, 1_000)
        survey(model, 20_000)
        torch.cuda.empty_cache()
        survey(model, SURVEY_TRACES)
    print("survey done")


if __name__ == "__main__":
    main()
