// Groups of ordinary values, in codes with bf16 steps: what nearly all groups are, without a branch for the others.
// A thread that finds an unusual group in its warp discards the result, and takes the path for all groups.
#pragma once

#include "collectives/cuda/quantized/quantized_block.cuh"

namespace imbrex::cuda {

template <CodeFormat format, bool asymmetric = false>
using Usual = Form<format, asymmetric, ScaleType::bf16>;

/// Bits of bf16 that no usual step and no usual offset's magnitude reaches: above are the tags of non-finite and
/// unquantized groups, what decodes to more than the element type holds, and steps whose product with 2^16 overflows.
template <Type type>
constexpr std::uint32_t least_unusual = type == Type::fp16 ? 0x4300u : 0x7600u;

template <Type type>
__device__ __forceinline__ bool is_usual(const Codec& c, const codec::Group& group) {
  return group.scale_word < least_unusual<type> &&
         (!c.asymmetric || (group.offset_word & 0x7fffu) < least_unusual<type>);
}

/// 1 / x, rounded to nearest, of normal numbers up to 2^125.
__device__ __forceinline__ float quick_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, -__fmaf_rn(x, y, -1.0f), y);
}

/// The group of these extremes, if `usual` is still true.
template <Type type>
__device__ __forceinline__ codec::Group usual_group(const Codec& c, const codec::Extremes& extremes, bool& usual) {
  codec::Group group = codec::measured_group(c, extremes);
  usual = usual && !codec::needs_mark(c, codec::range_of(type), extremes) && is_usual<type>(c, group);
  group.inverse = (c.asymmetric ? 2.0f : 1.0f) * quick_reciprocal(group.step);
  return group;
}

/// read_group, if `usual` is still true.
template <Type type>
__device__ __forceinline__ codec::Group read_usual_group(const Codec& c, const GroupWords& words, bool& usual) {
  codec::Group group{codec::GroupKind::regular, 0, 0, 0, words.scale & 0xffffu, words.scale >> 16};
  group.step = __uint_as_float(words.scale << 16);
  if (c.asymmetric) group.offset = __uint_as_float(words.scale & 0xffff0000u);
  usual = usual && is_usual<type>(c, group);
  return group;
}

}  // namespace imbrex::cuda
