#include "gpu/collectives/reduce_vectors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/convert.hpp"

namespace imbrex::test {
namespace {

constexpr std::size_t guard = 64;  // bytes around a vector that must stay as they are
constexpr std::int64_t period = reduce_period;

std::vector<float> stretch(int rank, std::uint64_t seed, bool hostile) {
  std::vector<float> values(static_cast<std::size_t>(period));
  std::uint64_t x = seed * 2654435761u + static_cast<std::uint64_t>(rank) * 7919 + 1;
  for (float& v : values) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 0x1p-31f;
    if (!hostile) continue;
    const std::uint32_t kind = static_cast<std::uint32_t>(x >> 40) % 16;
    if (kind == 0) v = std::bit_cast<float>(0xffffffffu);  // the word that marks empty slots, in every type
    if (kind == 1) v = std::bit_cast<float>(0x7f800000u | (static_cast<std::uint32_t>(x >> 3) & 0x80000000u));
    if (kind == 2) v *= 0x1p-140f;
    if (kind == 3) v = -0.0f;
    if (kind == 4) v = std::copysign(65504.0f, v);
  }
  return values;
}

// Bit patterns with all bits set stay so.
std::vector<std::byte> encoded(Type type, const std::vector<float>& values) {
  std::vector<std::byte> bytes = base::elements_of(type, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::bit_cast<std::uint32_t>(values[i]) == 0xffffffffu)
      std::memset(bytes.data() + i * size_of(type), 0xff, size_of(type));
  return bytes;
}

bool is_nan(Type type, const std::byte* at) {
  float v = 0;
  base::to_float(type, at, &v, 1);
  return std::isnan(v);
}

}  // namespace

std::vector<std::byte> input_stretch(Type type, int rank, std::uint64_t seed, bool hostile) {
  return encoded(type, stretch(rank, seed, hostile));
}

std::vector<std::byte> expected_stretch(Type type, int ranks, std::uint64_t seed, bool hostile) {
  std::vector<float> sum;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = base::floats_of(type, encoded(type, stretch(rank, seed, hostile)));
    if (rank == 0)
      sum = values;
    else
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return base::elements_of(type, sum);
}

std::int64_t first_difference(Type type, const std::byte* got, std::int64_t count, const std::vector<std::byte>& want) {
  const std::size_t element = size_of(type);
  for (std::int64_t first = 0; first < count; first += period) {
    const std::int64_t n = std::min(period, count - first);
    const std::byte* at = got + static_cast<std::size_t>(first) * element;
    if (std::memcmp(at, want.data(), static_cast<std::size_t>(n) * element) == 0) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::size_t o = static_cast<std::size_t>(i) * element;
      if (std::memcmp(at + o, want.data() + o, element) != 0 &&
          !(is_nan(type, at + o) && is_nan(type, want.data() + o)))
        return first + i;
    }
  }
  return -1;
}

std::string ReduceCase::text() const {
  const char* names[] = {"automatic", "one_shot", "two_shot"};
  return std::to_string(count) + " " + std::string(name_of(type)) + " " +
         names[static_cast<std::size_t>(knobs.algorithm)] + " blocks " + std::to_string(knobs.blocks) + " threads " +
         std::to_string(knobs.threads) + " batch " + std::to_string(knobs.batch) + " shifts " +
         std::to_string(in_shift) + " " + std::to_string(out_shift) + (in_place ? " in place" : "") +
         (hostile ? " hostile" : "");
}

ReduceVectors::ReduceVectors(const ReduceCase& c, int rank, int ranks, std::uint64_t seed)
    : c_(c),
      element_(size_of(c.type)),
      bytes_(static_cast<std::size_t>(c.count) * element_),
      stretch_(input_stretch(c.type, rank, seed, c.hostile)),
      want_(expected_stretch(c.type, ranks, seed, c.hostile)),
      in_(cuda::raw_memory(total(c.in_shift))),
      out_(cuda::raw_memory(c.in_place ? 0 : total(c.out_shift))) {}

const void* ReduceVectors::in() const { return static_cast<std::byte*>(in_.get()) + guard + c_.in_shift * element_; }

void* ReduceVectors::out() const {
  if (c_.in_place) return static_cast<std::byte*>(in_.get()) + guard + c_.in_shift * element_;
  return static_cast<std::byte*>(out_.get()) + guard + c_.out_shift * element_;
}

std::size_t ReduceVectors::total(std::size_t shift) const { return bytes_ + 2 * guard + shift * element_; }

void ReduceVectors::fill() {
  std::vector<std::byte> host(total(c_.in_shift), std::byte{0xa5});
  for (std::size_t at = 0; at < bytes_; at += stretch_.size())
    std::memcpy(host.data() + guard + c_.in_shift * element_ + at, stretch_.data(),
                std::min(stretch_.size(), bytes_ - at));
  cuda::upload(in_.get(), host.data(), host.size());
  if (!c_.in_place) cuda::fill(out_.get(), 0xa5, total(c_.out_shift));
}

std::vector<std::byte> ReduceVectors::input() const {
  std::vector<std::byte> host(bytes_);
  for (std::size_t at = 0; at < bytes_; at += stretch_.size())
    std::memcpy(host.data() + at, stretch_.data(), std::min(stretch_.size(), bytes_ - at));
  return host;
}

std::vector<std::byte> ReduceVectors::output() const {
  std::vector<std::byte> host(bytes_);
  IMBREX_CUDA_TRY(cudaMemcpy(host.data(), out(), bytes_, cudaMemcpyDeviceToHost));
  return host;
}

std::string ReduceVectors::fault() const {
  const std::size_t shift = (c_.in_place ? c_.in_shift : c_.out_shift) * element_, size = total(0) + shift;
  std::vector<std::byte> host(size);
  IMBREX_CUDA_TRY(cudaMemcpy(host.data(), c_.in_place ? in_.get() : out_.get(), size, cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < size; ++i)
    if ((i < guard + shift || i >= guard + shift + bytes_) && host[i] != std::byte{0xa5})
      return "byte " + std::to_string(i) + " outside the vector was written";
  const std::int64_t at = first_difference(c_.type, host.data() + guard + shift, c_.count, want_);
  if (at < 0) return {};
  float got = 0, want = 0;
  base::to_float(c_.type, host.data() + guard + shift + static_cast<std::size_t>(at) * element_, &got, 1);
  base::to_float(c_.type, want_.data() + static_cast<std::size_t>(at % period) * element_, &want, 1);
  return "element " + std::to_string(at) + " is " + std::to_string(got) + ", not " + std::to_string(want);
}

}  // namespace imbrex::test
