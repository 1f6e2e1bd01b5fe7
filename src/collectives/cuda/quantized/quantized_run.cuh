// Runs of 64 blocks: a warp's turn in the kernels that know their codecs. A thread has two blocks of one group, so that
// it finds the group's extremes with fewer shuffles, and computes one group for sixteen values; ordinary values, which
// are nearly all, have a short way. Codes and values are those of codec/block.hpp, bit by bit.
#pragma once

#include "collectives/cuda/quantized/halves.cuh"
#include "collectives/cuda/quantized/quantized_usual.cuh"

namespace imbrex::cuda {

/// The first of a thread's blocks in its warp's run; the other is two blocks on. So two neighbours have four blocks of
/// one group, and whole sectors at each access.
__device__ __forceinline__ std::uint32_t first_in_run(std::uint32_t lane) { return lane / 2 * 4 + lane % 2; }

/// A thread's two blocks as elements of two bytes.
struct RawPair {
  uint4 blocks[2];
};

__device__ __forceinline__ RawPair load_pair(const std::byte* vector, std::uint64_t first_block) {
  const auto* at = reinterpret_cast<const uint4*>(vector) + first_block;
  return {{__ldcs(at), __ldcs(at + 2)}};
}

/// `fold` with what the group's other threads have; `c.group` is the same for all, so no thread diverges.
template <typename T, typename Fold>
__device__ __forceinline__ T over_group(const Codec& c, T value, Fold&& fold) {
  value = fold(value, 1);
  if (c.group > 32) value = fold(value, 2);
  if (c.group > 64) value = fold(value, 4);
  return value;
}

/// The values of a thread's two blocks.
using PairValues = float[2][quantized_block_values];

template <Type type>
__device__ __forceinline__ void to_float(const RawPair& raw, PairValues& values) {
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b) BlockView<type>::to_float({{raw.blocks[b]}}, values[b]);
}

/// sum += values; `first`: sum = values, so that -0 stays -0.
__device__ __forceinline__ void add_values(PairValues& sum, const PairValues& values, bool first) {
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b)
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i)
      sum[b][i] = first ? values[b][i] : sum[b][i] + values[b][i];
}

/// Extremes of a thread's group. By a whole warp.
template <Type type>
__device__ __forceinline__ codec::Extremes extremes_of(const Codec& c, const RawPair& raw) {
  const std::uint32_t words[8] = {raw.blocks[0].x, raw.blocks[0].y, raw.blocks[0].z, raw.blocks[0].w,
                                  raw.blocks[1].x, raw.blocks[1].y, raw.blocks[1].z, raw.blocks[1].w};
  constexpr std::uint32_t signs = 0x80008000u;
  // Upper half: the largest value; lower half: symmetric: the same, asymmetric: the least one's negative.
  std::uint32_t ends = words[0];
  if (c.asymmetric) {
    std::uint32_t least = words[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      ends = larger_halves<type>(ends, words[i]);
      least = smaller_halves<type>(least, words[i]);
    }
    least ^= signs;
    ends = larger_halves<type>(__byte_perm(ends, least, 0x3276), __byte_perm(ends, least, 0x1054));
  } else {
#pragma unroll
    for (int i = 1; i < 8; ++i) ends = larger_magnitudes<type>(ends, words[i]);
    ends &= ~signs;
    ends = larger_halves<type>(ends, __byte_perm(ends, 0, 0x1032));
  }
  ends = over_group(c, ends, [](std::uint32_t mine, int distance) {
    return larger_halves<type>(mine, __shfl_xor_sync(whole_warp, mine, distance));
  });
  const float high = upper_half<type>(ends);
  if (!c.asymmetric) return {0, static_cast<std::int32_t>(__float_as_uint(high))};
  return {codec::ordered(upper_half<type>(ends << 16 ^ signs)), codec::ordered(high)};
}

/// The extremes of a thread's sums.
__device__ __forceinline__ codec::Extremes extremes_of(const Codec& c, const PairValues& values) {
  const codec::Extremes own = codec::fold(c, codec::fold(c, codec::no_extremes(c), values[0]), values[1]);
  return over_group(c, own, [&](codec::Extremes mine, int distance) {
    codec::Extremes other = mine;
    other.high = __shfl_xor_sync(whole_warp, mine.high, distance);
    if (c.asymmetric) other.low = __shfl_xor_sync(whole_warp, mine.low, distance);
    return codec::merge(c, mine, other);
  });
}

/// A thread's two blocks as codes, with their group's words.
struct QuantizedPair {
  codec::Planes planes[2];
  GroupWords words;
};

__device__ __forceinline__ QuantizedPair load_pair(const Codec& c, const QuantizedChunk& chunk, const std::byte* from,
                                                   std::uint32_t index) {
  return {{load_planes(c, chunk, from, index), load_planes(c, chunk, from, index + 2)},
          load_group_words(c, chunk, from, index)};
}

