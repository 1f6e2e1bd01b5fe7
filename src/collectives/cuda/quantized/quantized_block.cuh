// Blocks of eight values on the device: from the caller's vector and to it, quantized by the threads of a warp
// together.
#pragma once

#include "base/elements.cuh"
#include "codec/block.hpp"
#include "codec/bound.hpp"
#include "collectives/cuda/quantized/quantized.hpp"

namespace imbrex::cuda {

inline constexpr std::uint32_t whole_warp = 0xffffffffu;

/// A codec whose form is known to the compiler. The size of groups is not.
template <CodeFormat format, bool asymmetric, ScaleType scale>
struct Form {
  static __host__ __device__ __forceinline__ constexpr Codec of(const Codec& c) {
    return {format, asymmetric, c.group, scale};
  }
};

/// A caller's vector in blocks; the last one is filled up with copies of the last value.
template <Type type>
struct BlockView {
  static constexpr std::uint32_t element = type == Type::fp32 ? 4 : 2, words = quantized_block_values * element / 16;

  struct Raw {
    uint4 words[BlockView::words];
  };

  std::byte* first;
  std::uint64_t count;
  bool aligned;  ///< to 16 bytes

  __device__ __forceinline__ bool whole(std::uint64_t block) const {
    return aligned && (block + 1) * quantized_block_values <= count;
  }

  __device__ __forceinline__ Raw load(std::uint64_t block) const {
    Raw raw;
    if (whole(block)) {
      const auto* at = reinterpret_cast<const uint4*>(first + block * quantized_block_values * element);
#pragma unroll
      for (std::uint32_t w = 0; w < words; ++w) raw.words[w] = __ldcs(at + w);
      return raw;
    }
    // The last element first, each pushes the others up: short code beside the hot path.
    const std::uint64_t begin = min(block * quantized_block_values, count - 1);
    const auto last = static_cast<std::int32_t>(min(count - 1 - begin, std::uint64_t{quantized_block_values - 1}));
    std::uint32_t bits[4 * words] = {};
#pragma unroll 1
    for (std::int32_t i = quantized_block_values - 1; i >= 0; --i) {
      const std::byte* at = first + (begin + static_cast<std::uint64_t>(min(i, last))) * element;
#pragma unroll
      for (std::uint32_t w = 4 * words - 1; w > 0; --w)
        bits[w] = element == 4 ? bits[w - 1] : __funnelshift_l(bits[w - 1], bits[w], 16);
      if constexpr (element == 4)
        bits[0] = *reinterpret_cast<const std::uint32_t*>(at);
      else
        bits[0] = bits[0] << 16 | *reinterpret_cast<const std::uint16_t*>(at);
    }
#pragma unroll
    for (std::uint32_t w = 0; w < words; ++w)
      raw.words[w] = {bits[4 * w], bits[4 * w + 1], bits[4 * w + 2], bits[4 * w + 3]};
    return raw;
  }

  /// Prefetches what load will read into L2.
  __device__ __forceinline__ void prefetch(std::uint64_t block) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(first + min(block * quantized_block_values, count - 1) * element));
  }

  /// Rounds to nearest even.
  __device__ __forceinline__ void store(std::uint64_t block, const float (&values)[quantized_block_values]) const {
    Raw raw;
#pragma unroll
    for (std::uint32_t w = 0; w < words; ++w) raw.words[w] = Elements<type>::packed(values + w * Elements<type>::count);
    std::byte* to = first + block * quantized_block_values * element;
    if (whole(block)) {
#pragma unroll
      for (std::uint32_t w = 0; w < words; ++w) reinterpret_cast<uint4*>(to)[w] = raw.words[w];
      return;
    }
    std::uint32_t bits[4 * words];
#pragma unroll
    for (std::uint32_t w = 0; w < words; ++w) {
      bits[4 * w] = raw.words[w].x;
      bits[4 * w + 1] = raw.words[w].y;
      bits[4 * w + 2] = raw.words[w].z;
      bits[4 * w + 3] = raw.words[w].w;
    }
#pragma unroll 1
    for (std::uint32_t i = 0; i < quantized_block_values && block * quantized_block_values + i < count; ++i) {
      if constexpr (element == 4)
        reinterpret_cast<std::uint32_t*>(to)[i] = bits[0];
      else
        reinterpret_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(bits[0]);
#pragma unroll
      for (std::uint32_t w = 0; w < 4 * words; ++w) {
        const std::uint32_t next = w + 1 < 4 * words ? bits[w + 1] : 0;
        bits[w] = element == 4 ? next : __funnelshift_r(bits[w], next, 16);
      }
    }
  }

  static __device__ __forceinline__ void to_float(const Raw& raw, float (&values)[quantized_block_values]) {
    int i = 0;
#pragma unroll
    for (std::uint32_t w = 0; w < words; ++w)
      Elements<type>::each(raw.words[w], [&](float value) { values[i++] = value; });
  }
};

/// A value as the type holds it.
template <Type type>
__device__ __forceinline__ float round_to(float value) {
  if constexpr (type == Type::bf16) return __bfloat162float(__float2bfloat16_rn(value));
  if constexpr (type == Type::fp16) return __half2float(__float2half_rn(value));
  return value;
}

