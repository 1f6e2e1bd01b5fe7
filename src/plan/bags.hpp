// Work of the kind `bags`: looks up a slice of an embedding_all_to_all's global batch in some of a rank's shards. Its
// columns are those of the shards, one after another, and its rows the batch's. Each of its sums is one value: which
// rows a bag adds is data, and nothing that tasks write.
#pragma once

#include <cstdint>

#include "plan/work.hpp"

namespace imbrex::plan {

/// args: the first row of the global batch and how many, the first of the rank's shards and how many.
struct BagsPart {
  std::int64_t first = 0, count = 0, first_shard = 0, shards = 0;

  std::array<std::int64_t, 4> args() const { return {first, count, first_shard, shards}; }
};

/// The kind's number.
inline constexpr WorkKind bags_kind{0};

/// Computes the rows of a block that fall to share `share` of `shares`, in fp32, into `result`, by rows of `cols`
/// elements, and returns which ones, counted from the part's first. `given` is Addresses::given.
using LookUpBags = BlockRows (*)(const Problem& problem, int rank, const BagsPart& part, int share, int shares,
                                 const void* given, float* result, std::int64_t cols);

/// Who looks up on the CPU from now on, in place of look_up_plain.
void set_lookup(LookUpBags look_up);

/// One rank's tables and bags as look_up_plain takes them: sums of rows of fp32.
struct PlainBags {
  const float* const* shards;   ///< by the rank's shards: rows x dim, by rows
  const std::int64_t* indices;  ///< of all shards' bags
  const std::int64_t* offsets;  ///< [shards * batch + 1]: bag (t, b) begins at t * batch + b
};

/// The first lookup: a loop. `given` is a PlainBags.
BlockRows look_up_plain(const Problem& problem, int rank, const BagsPart& part, int share, int shares,
                        const void* given, float* result, std::int64_t cols);

}  // namespace imbrex::plan
