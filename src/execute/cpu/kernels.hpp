// What tasks compute: products through a BLAS, sums, conversions. Single-threaded; results depend on nothing but the
// operands, the regions' shapes and the cut along K.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/cpu/rank_memory.hpp"

namespace imbrex {

/// Scratch and accumulators of one worker.
class Kernels {
 public:
  explicit Kernels(const RankMemory& memory) : memory_(memory) {}

  /// product += A[:, k] B[k, :] for columns k_begin.. of the tile's A; the first slice starts the product.
  void multiply(const Tile& tile, std::int64_t k_begin, std::int64_t k_end);
  /// Scales the product, adds the slots and stores the result.
  void finish(const Tile& tile);

  void transfer(const Transfer& transfer) const;
  void reduce(const Reduction& reduction);
  /// One of the collective's `parts`, which are ordered by rank.
  void collective(const Collective& own, const std::vector<const Collective*>& parts);

 private:
  void scale(const Tile& tile);
  void sum(const std::vector<Region>& from, const std::vector<Region>& to);
  void copy(const Region& from, const Region& to) const;

  const RankMemory& memory_;
  std::vector<float> product_, a_, b_, total_, row_;
};

}  // namespace imbrex
