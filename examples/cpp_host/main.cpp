// A small server: worker threads that share one AOTInductor package, as a host in C++ uses it.
//
//   host PACKAGE THREADS CALLS [--break HOW]
//
// The package is that of examples/ranker.py: ids of users [batch] and of items [batch, 20]. `--break` makes
// the last thread fail in the middle: index, worker, dtype, freed, short, uncaught, segv, abort, kill, fork, or hang. With
// outlive or exit, it still serves when main destroys the loader, or calls exit.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <sys/wait.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t BATCH = 8, ITEMS_PER_USER = 20, USERS = 100, ITEMS = 1000;

std::vector<at::Tensor> request(int64_t thread, int64_t call, const std::string& fault) {
  auto users = (at::arange(BATCH, at::kLong) + thread + call).remainder(USERS);
  auto items = (at::arange(BATCH * ITEMS_PER_USER, at::kLong) * 7 + call).remainder(ITEMS).view({BATCH, ITEMS_PER_USER});
  if (fault == "index") items[3][5] = ITEMS + 24;
  if (fault == "worker") items[6][5] = ITEMS + 24; // in the half of the batch that an OpenMP worker computes
  std::vector<int64_t> own(users.data_ptr<int64_t>(), users.data_ptr<int64_t>() + BATCH);
  if (fault == "freed") users = at::from_blob(own.data(), {BATCH}, at::kLong); // `own` ends here
  static std::vector<int64_t> half(users.data_ptr<int64_t>(), users.data_ptr<int64_t>() + BATCH / 2);
  if (fault == "short") users = at::from_blob(half.data(), {BATCH}, at::kLong);
  if (fault == "dtype" || fault == "uncaught") items = items.to(at::kInt);
  return {users, items};
}

void fail(const std::string& fault) {
  if (fault == "segv") *static_cast<volatile int*>(nullptr) = 1;
  if (fault == "abort") std::abort();
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "fork" && fork() > 0) wait(nullptr); // the child serves on, without the threads of OpenMP
  while (fault == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
}

bool serves_on(const std::string& fault) { return fault == "outlive" || fault == "exit"; }

void serve(torch::inductor::AOTIModelPackageLoader& model, int64_t thread, int64_t calls, const std::string& fault) {
  c10::InferenceMode guard;
  for (int64_t call = 0; call < calls || serves_on(fault); ++call) {
    const bool now = !fault.empty() && call == calls / 2;
    auto inputs = request(thread, call, now ? fault : "");
    if (now) fail(fault);
    try {
      model.run(inputs);
    } catch (const std::exception& error) {
      if (fault == "uncaught") throw;
      std::cerr << "thread " << thread << ", call " << call << ": " << std::string(error.what()).substr(0, 200) << '\n';
      std::exit(3);
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: host PACKAGE THREADS CALLS [--break HOW]\n";
    return 2;
  }
  const int64_t threads = std::atoll(argv[2]), calls = std::atoll(argv[3]);
  const std::string fault = argc > 5 && std::string(argv[4]) == "--break" ? argv[5] : "";
  torch::inductor::AOTIModelPackageLoader model(argv[1], "model", false, threads, -1);
  std::vector<std::thread> workers;
  for (int64_t thread = 0; thread < threads; ++thread)
    workers.emplace_back(serve, std::ref(model), thread, calls, thread + 1 == threads ? fault : "");
  if (serves_on(fault)) workers.back().detach(), workers.pop_back();
  for (auto& worker : workers) worker.join();
  if (fault == "exit") std::exit(0);
  std::cout << "served " << threads * calls << " calls\n";
  return 0;
}
