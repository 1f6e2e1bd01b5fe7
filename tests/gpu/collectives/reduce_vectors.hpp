// Vectors to all-reduce on GPUs, and the bits that must come out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "gpu/harness/stream.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::test {

struct ReduceCase {
  std::int64_t count = 1;
  Type type = Type::bf16;
  cuda::ExactKnobs knobs;
  std::size_t in_shift = 0, out_shift = 0;  ///< elements from a boundary of 16 bytes
  bool in_place = false;
  bool hostile = false;  ///< NaN, infinities, denormals, -0 and the largest finite value among the elements

  std::string text() const;
};

/// Element i of a vector is element i mod reduce_period of a random stretch, so references of large vectors cost
/// nothing.
inline constexpr std::int64_t reduce_period = 65537;

std::vector<std::byte> input_stretch(Type type, int rank, std::uint64_t seed, bool hostile);

/// Sums in fp32 by rank number.
std::vector<std::byte> expected_stretch(Type type, int ranks, std::uint64_t seed, bool hostile);

/// The first of `count` elements, after a stretch's first, that differs; -1 if none does. Any NaN equals any other.
std::int64_t first_difference(Type type, const std::byte* got, std::int64_t count,
                              const std::vector<std::byte>& stretch);

/// One rank's memory of a case: vectors between guard bytes.
class ReduceVectors {
 public:
  ReduceVectors(const ReduceCase& c, int rank, int ranks, std::uint64_t seed);

  const void* in() const;
  void* out() const;

  /// Input as it was, output spoilt.
  void fill();

  /// Host copies of the input and of the output.
  std::vector<std::byte> input() const;
  std::vector<std::byte> output() const;

  /// Empty if the output has the bits of sums in fp32 by rank number, any NaN for NaN, and nothing around it was
  /// written; else what is wrong.
  std::string fault() const;

 private:
  std::size_t total(std::size_t shift) const;

  ReduceCase c_;
  std::size_t element_, bytes_;
  std::vector<std::byte> stretch_, want_;
  cuda::RawMemory in_, out_;
};

}  // namespace imbrex::test
