"""Fermentation monitor: the tank controller refreshes its sensor calibration without a new package."""
import os
import shutil
import subprocess
import tempfile

import torch
from torch import nn

PROBES = 12

HOST = r"""
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <cstdio>
#include <fstream>
#include <string>
#include <unordered_map>
#include <vector>

using Table = std::unordered_map<std::string, at::Tensor>;

Table read_calibration(std::ifstream& in, std::vector<float>& block) {
  Table table;
  std::string name;
  while (std::getline(in, name)) {
    in.read(reinterpret_cast<char*>(block.data()), block.size() * sizeof(float));
    table.emplace(name, at::from_blob(block.data(), {(int64_t)block.size()}, at::kFloat));
  }
  return table;
}

int report(const char* label, const at::Tensor& index) {
  const int64_t bad = (~index.isfinite()).sum().item<int64_t>();
  std::printf("%s: mean vigour %.4f, %lld of %lld readings unusable\n", label,
              index.mean().item<float>(), (long long)bad, (long long)index.numel());
  if (bad) std::fprintf(stderr, "%s: non-finite vigour index\n", label);
  return bad != 0;
}

int main(int argc, char** argv) {
  const std::string dir = argv[2];
  torch::inductor::AOTIModelPackageLoader monitor(argv[1]);

  std::vector<float> log(6 * PROBES);
  std::ifstream(dir + "/tank.f32", std::ios::binary)
      .read(reinterpret_cast<char*>(log.data()), log.size() * sizeof(float));
  at::Tensor hourly = at::from_blob(log.data(), {6, PROBES}, at::kFloat);
  if (report("factory calibration", monitor.run({hourly})[0])) return 2;

  std::vector<float> block(PROBES);
  std::ifstream sheet(dir + "/site.cal", std::ios::binary);
  Table table = read_calibration(sheet, block);
  monitor.load_constants(table, /*use_inactive=*/false, /*check_full_update=*/false,
                         /*user_managed=*/true);
  if (report("site calibration", monitor.run({hourly})[0])) return 3;
  return 0;
}
"""


class Vigour(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slope", torch.linspace(0.9, 1.1, PROBES))
        self.register_buffer("spread", torch.linspace(0.5, 2.0, PROBES))
        self.register_buffer("offset", torch.linspace(-0.3, 0.3, PROBES))
        self.mix = nn.Linear(PROBES, 4)

    def forward(self, hourly):
        level = hourly * self.slope - self.offset
        return self.mix(level * torch.rsqrt(self.spread))


def write_sheet(path):
    site = {
        "slope": torch.linspace(0.95, 1.02, PROBES),
        "spread": torch.linspace(0.6, 1.7, PROBES),
        "offset": torch.linspace(-0.41, 0.22, PROBES),
    }
    with open(path, "wb") as out:
        for name, values in site.items():
            out.write(name.encode() + b"\n" + values.numpy().tobytes())


def build_host(folder):
    source, binary = os.path.join(folder, "tank.cpp"), os.path.join(folder, "tank")
    with open(source, "w") as out:
        out.write(HOST.replace("PROBES", str(PROBES)))
    root = os.path.dirname(torch.__file__)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    subprocess.run(
        ["g++", "-std=c++20", "-O0", abi, f"-I{root}/include", source, "-o", binary,
         f"-L{root}/lib", f"-Wl,-rpath,{root}/lib", "-Wl,--no-as-needed",
         "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"],
        check=True,
    )
    return binary


def main():
    torch.manual_seed(2)
    folder = tempfile.mkdtemp(prefix="cellar_")
    try:
        model = Vigour().eval()
        hourly = torch.rand(6, PROBES) * 2
        with torch.no_grad():
            package = torch._inductor.aoti_compile_and_package(
                torch.export.export(model, (hourly,)), package_path=os.path.join(folder, "vigour.pt2")
            )
        hourly.numpy().tofile(os.path.join(folder, "tank.f32"))
        write_sheet(os.path.join(folder, "site.cal"))
        subprocess.run([build_host(folder), package, folder], check=True)
        print("controller is on site calibration")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
