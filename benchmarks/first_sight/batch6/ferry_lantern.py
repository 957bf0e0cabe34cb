"""River stage forecast: routing operator in C++, checked from Python, then shipped in the gauge daemon."""
import os
import shutil
import subprocess
import tempfile

import torch
from torch import nn

ROUTING = r"""
#include <ATen/core/Tensor.h>
#include <torch/library.h>

at::Tensor muskingum(const at::Tensor& inflow, double c0, double c1) {
  at::Tensor stage = inflow.contiguous().clone();
  const int64_t reaches = stage.size(0), steps = stage.size(1);
  float* q = stage.data_ptr<float>();
  for (int64_t r = 0; r < reaches; ++r)
    for (int64_t t = 1; t < steps; ++t)
      q[r * steps + t] = c0 * q[r * steps + t] + c1 * q[r * steps + t - 1];
  return stage;
}

TORCH_LIBRARY(riverops, m) { m.def("muskingum(Tensor inflow, float c0, float c1) -> Tensor"); }
TORCH_LIBRARY_IMPL(riverops, CPU, m) { m.impl("muskingum", &muskingum); }
"""

DAEMON = r"""
#include <ATen/ops/arange.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <cstdio>

int main(int argc, char** argv) {
  std::printf("gauge daemon: loading %s\n", argv[1]);
  std::fflush(stdout);
  torch::inductor::AOTIModelPackageLoader forecast(argv[1]);
  at::Tensor inflow = at::arange(120, at::kFloat).view({5, 24}).div_(10).sin_().add_(2);
  at::Tensor peak = forecast.run({inflow})[0];
  std::printf("gauge daemon: highest peak %.4f over %lld reaches\n", peak.max().item<float>(),
              (long long)peak.numel());
  return 0;
}
"""


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rating = nn.Parameter(torch.rand(24) + 0.5)

    def forward(self, inflow):
        routed = torch.ops.riverops.muskingum(torch.relu(inflow), 0.35, 0.6)
        return (routed * self.rating).amax(dim=1)


class Toolchain:
    def __init__(self, folder):
        root = os.path.dirname(torch.__file__)
        self.folder = folder
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        self.compile = ["g++", "-std=c++20", "-O0", "-fPIC", abi, f"-I{root}/include"]
        self.libs = [f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-Wl,--no-as-needed",
                     "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as out:
            out.write(text)
        return self.path(name)

    def object(self, name, text):
        out = self.path(name + ".o")
        subprocess.run([*self.compile, "-c", self.write(name + ".cpp", text), "-o", out], check=True)
        return out

    def shared(self, name, objects):
        out = self.path(name)
        subprocess.run(["g++", "-shared", *objects, "-o", out, *self.libs], check=True)
        return out

    def archive(self, name, objects):
        out = self.path(name)
        subprocess.run(["ar", "rcs", out, *objects], check=True)
        return out

    def program(self, name, inputs):
        out = self.path(name)
        subprocess.run(["g++", *inputs, "-o", out, *self.libs], check=True)
        return out


def main():
    torch.manual_seed(8)
    folder = tempfile.mkdtemp(prefix="ferry_")
    try:
        tools = Toolchain(folder)
        routing = tools.object("routing", ROUTING)
        torch.ops.load_library(tools.shared("libriverops.so", [routing]))
        torch.library.register_fake("riverops::muskingum", lambda inflow, c0, c1: torch.empty_like(inflow))

        model = Forecast().eval()
        inflow = torch.rand(5, 24) + 1
        with torch.no_grad():
            package = torch._inductor.aoti_compile_and_package(
                torch.export.export(model, (inflow,)), package_path=tools.path("forecast.pt2")
            )
            runner = torch._inductor.aoti_load_package(package)
            torch.testing.assert_close(runner(inflow), model(inflow))
        print("package agrees with eager:", runner(inflow).tolist())

        main_object = tools.object("daemon", DAEMON)
        static_ops = tools.archive("libriverops.a", [routing])
        daemon = tools.program("gauge_daemon", [main_object, static_ops])
        subprocess.run([daemon, package], check=True, env={**os.environ, "TMPDIR": folder})
        print("daemon is ready to ship")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
