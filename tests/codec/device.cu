#include "codec/device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>

#include "codec/block.hpp"
#include "codec/bound.hpp"

namespace imbrex::test {
namespace {

using namespace codec;

void expect(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t count) : count_(count) {
    expect(cudaMalloc(&data_, std::max<std::size_t>(1, count) * sizeof(T)));
  }
  explicit OnDevice(std::span<const T> values) : OnDevice(values.size()) {
    if (count_ != 0) expect(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  T* get() const { return data_; }
  void read(std::span<T> to) const {
    if (!to.empty()) expect(cudaMemcpy(to.data(), data_, to.size_bytes(), cudaMemcpyDeviceToHost));
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

struct Chunk {
  Codec codec;
  Type type;
  bool slots;
  ChunkLayout layout;
  std::int64_t count;
};

Chunk chunk_of(const ChunkFormat& format, std::size_t count) {
  const auto values = static_cast<std::int64_t>(count);
  return {format.codec, format.type, format.slots, format.layout(values), values};
}

// Which fields of the codec the compiler knows: 0 none, else a codec of constants().
template <int known>
__device__ Codec codec_of(const Codec& given) {
  if constexpr (known == 1) return {CodeFormat::int8, false, 32, ScaleType::bf16};
  if constexpr (known == 2) return {CodeFormat::int6, true, 64, ScaleType::e8m0};
  if constexpr (known == 3) return {CodeFormat::int5, false, 32, ScaleType::e8m0};
  if constexpr (known == 4) return {CodeFormat::int4, true, 128, ScaleType::bf16};
  if constexpr (known == 5) return {CodeFormat::int3, true, 32, ScaleType::fp32};
  if constexpr (known == 6) return {CodeFormat::fp8, false, 128, ScaleType::bf16};
  return given;
}

int known_codec(const Codec& codec) {
  constexpr Codec constants[] = {
      {CodeFormat::int8, false, 32, ScaleType::bf16}, {CodeFormat::int6, true, 64, ScaleType::e8m0},
      {CodeFormat::int5, false, 32, ScaleType::e8m0}, {CodeFormat::int4, true, 128, ScaleType::bf16},
      {CodeFormat::int3, true, 32, ScaleType::fp32},  {CodeFormat::fp8, false, 128, ScaleType::bf16}};
  const auto found = std::find(std::begin(constants), std::end(constants), codec);
  return found == std::end(constants) ? 0 : static_cast<int>(found - std::begin(constants)) + 1;
}

__device__ void store(std::byte* to, std::uint32_t word, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(word >> 8 * i);
}
__device__ std::uint32_t load(const std::byte* from, int bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < bytes; ++i) word |= static_cast<std::uint32_t>(from[i]) << 8 * i;
  return word;
}

__device__ void load_block(const Chunk& chunk, const float* values, std::int64_t at, float (&block)[block_values]) {
  for (int i = 0; i < block_values; ++i) block[i] = values[smaller<std::int64_t>(at + i, chunk.count - 1)];
}

template <int known>
__global__ void encode_kernel(Chunk chunk, const float* values, const float* allowed, std::byte* wire,
                              unsigned long long* raw) {
  const Codec form = codec_of<known>(chunk.codec);
  const Range range = range_of(chunk.type);
  const std::int64_t g = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (g >= chunk.layout.groups) return;
  const int blocks = form.group / block_values;
  float block[block_values];
  Extremes extremes = no_extremes(form);
  std::int32_t finite = 0;
  for (int b = 0; b < blocks; ++b) {
    load_block(chunk, values, g * form.group + b * block_values, block);
    extremes = merge(form, extremes, fold(form, no_extremes(form), block));
    finite = fold_finite(range, finite, block);
  }
  Group group = needs_mark(form, range, extremes) ? marked_group(form, finite) : regular_group(form, extremes);
  if (chunk.slots && (group.kind == GroupKind::marked || (allowed && error_of(form, group) > allowed[g])))
    group = raw_group(form);
  store(wire + chunk.layout.scale + g * scale_bytes(form), group.scale_word, scale_bytes(form));
  store(wire + chunk.layout.offset + g * offset_bytes(form), group.offset_word, offset_bytes(form));
  if (group.kind == GroupKind::raw) {
    // The caller compares elements; the test compares codes.
    atomicAdd(raw, 1ull);
    return;
  }
  for (int b = 0; b < blocks; ++b) {
    const std::int64_t at = g * blocks + b;
    load_block(chunk, values, at * block_values, block);
    const Planes planes = to_planes(form.format, encode(form, range, group, block));
    const int first = first_plane_bits(form.format), second = second_plane_bits(form.format);
    store(wire + chunk.layout.first + at * first, planes.first[0], smaller(first, 4));
    if (first == 8) store(wire + chunk.layout.first + at * first + 4, planes.first[1], 4);
    store(wire + chunk.layout.second + at * second, planes.second, second);
  }
}

template <int known>
__global__ void decode_kernel(Chunk chunk, const std::byte* wire, float* values, GroupRecord* records) {
  const Codec form = codec_of<known>(chunk.codec);
  const Range range = range_of(chunk.type);
  const std::int64_t g = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (g >= chunk.layout.groups) return;
  const int blocks = form.group / block_values, first = first_plane_bits(form.format),
            second = second_plane_bits(form.format);
  const Group group = read_group(form, load(wire + chunk.layout.scale + g * scale_bytes(form), scale_bytes(form)),
                                 load(wire + chunk.layout.offset + g * offset_bytes(form), offset_bytes(form)));
  records[g] = {error_of(form, group), 0, group.kind == GroupKind::raw};
  if (group.kind == GroupKind::raw) return;
  records[g].magnitude = smaller(magnitude_of(form, group), range.largest);
  for (int b = 0; b < blocks; ++b) {
    const std::int64_t at = g * blocks + b;
    Planes planes{{load(wire + chunk.layout.first + at * first, smaller(first, 4)), 0},
                  load(wire + chunk.layout.second + at * second, second)};
    if (first == 8) planes.first[1] = load(wire + chunk.layout.first + at * first + 4, 4);
    float block[block_values];
    decode(form, range, group, from_planes(form.format, planes), block);
    for (int i = 0; i < block_values; ++i)
      if (at * block_values + i < chunk.count) values[at * block_values + i] = block[i];
  }
}

__global__ void codes_kernel(Codec form, std::int64_t groups, const std::uint32_t* scale_words,
                             const std::uint32_t* offset_words, float* values) {
  const std::int64_t thread = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x, g = thread / 32;
  if (g >= groups) return;
  const std::uint32_t first = static_cast<std::uint32_t>(thread % 32) * block_values;
  const Codes codes{first * 0x01010101u + 0x03020100u, first * 0x01010101u + 0x07060504u};
  float block[block_values];
  decode(form, range_of(Type::fp32), read_group(form, scale_words[g], offset_words[g]), codes, block);
  for (int i = 0; i < block_values; ++i) values[thread * block_values + i] = block[i];
}

__global__ void e4m3_kernel(unsigned long long* differences) {
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t found = 0;
  for (std::uint64_t bits = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; bits < std::uint64_t{1} << 32;
       bits += threads) {
    const float value = float_of(static_cast<std::uint32_t>(bits));
    const std::uint32_t pair = to_e4m3_pair(value, -value);
    if ((pair & 0xffu) != to_e4m3_by_integers(value) || pair >> 8 != to_e4m3_by_integers(-value)) ++found;
    if (bits < 256) {
      float low, high;
      from_e4m3_pair(static_cast<std::uint32_t>(bits) | 0x3800u, low, high);
      const float want = from_e4m3_by_integers(static_cast<std::uint32_t>(bits));
      if (high != 1.0f || (bits_of(low) != bits_of(want) && !(low != low && want != want))) ++found;
    }
  }
  if (found != 0) atomicAdd(differences, static_cast<unsigned long long>(found));
}

constexpr unsigned block_threads = 128;
unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + block_threads - 1) / block_threads);
}

template <int known>
void launch_encode(const Chunk& chunk, const float* values, const float* allowed, std::byte* wire,
                   unsigned long long* raw) {
  encode_kernel<known><<<blocks_for(chunk.layout.groups), block_threads>>>(chunk, values, allowed, wire, raw);
}
template <int known>
void launch_decode(const Chunk& chunk, const std::byte* wire, float* values, GroupRecord* records) {
  decode_kernel<known><<<blocks_for(chunk.layout.groups), block_threads>>>(chunk, wire, values, records);
}

}  // namespace

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool has_constant(const Codec& codec) { return known_codec(codec) != 0; }

