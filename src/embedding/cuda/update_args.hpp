// What launches of an update are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "embedding/cuda/look_up_args.hpp"
#include "embedding/update.hpp"

namespace imbrex::embedding {

inline constexpr std::uint32_t no_key = 0xffffffffu;  ///< of an index that is no row: after all rows

/// A table, and where it begins among all rows.
struct UpdateTable {
  std::byte* rows;
  float* states;  ///< or null
  std::uint64_t pitch;
  std::uint32_t count, base;
  std::uint32_t dim, column;
};

/// By value into the kernels. Arrays are [count] except those that say otherwise.
struct UpdateArgs {
  const UpdateTable* tables;
  const void *indices, *offsets;
  const float* weights;
  Findings* findings;
  std::uint32_t *keys, *positions;  ///< unsorted: row among all tables' rows, and position
  const std::uint32_t *sorted_keys, *sorted_positions;
  std::uint32_t* bags;  ///< of each position
  float* shares;        ///< [tables * batch] of means
  float* partial;       ///< [tiles, 2, width]: sums of rows that begin in an earlier tile; that go on in the next one
  std::uint32_t count, batch, bag_count, part_rows, tiles;
  std::uint32_t width;  ///< columns of the widest table
  float rate, epsilon;
  TableRows rows;
  Type gradient;
  bool wide, mean, adagrad;
  std::uint64_t gradient_pitch;  ///< bytes
  const std::byte* parts[most_ranks];
};

/// Writes keys, positions, bags and shares; `keys` hold no_key before.
cudaError_t launch_keys(const UpdateArgs& args, cudaStream_t stream);
/// Sums the sorted positions' gradients, and changes the rows.
cudaError_t launch_sums(const UpdateArgs& args, cudaStream_t stream);
/// Bytes that sorting `count` keys of so many bits takes; and sorts.
cudaError_t sort_bytes(std::uint32_t count, int bits, std::size_t& bytes);
cudaError_t launch_sort(const UpdateArgs& args, int bits, void* memory, std::size_t bytes, std::uint32_t* sorted_keys,
                        std::uint32_t* sorted_positions, cudaStream_t stream);

}  // namespace imbrex::embedding
