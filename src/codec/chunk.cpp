#include "codec/chunk.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/convert.hpp"
#include "codec/block.hpp"

// The loops are compiled a second time for processors with AVX2 and FMA; a fused multiply-add is a library call
// without.
#if defined(__x86_64__) && defined(__GNUC__)
#define IMBREX_CODEC_WIDE __attribute__((target("arch=x86-64-v3")))
#endif

namespace imbrex::codec {
namespace {

constexpr std::int64_t max_group = 128;

// A word of one to four bytes, little-endian as on every machine that CUDA runs on.
IMBREX_CODEC std::uint32_t load_word(const std::byte* from, int bytes) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, static_cast<std::size_t>(bytes));
  return word;
}
IMBREX_CODEC void store_word(std::byte* to, std::uint32_t word, int bytes) {
  std::memcpy(to, &word, static_cast<std::size_t>(bytes));
}

struct EncodeJob {
  const ChunkFormat& format;
  const float* values;
  std::int64_t count;
  std::span<const float> allowed;
  std::byte* wire;
  std::int64_t raw_groups;
};

struct DecodeJob {
  const ChunkFormat& format;
  const std::byte* wire;
  std::int64_t count;
  float* values;
  GroupRecord* records;
};

using Block = const float (&)[block_values];

template <Codec form>
IMBREX_CODEC void encode_groups(EncodeJob& job) {
  const int size = job.format.codec.group, blocks = size / block_values;
  const Range range = range_of(job.format.type);
  const ChunkLayout layout = job.format.layout(job.count);
  const std::size_t element = size_of(job.format.type);
  float filled[max_group];
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const float* values = job.values + g * size;
    const std::int64_t there = job.count - g * size;
    if (there < size) {
      for (int i = 0; i < size; ++i) filled[i] = values[smaller<std::int64_t>(i, there - 1)];
      values = filled;
    }
    const auto block = [&](int b) -> Block {
      return *reinterpret_cast<const float(*)[block_values]>(values + b * block_values);
    };
    Extremes extremes = no_extremes(form);
    for (int b = 0; b < blocks; ++b) extremes = fold(form, extremes, block(b));
    Group group;
    if (!needs_mark(form, range, extremes)) {
      group = regular_group(form, extremes);
    } else {
      std::int32_t finite = 0;
      for (int b = 0; b < blocks; ++b) finite = fold_finite(range, finite, block(b));
      group = marked_group(form, finite);
    }
    if (job.format.slots &&
        (group.kind == GroupKind::marked ||
         (!job.allowed.empty() && error_of(form, group) > job.allowed[static_cast<std::size_t>(g)])))
      group = raw_group(form);
    store_word(job.wire + layout.scale + g * scale_bytes(form), group.scale_word, scale_bytes(form));
    if (form.asymmetric)
      store_word(job.wire + layout.offset + g * offset_bytes(form), group.offset_word, offset_bytes(form));
    if (group.kind == GroupKind::raw) {
      from_float(job.format.type, values, job.wire + layout.slot + g * size * static_cast<std::int64_t>(element), size);
      ++job.raw_groups;
      continue;
    }
    for (int b = 0; b < blocks; ++b) {
      const std::int64_t at = g * blocks + b;
      const Planes planes = to_planes(form.format, encode(form, range, group, block(b)));
      std::memcpy(job.wire + layout.first + at * first_plane_bits(form.format), planes.first,
                  static_cast<std::size_t>(first_plane_bits(form.format)));
      if (second_plane_bits(form.format) != 0)
        store_word(job.wire + layout.second + at * second_plane_bits(form.format), planes.second,
                   second_plane_bits(form.format));
    }
  }
}

