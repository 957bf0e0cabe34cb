// A host that gives new weights to the buffer that its calls use. It aborts at a result of no weights.
//
//   updating PACKAGE
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
using Loader = torch::inductor::AOTIModelPackageLoader;
using Weights = std::unordered_map<std::string, at::Tensor>;

static void refresh(Loader& model, at::Tensor& users, at::Tensor& items) {
  Weights all{{"users.weight", users}, {"items.weight", items}};
  model.load_constants(all, false, false);
}

int main(int argc, char** argv) {
  Loader model(argv[1], "model", false, 4, -1);
  c10::InferenceMode guard;
  at::Tensor users[2], items[2], right[2];
  std::vector<at::Tensor> in{at::arange(8, at::kLong) * 60, at::arange(160, at::kLong).view({8, 20})};
  for (int i = 0; i < 2; ++i) {
    users[i] = at::randn({500, 32}), items[i] = at::randn({1000, 32});
    refresh(model, users[i], items[i]);
    right[i] = model.run(in)[0];
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < 3; ++t)
    workers.emplace_back([&] {
      c10::InferenceMode guard;
      while (!stop) {
        auto out = model.run(in)[0];
        if (!at::allclose(out, right[0]) && !at::allclose(out, right[1])) {
          std::cerr << "scores of no model\n";
          std::abort();
        }
      }
    });
  for (int i = 0; i < 20000; ++i) {
    refresh(model, users[i % 2], items[i % 2]);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  stop = true;
  for (auto& each : workers) each.join();
}
