// How kernels write down what is wrong with indices and offsets.
#pragma once

#include "embedding/cuda/look_up_args.hpp"

namespace imbrex::embedding {

__device__ __forceinline__ std::int64_t number_at(const void* values, bool wide, std::uint32_t place) {
  return wide ? __ldg(static_cast<const long long*>(values) + place) : __ldg(static_cast<const int*>(values) + place);
}

/// Runs `write` where `place` comes before what `word` says, while no other thread of the GPU does so. Few of many
/// places that do not fit come to that: the others read a word.
template <typename Write>
__device__ __forceinline__ void write_if_first(Findings& findings, std::uint32_t& word, std::uint32_t place,
                                               Write&& write) {
  while (*static_cast<volatile std::uint32_t*>(&word) < ~place) {
    if (atomicCAS(&findings.lock, 0u, 1u) != 0) continue;
    __threadfence();
    if (atomicMax(&word, ~place) < ~place) write();
    __threadfence();
    atomicExch(&findings.lock, 0u);
  }
}

/// `Args` are a lookup's or an update's; `bag` gives the bag among those of all tables.
template <typename Args, typename Bag>
__device__ __forceinline__ void find_index(const Args& a, std::uint32_t position, std::int64_t value,
                                           std::uint32_t rows, Bag&& bag) {
  write_if_first(*a.findings, a.findings->index, position, [&] {
    a.findings->index_bag = bag(), a.findings->index_batch = a.batch, a.findings->index_rows = rows;
    a.findings->index_value = value;
  });
}

template <typename Args>
__device__ __forceinline__ void find_offset(const Args& a, std::uint32_t place) {
  write_if_first(*a.findings, a.findings->offset, place, [&] {
    a.findings->offset_batch = a.batch, a.findings->offset_count = a.count;
    a.findings->offset_value = number_at(a.offsets, a.wide, place);
    a.findings->offset_before = place > 0 ? number_at(a.offsets, a.wide, place - 1) : 0;
  });
}

}  // namespace imbrex::embedding
