// What the all-reduces of all devices share: agreement on options, choice of algorithm, the ranks' records.
#pragma once

#include <cstdint>
#include <string_view>

#include "collectives/backend.hpp"
#include "imbrex/world.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::collectives {

/// Elements to which shares are rounded, so that no group of any codec has two owners.
inline constexpr std::int64_t share_unit = 128;

inline constexpr int most_ctas = 1024;

/// Throws Error(invalid_input) naming a type that collectives do not add up.
void expect_type(std::string_view name, Type type);

/// What one rank keeps of a call. Trivially copyable.
struct CallRecord {
  float largest_error = 0;      ///< of the elements that it owns, or of all
  std::int32_t algorithm = 0;   ///< AllReduceAlgorithm
  std::int64_t non_finite = 0;  ///< elements, counted by one rank only
  std::int64_t groups = 0, raw_groups = 0;
  std::int64_t exact = 0;
};

void add(runtime::Terms& terms, const AllReduceOptions& options);

/// Collective, as runtime::agree: validates, and compares what the ranks are asked for.
void agree(World& world, std::int64_t max_count, Type type, const AllReduceOptions& options);

void agree(World& world, ExchangeKind kind, std::int64_t max_count, Type type, const ExchangeOptions& options);

/// What decides how a call goes, where the options leave it open; bytes of a tensor.
struct Sizes {
  std::int64_t one_shot_bytes;   ///< the largest for which automatic means one_shot
  std::int64_t exact_below = 0;  ///< with a codec: what exact_below_measured stands for
};

/// Whether `count` elements go through the codec.
bool quantized(const AllReduceOptions& options, std::int64_t count, Type type, const Sizes& sizes);

/// The algorithm of a call of `count` elements.
AllReduceAlgorithm choose(const AllReduceOptions& options, std::int64_t count, Type type, const Sizes& sizes);

/// Parts into which the tolerance is divided: those of the ranks, and the owner's.
int tolerance_shares(AllReduceAlgorithm algorithm, int ranks);

/// Collective: the ranks' records as one.
AllReduceReport merge(World& world, const CallRecord& own);

}  // namespace imbrex::collectives
