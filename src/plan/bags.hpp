// Work of the kind `bags`: looks up a slice of an embedding_all_to_all's global batch in some of a rank's shards. Its
// columns are those of the shards, one after another, and its rows the batch's. Each of its sums is one value: which
// rows a bag adds is data, and nothing that tasks write.
#pragma once

#include <cstdint>

#include "embedding/bags.hpp"
#include "plan/work.hpp"

namespace imbrex::plan {

/// args: the first row of the global batch and how many, the first of the rank's shards and how many.
struct BagsPart {
  std::int64_t first = 0, count = 0, first_shard = 0, shards = 0;

  std::array<std::int64_t, 4> args() const { return {first, count, first_shard, shards}; }
};

/// The kind's number.
inline constexpr WorkKind bags_kind{0};

WorkDescriptor bags_descriptor();

/// What Addresses::given points to, in the CPU's memory: the rank's shards in the order of the problem's, and the bags
/// of all rows of the batch. The caller has checked shapes, offsets and indices.
struct RankBags {
  embedding::Tables tables;
  embedding::Bags bags;
};

}  // namespace imbrex::plan
