// The norm after an all-reduce: the order in which a row's squares are added, and what all devices check.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bits.hpp"
#include "collectives/backend.hpp"

namespace imbrex::collectives {

inline constexpr std::int64_t most_hidden = std::int64_t{1} << 18;

/// How a row is dealt out, and so the order of its squares: a function of its length and type only, whatever the rows,
/// ranks and kernels. Packets of 16 bytes go to `threads` threads in turn, packet q to thread q mod threads. A thread
/// adds the squares of its packets one by one, from the first on; the 32 threads of a warp add theirs pairwise,
/// with the lane at distance 16, 8, 4, 2, 1; the warps' sums are added by number.
struct RowShape {
  std::uint32_t elements;  ///< of a packet
  std::uint32_t packets;   ///< of a row, the last one may be partial
  std::uint32_t threads;   ///< a multiple of 32
  std::uint32_t batches;   ///< packets of a thread, at most
};

inline constexpr std::uint32_t most_row_threads = 512;

constexpr RowShape row_shape(std::int64_t hidden, Type type) {
  RowShape s{};
  s.elements = static_cast<std::uint32_t>(16 / size_of(type));
  s.packets = (static_cast<std::uint32_t>(hidden) + s.elements - 1) / s.elements;
  s.batches = (s.packets + most_row_threads - 1) / most_row_threads;
  s.threads = ((s.packets + s.batches - 1) / s.batches + 31) / 32 * 32;
  return s;
}

/// so_far + value^2.
IMBREX_CODEC float add_square(float so_far, float value) { return so_far + codec::product(value, value); }

/// What each element of a row is multiplied by.
IMBREX_CODEC float row_scale(float squares, float hidden, float eps) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, hidden) + eps));
#else
  return 1.0f / __builtin_sqrtf(squares / hidden + eps);
#endif
}

IMBREX_CODEC float normalised(float value, float scale, float weight) {
  return codec::product(codec::product(value, scale), weight);
}

/// Throws Error(invalid_input) for a weight that is neither fp32 nor of the rows' type.
void expect_weight_type(std::optional<Type> wanted, Type type);

/// On the host: the sum of a row's squares.
float squares_of(const float* row, std::int64_t hidden, Type type);

/// Collective, as runtime::agree: validates, and compares what the ranks are asked for.
void agree(World& world, std::int64_t max_rows, std::int64_t hidden, Type type, const AllReduceRmsNormOptions& options);

/// Throws Error(invalid_input) for addresses and counts that RmsNormOperands does not allow.
void expect_operands(const collectives::RmsNormOperands& operands, std::int64_t rows, std::int64_t max_rows,
                     std::int64_t hidden, Type type);

/// The algorithm of a call; `one_shot_bytes` as in Sizes.
AllReduceAlgorithm choose(const AllReduceRmsNormOptions& options, std::int64_t rows, std::int64_t hidden, Type type,
                          std::int64_t one_shot_bytes);

}  // namespace imbrex::collectives