/// The group's words by its first thread.
__device__ __forceinline__ void store_pair(const Codec& c, const QuantizedChunk& chunk, std::byte* to,
                                           std::uint32_t index, std::uint32_t lane, const codec::Group& group,
                                           const QuantizedPair& pair) {
  store_planes(c, chunk, to, index, pair.planes[0]);
  store_planes(c, chunk, to, index + 2, pair.planes[1]);
  if ((lane & (static_cast<std::uint32_t>(c.group) / (2 * quantized_block_values) - 1)) == 0)
    store_group_words(c, chunk, to, index, group);
}

/// `own` if `mine`, else `came`, word by word.
__device__ __forceinline__ QuantizedPair chosen(bool mine, const QuantizedPair& own, const QuantizedPair& came) {
  QuantizedPair pair;
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b) {
#pragma unroll
    for (std::uint32_t w = 0; w < 2; ++w)
      pair.planes[b].first[w] = mine ? own.planes[b].first[w] : came.planes[b].first[w];
    pair.planes[b].second = mine ? own.planes[b].second : came.planes[b].second;
  }
  pair.words = {mine ? own.words.scale : came.words.scale, mine ? own.words.offset : came.words.offset};
  return pair;
}

/// Codes of a usual group's values, and what they stand for.
__device__ __forceinline__ QuantizedPair code_pair(const Codec& c, const codec::Range& range, const codec::Group& group,
                                                   const PairValues& values, PairValues& decoded) {
  QuantizedPair pair;
  pair.words = words_of(c, group);
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b) {
    codec::Codes codes;
    if (c.format == CodeFormat::fp8) {
      codes = codec::encode(c, range, group, values[b]);
      codec::decode_numbers(c, group, codes, decoded[b]);
    } else {
      const float raise = codec::raise_of(c.format, !c.asymmetric), half_offset = codec::product(0.5f, group.offset);
      std::uint32_t code[quantized_block_values];
#pragma unroll
      for (std::uint32_t i = 0; i < quantized_block_values; ++i) {
        code[i] = codec::integer_code(!c.asymmetric, group, values[b][i], raise, half_offset);
        decoded[b][i] = codec::integer_value(!c.asymmetric, group, __uint_as_float(code[i]) - raise);
      }
      codes = {codec::gather_bytes(code[0], code[1], code[2], code[3]),
               codec::gather_bytes(code[4], code[5], code[6], code[7])};
    }
    pair.planes[b] = codec::to_planes(c.format, codes);
  }
  return pair;
}

/// What the codes of a usual group stand for.
__device__ __forceinline__ void decode_pair(const Codec& c, const codec::Group& group, const QuantizedPair& pair,
                                            PairValues& values) {
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b) {
    const codec::Codes codes = codec::from_planes(c.format, pair.planes[b]);
    if (c.format == CodeFormat::fp8 || c.asymmetric)
      codec::decode_numbers(c, group, codes, values[b]);
    else
      codec::decode_short_steps(c.format, group, codes, values[b]);
  }
}

/// Decodes a usual part and adds it, in the order of the ranks. `usual`: whether it was, if still true.
template <Type type>
__device__ __forceinline__ void add_usual_part(const Codec& c, const QuantizedPair& part, bool first, PairValues& sum,
                                               codec::Bound& bound, bool& usual) {
  const codec::Group group = read_usual_group<type>(c, part.words, usual);
  PairValues values;
  decode_pair(c, group, part, values);
  codec::add_part(bound, c, codec::range_of(type), group);
  add_values(sum, values, first);
}

/// The group of any values with these extremes. By a whole warp, as group_of.
__device__ __forceinline__ codec::Group any_group(const Codec& c, const codec::Range& range,
                                                  const codec::Extremes& extremes, const PairValues& values) {
  const bool marked = codec::needs_mark(c, range, extremes);
  std::int32_t finite = codec::fold_finite(range, codec::fold_finite(range, 0, values[0]), values[1]);
  finite = over_group(c, finite, [](std::int32_t mine, int distance) {
    return max(mine, __shfl_xor_sync(whole_warp, mine, distance));
  });
  return marked ? codec::marked_group(c, finite) : codec::regular_group(c, extremes);
}

/// What decode_pair and code_pair do, of any group.
__device__ __forceinline__ void decode_any_pair(const Codec& c, const codec::Range& range, const codec::Group& group,
                                                const QuantizedPair& pair, PairValues& values) {
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b)
    codec::decode(c, range, group, codec::from_planes(c.format, pair.planes[b]), values[b]);
}
__device__ __forceinline__ QuantizedPair code_any_pair(const Codec& c, const codec::Range& range,
                                                       const codec::Group& group, const PairValues& values,
                                                       PairValues& decoded) {
  QuantizedPair pair;
  pair.words = words_of(c, group);
#pragma unroll
  for (std::uint32_t b = 0; b < 2; ++b)
    pair.planes[b] = codec::to_planes(c.format, codec::encode(c, range, group, values[b]));
  decode_any_pair(c, range, group, pair, decoded);
  return pair;
}

}  // namespace imbrex::cuda
