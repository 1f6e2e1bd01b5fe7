// Random lookups on a GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "embedding/random_bags.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::test {

/// GPUs there are; 0 without a driver.
inline int devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

/// Random cases of a test: IMBREX_TEST_GPU_CASES, or `usual`.
inline std::uint64_t gpu_cases(std::uint64_t usual) {
  const char* text = std::getenv("IMBREX_TEST_GPU_CASES");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

template <typename T>
cuda::RawMemory to_device(const std::vector<T>& values) {
  cuda::RawMemory memory = cuda::raw_memory(values.size() * sizeof(T) + 256);
  cuda::upload(memory.get(), values.data(), values.size() * sizeof(T));
  return memory;
}

template <typename T>
void from_device(std::vector<T>& values, const void* memory) {
  IMBREX_CUDA_TRY(cudaMemcpy(values.data(), memory, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
}

/// A lookup with all its memory on the GPU; `tables` is an array of the host.
struct OnDevice {
  explicit OnDevice(const RandomBags& c)
      : table(c.table),
        bags(c.bags),
        type(c.type),
        indices(to_device(c.indices)),
        offsets(to_device(c.offsets)),
        weights(to_device(c.weights)) {
    for (std::size_t t = 0; t < table.size(); ++t) {
      rows.push_back(to_device(c.rows[t]));
      table[t].rows = rows.back().get();
    }
    for (const auto& bytes : c.part) {
      part.push_back(to_device(bytes));
      parts.push_back(part.back().get());
    }
    bags.indices = indices.get(), bags.offsets = offsets.get();
    if (bags.weights != nullptr) bags.weights = static_cast<const float*>(weights.get());
  }
  embedding::Tables tables() const { return {table.data(), static_cast<std::int32_t>(table.size()), type}; }

  /// The output, part by part.
  std::vector<std::vector<std::byte>> output(const RandomBags& c) const {
    std::vector<std::vector<std::byte>> bytes = c.part;
    for (std::size_t d = 0; d < bytes.size(); ++d) from_device(bytes[d], parts[d]);
    return bytes;
  }
  void clear_output(const RandomBags& c) const {
    for (std::size_t d = 0; d < c.part.size(); ++d) cuda::upload(parts[d], c.part[d].data(), c.part[d].size());
  }

  std::vector<embedding::Table> table;
  embedding::Bags bags;
  TableRows type;
  cuda::RawMemory indices, offsets, weights;
  std::vector<cuda::RawMemory> rows, part;
  std::vector<void*> parts;
};

}  // namespace imbrex::test
