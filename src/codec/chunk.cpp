#include "codec/chunk.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
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

// A word of one, two or four bytes, little-endian as on every machine that CUDA runs on. A copy of a length that the
// compiler does not know is a call.
IMBREX_CODEC std::uint32_t load_word(const std::byte* from, int bytes) {
  std::uint32_t word = 0;
  if (bytes == 4)
    std::memcpy(&word, from, 4);
  else if (bytes == 2)
    std::memcpy(&word, from, 2);
  else
    std::memcpy(&word, from, 1);
  return word;
}
IMBREX_CODEC void store_word(std::byte* to, std::uint32_t word, int bytes) {
  if (bytes == 4)
    std::memcpy(to, &word, 4);
  else if (bytes == 2)
    std::memcpy(to, &word, 2);
  else
    std::memcpy(to, &word, 1);
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

// Groups are whole pieces: loops over one are long enough for vector instructions, and of a known length.
constexpr int piece_values = 32, piece_blocks = piece_values / block_values;

// A group's i-th block or piece.
template <int count>
IMBREX_CODEC auto part_of(const float* values, int i) -> const float (&)[count] {
  return *reinterpret_cast<const float(*)[count]>(values + i * count);
}

// A group's codes, one a byte, and its values from them.
template <Codec form>
IMBREX_CODEC void encode_group(const Range& range, const Group& group, const float* values, int size,
                               std::uint8_t* codes) {
  if (group.kind == GroupKind::marked) {
    for (int b = 0; b < size / block_values; ++b) {
      const Codes eight = encode(form, range, group, part_of<block_values>(values, b));
      std::memcpy(codes + b * block_values, &eight, sizeof eight);
    }
    return;
  }
  constexpr bool symmetric = !form.asymmetric;
  const float raise = raise_of(form.format, symmetric), half_offset = product(0.5f, group.offset);
  for (int p = 0; p < size / piece_values; ++p) {
    const auto& piece = part_of<piece_values>(values, p);
    for (int i = 0; i < piece_values; ++i)
      codes[p * piece_values + i] = static_cast<std::uint8_t>(
          form.format == CodeFormat::fp8 ? to_e4m3_by_integers(product(piece[i], group.inverse))
                                         : integer_code(symmetric, group, piece[i], raise, half_offset));
  }
}
template <Codec form>
IMBREX_CODEC void decode_group(const Range& range, const Group& group, const std::uint8_t* codes, int size,
                               float* values) {
  if (group.kind == GroupKind::marked || !(magnitude_of(form, group) <= range.largest)) {
    for (int b = 0; b < size / block_values; ++b) {
      Codes eight;
      std::memcpy(&eight, codes + b * block_values, sizeof eight);
      decode(form, range, group, eight, *reinterpret_cast<float(*)[block_values]>(values + b * block_values));
    }
    return;
  }
  constexpr bool symmetric = !form.asymmetric;
  constexpr float bias = symmetric ? static_cast<float>(code_bias(form.format)) : 0.0f;
  for (int p = 0; p < size / piece_values; ++p)
    for (int i = 0; i < piece_values; ++i) {
      const std::uint32_t code = codes[p * piece_values + i];
      values[p * piece_values + i] = form.format == CodeFormat::fp8
                                         ? product(from_e4m3_by_integers(code), group.step)
                                         : integer_value(symmetric, group, code_to_float(code, bias));
    }
}

// What a block has of a plane of up to four bits a code.
template <int bits>
using PlaneWord =
    std::conditional_t<bits == 4, std::uint32_t, std::conditional_t<bits == 2, std::uint16_t, std::uint8_t>>;

// A piece's codes, of fewer than eight bits, to their places in the planes and back.
template <CodeFormat format>
IMBREX_CODEC void store_piece(const std::uint8_t* codes, std::byte* first, std::byte* second) {
  Codes eights[piece_blocks];
  std::memcpy(eights, codes, sizeof eights);
  PlaneWord<first_plane_bits(format)> firsts[piece_blocks];
  PlaneWord<second_plane_bits(format)> seconds[piece_blocks];
  for (int b = 0; b < piece_blocks; ++b) {
    const Planes planes = to_planes(format, eights[b]);
    firsts[b] = static_cast<PlaneWord<first_plane_bits(format)>>(planes.first[0]);
    seconds[b] = static_cast<PlaneWord<second_plane_bits(format)>>(planes.second);
  }
  std::memcpy(first, firsts, sizeof firsts);
  if constexpr (second_plane_bits(format) != 0) std::memcpy(second, seconds, sizeof seconds);
}
template <CodeFormat format>
IMBREX_CODEC void load_piece(const std::byte* first, const std::byte* second, std::uint8_t* codes) {
  PlaneWord<first_plane_bits(format)> firsts[piece_blocks];
  std::memcpy(firsts, first, sizeof firsts);
  PlaneWord<second_plane_bits(format)> seconds[piece_blocks] = {};
  if constexpr (second_plane_bits(format) != 0) std::memcpy(seconds, second, sizeof seconds);
  Codes eights[piece_blocks];
  for (int b = 0; b < piece_blocks; ++b) eights[b] = from_planes(format, {{firsts[b], 0}, seconds[b]});
  std::memcpy(codes, eights, sizeof eights);
}

// The whole of a group's codes. The wire has those of eight bits one a byte.
template <Codec form>
IMBREX_CODEC void write_codes(const Range& range, const Group& group, const float* values, int size, std::byte* first,
                              std::byte* second) {
  if constexpr (code_bits(form.format) == 8) {
    encode_group<form>(range, group, values, size, reinterpret_cast<std::uint8_t*>(first));
  } else {
    std::uint8_t codes[max_group];
    encode_group<form>(range, group, values, size, codes);
    for (int p = 0; p < size / piece_values; ++p)
      store_piece<form.format>(codes + p * piece_values, first + p * piece_blocks * first_plane_bits(form.format),
                               second + p * piece_blocks * second_plane_bits(form.format));
  }
}
template <Codec form>
IMBREX_CODEC void read_codes(const Range& range, const Group& group, const std::byte* first, const std::byte* second,
                             int size, float* values) {
  if constexpr (code_bits(form.format) == 8) {
    decode_group<form>(range, group, reinterpret_cast<const std::uint8_t*>(first), size, values);
  } else {
    std::uint8_t codes[max_group];
    for (int p = 0; p < size / piece_values; ++p)
      load_piece<form.format>(first + p * piece_blocks * first_plane_bits(form.format),
                              second + p * piece_blocks * second_plane_bits(form.format), codes + p * piece_values);
    decode_group<form>(range, group, codes, size, values);
  }
}

template <Codec form>
IMBREX_CODEC void encode_groups(EncodeJob& job) {
  Codec codec = form;
  codec.scale = job.format.codec.scale;
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
    Extremes extremes = no_extremes(codec);
    for (int p = 0; p < size / piece_values; ++p) extremes = fold(codec, extremes, part_of<piece_values>(values, p));
    Group group;
    if (!needs_mark(codec, range, extremes)) {
      group = regular_group(codec, extremes);
    } else {
      std::int32_t finite = 0;
      for (int b = 0; b < blocks; ++b) finite = fold_finite(range, finite, part_of<block_values>(values, b));
      group = marked_group(codec, finite);
    }
    if (job.format.slots &&
        (group.kind == GroupKind::marked ||
         (!job.allowed.empty() && error_of(codec, group) > job.allowed[static_cast<std::size_t>(g)])))
      group = raw_group(codec);
    store_word(job.wire + layout.scale + g * scale_bytes(codec), group.scale_word, scale_bytes(codec));
    if (form.asymmetric)
      store_word(job.wire + layout.offset + g * offset_bytes(codec), group.offset_word, offset_bytes(codec));
    if (group.kind == GroupKind::raw) {
      base::from_float(job.format.type, values, job.wire + layout.slot + g * size * static_cast<std::int64_t>(element),
                       size);
      ++job.raw_groups;
      continue;
    }
    write_codes<form>(range, group, values, size, job.wire + layout.first + g * blocks * first_plane_bits(form.format),
                      job.wire + layout.second + g * blocks * second_plane_bits(form.format));
  }
}