/// The extremes of the group of which this thread's block is a part. By a whole warp; a group's blocks lie in
/// neighbouring lanes.
__device__ __forceinline__ codec::Extremes extremes_of(const Codec& c, const float (&values)[quantized_block_values]) {
  codec::Extremes extremes = codec::fold(c, codec::no_extremes(c), values);
  const int lanes = c.group / static_cast<int>(quantized_block_values);
  for (int distance = 1; distance < lanes; distance *= 2) {
    codec::Extremes other = extremes;
    other.high = __shfl_xor_sync(whole_warp, extremes.high, distance);
    if (c.asymmetric) other.low = __shfl_xor_sync(whole_warp, extremes.low, distance);
    extremes = codec::merge(c, extremes, other);
  }
  return extremes;
}

/// The group itself. By a whole warp.
__device__ __forceinline__ codec::Group group_of(const Codec& c, const codec::Range& range,
                                                 const float (&values)[quantized_block_values]) {
  const codec::Extremes extremes = extremes_of(c, values);
  const int lanes = c.group / static_cast<int>(quantized_block_values);
  const bool marked = codec::needs_mark(c, range, extremes);
  if (!__any_sync(whole_warp, marked)) return codec::regular_group(c, extremes);
  std::int32_t finite = codec::fold_finite(range, 0, values);
  for (int distance = 1; distance < lanes; distance *= 2)
    finite = max(finite, __shfl_xor_sync(whole_warp, finite, distance));
  return marked ? codec::marked_group(c, finite) : codec::regular_group(c, extremes);
}

__device__ __forceinline__ void store_word(std::byte* at, int bytes, std::uint32_t word) {
  if (bytes == 4)
    *reinterpret_cast<std::uint32_t*>(at) = word;
  else if (bytes == 2)
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(word);
  else
    *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(word);
}

/// What peers stored is read past the L1.
__device__ __forceinline__ std::uint32_t load_word(const std::byte* at, int bytes) {
  if (bytes == 4) return __ldcg(reinterpret_cast<const std::uint32_t*>(at));
  if (bytes == 2) return __ldcg(reinterpret_cast<const std::uint16_t*>(at));
  return __ldcg(reinterpret_cast<const std::uint8_t*>(at));
}

/// A block's words in its chunk's planes; `index`: of the block in the chunk.
__device__ __forceinline__ void store_planes(const Codec& c, const QuantizedChunk& chunk, std::byte* base,
                                             std::uint32_t index, const codec::Planes& planes) {
  const int first = codec::first_plane_bits(c.format), second = codec::second_plane_bits(c.format);
  if (first == 8)
    *reinterpret_cast<uint2*>(base + index * 8) = {planes.first[0], planes.first[1]};
  else
    store_word(base + index * first, first, planes.first[0]);
  if (second != 0) store_word(base + chunk.second + index * second, second, planes.second);
}

__device__ __forceinline__ codec::Planes load_planes(const Codec& c, const QuantizedChunk& chunk, const std::byte* base,
                                                     std::uint32_t index) {
  const int first = codec::first_plane_bits(c.format), second = codec::second_plane_bits(c.format);
  codec::Planes planes{};
  if (first == 8) {
    const uint2 both = __ldcg(reinterpret_cast<const uint2*>(base + index * 8));
    planes.first[0] = both.x;
    planes.first[1] = both.y;
  } else {
    planes.first[0] = load_word(base + index * first, first);
  }
  if (second != 0) planes.second = load_word(base + chunk.second + index * second, second);
  return planes;
}

/// A group's step and offset as on the wire; except fp32, both in the first word, the offset in its upper half.
struct GroupWords {
  std::uint32_t scale, offset;
};

__device__ __forceinline__ GroupWords load_group_words(const Codec& c, const QuantizedChunk& chunk,
                                                       const std::byte* base, std::uint32_t index) {
  const std::uint32_t group = index >> chunk.group_shift;
  const int scale = codec::scale_bytes(c), offset = codec::offset_bytes(c);
  GroupWords words{load_word(base + chunk.scale + group * scale, scale), 0};
  if (offset == 4) words.offset = load_word(base + chunk.offset + group * 4, 4);
  if (offset == 2) words.scale |= load_word(base + chunk.offset + group * 2, 2) << 16;
  return words;
}

__device__ __forceinline__ void store_group_words(const Codec& c, const QuantizedChunk& chunk, std::byte* base,
                                                  std::uint32_t index, const codec::Group& group) {
  const std::uint32_t number = index >> chunk.group_shift;
  const int scale = codec::scale_bytes(c), offset = codec::offset_bytes(c);
  store_word(base + chunk.scale + number * scale, scale, group.scale_word);
  if (offset != 0) store_word(base + chunk.offset + number * offset, offset, group.offset_word);
}

__device__ __forceinline__ GroupWords words_of(const Codec& c, const codec::Group& group) {
  if (c.scale == ScaleType::fp32) return {group.scale_word, group.offset_word};
  return {group.scale_word | group.offset_word << 16, 0};
}

__device__ __forceinline__ codec::Group read_group(const Codec& c, const GroupWords& words) {
  if (c.scale == ScaleType::fp32) return codec::read_group(c, words.scale, words.offset);
  return codec::read_group(c, words.scale & 0xffffu, words.scale >> 16);
}

}  // namespace imbrex::cuda