template <Codec form>
IMBREX_CODEC void decode_groups(DecodeJob& job) {
  const int size = job.format.codec.group, blocks = size / block_values;
  const Range range = range_of(job.format.type);
  const ChunkLayout layout = job.format.layout(job.count);
  const auto element = static_cast<std::int64_t>(size_of(job.format.type));
  float filled[max_group];
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const std::int64_t there = smaller<std::int64_t>(job.count - g * size, size);
    float* values = there < size ? filled : job.values + g * size;
    const Group group = read_group(
        form, load_word(job.wire + layout.scale + g * scale_bytes(form), scale_bytes(form)),
        form.asymmetric ? load_word(job.wire + layout.offset + g * offset_bytes(form), offset_bytes(form)) : 0);
    GroupRecord record{error_of(form, group), 0, group.kind == GroupKind::raw};
    if (record.raw) {
      to_float(job.format.type, job.wire + layout.slot + g * size * element, values, size);
      std::int32_t finite = 0;
      for (int b = 0; b < blocks; ++b)
        finite = fold_finite(range, finite, *reinterpret_cast<const float(*)[block_values]>(values + b * block_values));
      record.magnitude = float_of(static_cast<std::uint32_t>(finite));
    } else {
      record.magnitude = smaller(magnitude_of(form, group), range.largest);
      for (int b = 0; b < blocks; ++b) {
        const std::int64_t at = g * blocks + b;
        Planes planes{};
        std::memcpy(planes.first, job.wire + layout.first + at * first_plane_bits(form.format),
                    static_cast<std::size_t>(first_plane_bits(form.format)));
        if (second_plane_bits(form.format) != 0)
          planes.second =
              load_word(job.wire + layout.second + at * second_plane_bits(form.format), second_plane_bits(form.format));
        decode(form, range, group, from_planes(form.format, planes),
               *reinterpret_cast<float(*)[block_values]>(values + b * block_values));
      }
    }
    if (values == filled) std::copy_n(filled, there, job.values + g * size);
    if (job.records != nullptr) job.records[g] = record;
  }
}

#ifdef IMBREX_CODEC_WIDE
template <Codec form>
IMBREX_CODEC_WIDE void encode_wide(EncodeJob& job) {
  encode_groups<form>(job);
}
template <Codec form>
IMBREX_CODEC_WIDE void decode_wide(DecodeJob& job) {
  decode_groups<form>(job);
}
bool wide() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

template <Codec form>
void encode_as(EncodeJob& job) {
#ifdef IMBREX_CODEC_WIDE
  if (wide()) return encode_wide<form>(job);
#endif
  encode_groups<form>(job);
}
template <Codec form>
void decode_as(DecodeJob& job) {
#ifdef IMBREX_CODEC_WIDE
  if (wide()) return decode_wide<form>(job);
#endif
  decode_groups<form>(job);
}

// One loop for every format, symmetry and scale; the size of a group is looked up.
constexpr int forms = 6 * 2 * 3;
constexpr int form_index(const Codec& codec) {
  return (static_cast<int>(codec.format) * 2 + (codec.asymmetric ? 1 : 0)) * 3 + static_cast<int>(codec.scale);
}
constexpr Codec form_at(int index) {
  const auto format = static_cast<CodeFormat>(index / 6);
  return {format, index / 3 % 2 == 1 && format != CodeFormat::fp8, 0, static_cast<ScaleType>(index % 3)};
}

template <int... index>
constexpr std::array<void (*)(EncodeJob&), forms> encoders(std::integer_sequence<int, index...>) {
  return {encode_as<form_at(index)>...};
}
template <int... index>
constexpr std::array<void (*)(DecodeJob&), forms> decoders(std::integer_sequence<int, index...>) {
  return {decode_as<form_at(index)>...};
}

}  // namespace

std::int64_t encode_chunk(const ChunkFormat& format, const float* values, std::int64_t count,
                          std::span<const float> allowed, std::byte* wire) {
  static constexpr auto table = encoders(std::make_integer_sequence<int, forms>{});
  EncodeJob job{format, values, count, allowed, wire, 0};
  table[static_cast<std::size_t>(form_index(format.codec))](job);
  return job.raw_groups;
}

void decode_chunk(const ChunkFormat& format, const std::byte* wire, std::int64_t count, float* values,
                  GroupRecord* records) {
  static constexpr auto table = decoders(std::make_integer_sequence<int, forms>{});
  DecodeJob job{format, wire, count, values, records};
  table[static_cast<std::size_t>(form_index(format.codec))](job);
}

}  // namespace imbrex::codec
