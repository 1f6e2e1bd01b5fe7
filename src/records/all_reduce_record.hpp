// From which sizes on all-reduces on a kind of GPU take other ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/codec.hpp"
#include "imbrex/types.hpp"

namespace imbrex::records {

/// The sizes, in bytes of a rank's vector, from which all-reduces of so many ranks take other ways.
struct AllReduceRecord {
  int ranks = 0;
  Type type = Type::bf16;
  std::string date;  ///< of the measurement, YYYY-MM-DD
  /// Smaller vectors take one shot, others two; not set: one shot was faster at every size measured.
  std::optional<std::int64_t> one_shot_below = 0;
  struct Threshold {
    CodecPair codec;
    /// Smaller vectors are summed sooner exactly; not set: so was every vector measured.
    std::optional<std::int64_t> exact_below = {};

    friend bool operator==(const Threshold&, const Threshold&) = default;
  };
  std::vector<Threshold> codecs;

  friend bool operator==(const AllReduceRecord&, const AllReduceRecord&) = default;
};

}  // namespace imbrex::records