std::int64_t encode_on_device(const ChunkFormat& format, std::span<const float> values, std::span<const float> allowed,
                              std::span<std::byte> wire) {
  constexpr decltype(&launch_encode<0>) launch[] = {launch_encode<0>, launch_encode<1>, launch_encode<2>,
                                                    launch_encode<3>, launch_encode<4>, launch_encode<5>,
                                                    launch_encode<6>};
  const Chunk chunk = chunk_of(format, values.size());
  if (chunk.count == 0) return 0;
  const OnDevice<float> in(values), limits(allowed);
  const OnDevice<std::byte> out{std::span<const std::byte>(wire)};
  const unsigned long long none[] = {0};
  const OnDevice<unsigned long long> raw{std::span<const unsigned long long>(none)};
  launch[known_codec(format.codec)](chunk, in.get(), allowed.empty() ? nullptr : limits.get(), out.get(), raw.get());
  expect(cudaGetLastError());
  out.read(wire);
  unsigned long long count[1];
  raw.read(count);
  return static_cast<std::int64_t>(count[0]);
}

void decode_on_device(const ChunkFormat& format, std::span<const std::byte> wire, std::span<float> values,
                      std::span<GroupRecord> records) {
  constexpr decltype(&launch_decode<0>) launch[] = {launch_decode<0>, launch_decode<1>, launch_decode<2>,
                                                    launch_decode<3>, launch_decode<4>, launch_decode<5>,
                                                    launch_decode<6>};
  const Chunk chunk = chunk_of(format, values.size());
  if (chunk.count == 0) return;
  const OnDevice<std::byte> in(wire);
  const OnDevice<float> out{std::span<const float>(values)};
  const OnDevice<GroupRecord> notes(records.size());
  launch[known_codec(format.codec)](chunk, in.get(), out.get(), notes.get());
  expect(cudaGetLastError());
  out.read(values);
  notes.read(records);
}

void decode_codes_on_device(const Codec& codec, std::span<const std::uint32_t> scale_words,
                            std::span<const std::uint32_t> offset_words, std::span<float> values) {
  const OnDevice<std::uint32_t> scales(scale_words), offsets(offset_words);
  const OnDevice<float> out(values.size());
  const auto groups = static_cast<std::int64_t>(scale_words.size());
  codes_kernel<<<blocks_for(groups * 32), block_threads>>>(codec, groups, scales.get(), offsets.get(), out.get());
  expect(cudaGetLastError());
  out.read(values);
}

std::uint64_t e4m3_differences() {
  const unsigned long long none[] = {0};
  const OnDevice<unsigned long long> found{std::span<const unsigned long long>(none)};
  e4m3_kernel<<<4096, block_threads>>>(found.get());
  expect(cudaGetLastError());
  unsigned long long count[1];
  found.read(count);
  return count[0];
}

}  // namespace imbrex::test
