// What an all-reduce of the benchmark's vectors must give, and how far a result is from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/collectives/reduce_vectors.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

struct Errors {
  double largest = 0;            ///< infinite where an element is no number
  double noise = 0, signal = 0;  ///< sums of squares

  void add(const Errors& other);
  double sqnr_db() const;
};

/// The exact sum of vectors whose element i is uniform in [-1, 1) and repeats with test::reduce_period.
class Reference {
 public:
  Reference(Type type, int ranks);

  /// The first of `count` elements, behind a stretch's first, that lacks an exact all-reduce's bits; -1: none does.
  std::int64_t first_wrong(const std::byte* got, std::int64_t count) const {
    return test::first_difference(type_, got, count, bits_);
  }

  /// Against sums that were never rounded.
  Errors errors(const std::byte* got, std::int64_t count) const;

 private:
  Type type_;
  std::vector<std::byte> bits_;
  std::vector<double> sums_;
};

}  // namespace imbrex