template <Codec form>
IMBREX_CODEC void decode_groups(DecodeJob& job) {
  Codec codec = form;
  codec.scale = job.format.codec.scale;
  const int size = job.format.codec.group, blocks = size / block_values;
  const Range range = range_of(job.format.type);
  const ChunkLayout layout = job.format.layout(job.count);
  const auto element = static_cast<std::int64_t>(size_of(job.format.type));
  float filled[max_group];
  for (std::int64_t g = 0; g < layout.groups; ++g) {
    const std::int64_t there = smaller<std::int64_t>(job.count - g * size, size);
    float* values = there < size ? filled : job.values + g * size;
    const Group group = read_group(
        codec, load_word(job.wire + layout.scale + g * scale_bytes(codec), scale_bytes(codec)),
        form.asymmetric ? load_word(job.wire + layout.offset + g * offset_bytes(codec), offset_bytes(codec)) : 0);
    GroupRecord record{error_of(codec, group), 0, group.kind == GroupKind::raw};
    if (record.raw) {
      base::to_float(job.format.type, job.wire + layout.slot + g * size * element, values, size);
      std::int32_t finite = 0;
      for (int b = 0; b < blocks; ++b) finite = fold_finite(range, finite, part_of<block_values>(values, b));
      record.magnitude = float_of(static_cast<std::uint32_t>(finite));
    } else {
      record.magnitude = smaller(magnitude_of(codec, group), range.largest);
      read_codes<form>(range, group, job.wire + layout.first + g * blocks * first_plane_bits(form.format),
                       job.wire + layout.second + g * blocks * second_plane_bits(form.format), size, values);
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

// One loop for every format and symmetry. A group's size, and its scale's type, which no loop over values needs, are
// looked up.
constexpr int forms = 6 * 2;
constexpr int form_index(const Codec& codec) { return static_cast<int>(codec.format) * 2 + (codec.asymmetric ? 1 : 0); }
constexpr Codec form_at(int index) {
  const auto format = static_cast<CodeFormat>(index / 2);
  return {format, index % 2 == 1 && format != CodeFormat::fp8, 0, ScaleType::fp32};
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
