#include <algorithm>
#include <cstdint>
#include <cstring>

#include "embedding/cuda/put.hpp"

namespace imbrex::embedding {
namespace {

constexpr std::size_t most_words = 960;

struct PutArgs {
  std::uint32_t* to;
  std::uint32_t count;
  std::uint32_t words[most_words];
};
static_assert(sizeof(PutArgs) < 4096);

__global__ void __launch_bounds__(128) put_words(const __grid_constant__ PutArgs a) {
  for (std::uint32_t i = threadIdx.x; i < a.count; i += 128) a.to[i] = a.words[i];
}

}  // namespace

cudaError_t put(void* to, const void* data, std::size_t bytes, cudaStream_t stream) {
  const std::size_t words = bytes / 4;
  for (std::size_t at = 0; at < words; at += most_words) {
    PutArgs args{
        static_cast<std::uint32_t*>(to) + at, static_cast<std::uint32_t>(std::min(words - at, most_words)), {}};
    std::memcpy(args.words, static_cast<const std::uint32_t*>(data) + at, args.count * sizeof args.words[0]);
    void* parameters[] = {&args};
    const cudaError_t status =
        cudaLaunchKernel(reinterpret_cast<const void*>(put_words), dim3(1), dim3(128), parameters, 0, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t load_put() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, put_words);
}

}  // namespace imbrex::embedding
