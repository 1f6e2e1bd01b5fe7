// What tasks compute: products through a BLAS, sums, conversions. Single-threaded; results depend on nothing but the
// operands, the regions' shapes and the cut along K.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bound.hpp"
#include "collectives/cpu/wire.hpp"
#include "execute/cpu/rank_memory.hpp"
#include "plan/work.hpp"

namespace imbrex::execute {

/// Scratch of one worker.
class Kernels {
 public:
  explicit Kernels(const RankMemory& memory) : memory_(memory) {}

  /// A tile's sums in fp32, row by row, until it is finished; the memory serves the next one.
  using Product = std::vector<float>;

  /// product += A[:, k] B[k, :] for columns k_begin.. of the tile's A; the first slice starts the product.
  void multiply(const Tile& tile, std::int64_t k_begin, std::int64_t k_end, Product& product);
  /// Scales the product, adds the slots and stores the result.
  void finish(const Tile& tile, Product& product);

  void transfer(const Transfer& transfer) const;
  void reduce(const Reduction& reduction);
  /// Computes and stores the block's share.
  void block(const plan::BlockPlace& place, Product& result) const;
  /// One of the collective's `parts`, which are ordered by rank.
  void collective(const Collective& own, const std::vector<const Collective*>& parts);

  /// What codecs did to this rank's sums so far, as Execution::codec_report says.
  const CodecReport& quantized() const { return quantized_; }

 private:
  void scale(const Tile& tile, Product& product) const;
  void sum_codes(const std::vector<Region>& from, const Collective& own, bool first);
  void note_codes(std::int64_t count, int ranks, Type type, const collectives::Wire& sums, bool counts);
  void sum(const std::vector<Region>& from, const std::vector<Region>& to);
  void copy(const Region& from, const Region& to) const;

  const RankMemory& memory_;
  std::vector<float> a_, b_, total_, row_;
  std::vector<std::byte> codes_;
  std::vector<codec::GroupRecord> records_;
  std::vector<codec::Bound> bounds_;  // bounds of sums of codes, in turn
  CodecReport quantized_;
};

}  // namespace imbrex::execute
