"""Fruit grading line: export the grader, build the line-side host, replay two frames."""
import os
import shutil
import subprocess
import tempfile

import numpy as np
import torch
from torch import nn

HEIGHT, WIDTH = 48, 64

HOST = r"""
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

template <typename T>
std::vector<T> slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<T> data(in.tellg() / sizeof(T));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(data.data()), data.size() * sizeof(T));
  return data;
}

int check(const char* label, const at::Tensor& grades, const std::vector<float>& want) {
  const float* got = grades.data_ptr<float>();
  int bad = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::fabs(got[i] - want[i]) > 1e-3f) {
      std::fprintf(stderr, "%s: grade %zu is %.5f, reference %.5f\n", label, i, got[i], want[i]);
      ++bad;
    }
  }
  std::printf("%s: %zu grades, %d off\n", label, want.size(), bad);
  return bad;
}

int main(int argc, char** argv) {
  const std::string dir = argv[2];
  torch::inductor::AOTIModelPackageLoader grader(argv[1]);
  const int64_t h = HEIGHT, w = WIDTH;

  auto chart = slurp<float>(dir + "/chart.f32");
  at::Tensor plate = at::from_blob(chart.data(), {1, 3, h, w}, at::kFloat);
  if (check("chart", grader.run({plate})[0], slurp<float>(dir + "/chart.ref"))) return 2;

  auto pixels = slurp<uint8_t>(dir + "/frame.u8");
  at::Tensor frame = at::from_blob(pixels.data(), {1, h, w, 3}, at::kByte);
  at::Tensor planes = frame.to(at::kFloat).div_(255.0).permute({0, 3, 1, 2});
  if (check("frame", grader.run({planes})[0], slurp<float>(dir + "/frame.ref"))) return 3;
  return 0;
}
"""


class Grader(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("white", torch.tensor([0.52, 0.47, 0.41]).view(1, 3, 1, 1))
        self.head = nn.Linear(3 * 6 * 8, 5)

    def forward(self, rgb):
        balanced = rgb / self.white
        cells = balanced.unflatten(2, (6, 8)).unflatten(4, (8, 8)).mean(dim=(3, 5))
        ripe = cells * torch.sigmoid(cells[:, :1] - cells[:, 1:2])
        return self.head(ripe.flatten(1))


def build_host(folder):
    source = os.path.join(folder, "line_host.cpp")
    with open(source, "w") as out:
        out.write(HOST.replace("HEIGHT", str(HEIGHT)).replace("WIDTH", str(WIDTH)))
    torch_dir = os.path.dirname(torch.__file__)
    lib, binary = os.path.join(torch_dir, "lib"), os.path.join(folder, "line_host")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["g++", "-std=c++20", "-O0", abi, f"-I{torch_dir}/include", source, "-o", binary]
    command += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    subprocess.run(command, check=True)
    return binary


def main():
    torch.manual_seed(11)
    folder = tempfile.mkdtemp(prefix="orchard_")
    try:
        grader = Grader().eval()
        rng = np.random.default_rng(5)
        chart = torch.from_numpy(rng.random((1, 3, HEIGHT, WIDTH), dtype=np.float32))
        frame = rng.integers(0, 256, (1, HEIGHT, WIDTH, 3), dtype=np.uint8)
        frame[..., 0] //= 2
        with torch.no_grad():
            program = torch.export.export(grader, (chart,))
            package = torch._inductor.aoti_compile_and_package(
                program, package_path=os.path.join(folder, "grader.pt2")
            )
            scene = torch.from_numpy(frame).float().div(255).permute(0, 3, 1, 2)
            grader(chart).numpy().tofile(os.path.join(folder, "chart.ref"))
            grader(scene).numpy().tofile(os.path.join(folder, "frame.ref"))
        chart.numpy().tofile(os.path.join(folder, "chart.f32"))
        frame.tofile(os.path.join(folder, "frame.u8"))
        subprocess.run([build_host(folder), package, folder], check=True)
        print("line host agrees with the lab")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
