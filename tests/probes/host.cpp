// A host without Python: loads a package of the ranker and calls it once, `host PACKAGE good|outside|unmapped`.
// With `floats` a package of 8 x 16 floats is called instead, and its output printed.
// With `outside` an index is too large; with `unmapped` the input is memory that may not be read, so that the
// first launch is a segmentation fault.
#include <ATen/ops/from_blob.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  constexpr std::int64_t rows = 8, columns = 6;
  std::vector<std::int64_t> ids(rows * columns, 3);
  void* data = ids.data();
  if (std::strcmp(argv[2], "outside") == 0) ids[7] = 32;
  if (std::strcmp(argv[2], "unmapped") == 0) {
    data = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::printf("unmapped %p\n", data);
    std::fflush(stdout);
  }
  std::vector<at::Tensor> inputs{at::from_blob(data, {rows, columns}, at::TensorOptions().dtype(at::kLong))};
  std::vector<float> values(128);
  for (int i = 0; i < 128; ++i) values[i] = i / 64.0f - 1;
  const bool floats = std::strcmp(argv[2], "floats") == 0;
  if (floats) inputs = {at::from_blob(values.data(), {8, 16}, at::TensorOptions().dtype(at::kFloat))};
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const std::vector<at::Tensor> outputs = loader.run(inputs);
  for (int i = 0; floats && i < outputs[0].numel(); ++i) std::printf("%.9g\n", outputs[0].const_data_ptr<float>()[i]);
  std::printf("%zu outputs\n", outputs.size());
  return 0;
}
