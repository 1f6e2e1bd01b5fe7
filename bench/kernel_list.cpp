// The kernels of this build as the machine's first GPU has them, for tests/golden/kernels.txt.
//
//   kernel_list > kernels.txt
#include <cuda_runtime_api.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "support/build_kernels.hpp"

namespace {

using namespace imbrex;

void print() {
  IMBREX_CUDA_TRY(cudaSetDevice(0));
  const Gpu& gpu = runtime::gpu_of(0);
  const std::string about =
      fmt::format("measured on an {}: {} SMs, {:%Y-%m-%d}", gpu.name, gpu.sms, fmt::gmtime(std::time(nullptr)));
  fmt::print("{}", test::to_text({about, gpu.major, test::build_kernels(), nullptr}));
}

}  // namespace

int main() {
  try {
    print();
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "kernel_list: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
