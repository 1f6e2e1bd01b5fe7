// What was measured of all-reduces on a kind of GPU, and the sizes from which they take other ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/codec.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

/// Seconds of all-reduces of vectors of `bytes` on each rank, the slowest rank's; infinite where a way takes no vector
/// of that size.
struct AllReduceMeasurement {
  std::string gpu;  ///< its name, as the driver gives it
  int ranks = 0;
  Type type = Type::bf16;
  std::int64_t bytes = 0;
  double one_shot = 0, two_shot = 0;  ///< exact
  struct Coded {
    CodecPair codec;
    double seconds = 0;
  };
  std::vector<Coded> coded;  ///< in two steps
};

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

/// The record that measurements make: of one kind of GPU, number of ranks, type and list of codecs, by increasing size.
/// Two shots, or a codec beside the better of the exact ways, are taken from the least size on from which they are
/// faster at every size measured; between two measured sizes, from where straight lines between the times cross, up to
/// the next KiB. Throws Error(invalid_input) for measurements that are not alike, or too few.
AllReduceRecord record_of(const std::vector<AllReduceMeasurement>& measurements, const std::string& date);

}  // namespace imbrex
