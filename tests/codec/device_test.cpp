// Host and device: the same bits for every input tried.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codec/block.hpp"
#include "codec/device.hpp"
#include "codec/forms.hpp"
#include "support/random_plan.hpp"

namespace imbrex::codec {
namespace {

#define NEEDS_A_GPU() \
  if (test::devices() == 0) GTEST_SKIP() << "a GPU wanted, none found"

std::vector<std::uint32_t> bits_of_all(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(value != value ? nan_bits : bits_of(value));
  return bits;
}

// Everything but unquantized groups' slots, which no codec function writes.
void compare(const ChunkFormat& format, const std::vector<float>& values, std::span<const float> allowed) {
  const auto count = static_cast<std::int64_t>(values.size());
  const ChunkLayout layout = format.layout(count);
  std::vector<std::byte> on_host(static_cast<std::size_t>(layout.bytes)), on_device(on_host);
  const std::int64_t raw = encode_chunk(format, values.data(), count, allowed, on_host.data());
  ASSERT_EQ(test::encode_on_device(format, values, allowed, on_device), raw);
  ASSERT_EQ(std::memcmp(on_host.data(), on_device.data(), static_cast<std::size_t>(layout.slot)), 0);
  std::vector<GroupRecord> host_records(static_cast<std::size_t>(layout.groups)), device_records(host_records);
  std::vector<float> host_values(values.size()), device_values(values.size());
  decode_chunk(format, on_host.data(), count, host_values.data(), host_records.data());
  test::decode_on_device(format, on_host, device_values, device_records);
  for (std::size_t g = 0; g < host_records.size(); ++g) {
    ASSERT_EQ(host_records[g].raw, device_records[g].raw);
    ASSERT_EQ(host_records[g].error, device_records[g].error);
    if (host_records[g].raw) {
      const std::size_t begin = g * static_cast<std::size_t>(format.codec.group);
      for (std::size_t i = begin; i < std::min(values.size(), begin + static_cast<std::size_t>(format.codec.group));
           ++i)
        device_values[i] = host_values[i];
    } else {
      ASSERT_EQ(host_records[g].magnitude, device_records[g].magnitude);
    }
  }
  ASSERT_EQ(bits_of_all(host_values), bits_of_all(device_values));
}

TEST(Device, CodesChunksAsTheHost) {
  NEEDS_A_GPU();
  const std::uint64_t seed = test::seed_from_environment();
  int constants = 0, chunks = 0;
  for (const Codec& codec : test::all_codecs()) {
    SCOPED_TRACE(name_of(codec));
    if (test::has_constant(codec)) ++constants;
    for (std::uint64_t i = 0; i < 40; ++i) {
      std::mt19937_64 random(seed + i);
      const Type type = static_cast<Type>(i % 3);
      std::vector<float> values;
      for (int part = 0; part < 20; ++part) {
        const std::vector<float> more = test::random_values(random, type, 1 + random() % 1500);
        values.insert(values.end(), more.begin(), more.end());
      }
      if (i % 4 == 3)
        for (int j = 0; j < 60; ++j)
          values[random() % values.size()] =
              std::array{HUGE_VALF, -HUGE_VALF, std::nanf(""), range_of(type).overflow}[random() % 4];
      const ChunkFormat format{codec, type, i % 2 == 1};
      const std::vector<float> allowed(static_cast<std::size_t>(format.layout(std::ssize(values)).groups), 0.01f);
      ASSERT_NO_FATAL_FAILURE(
          compare(format, values, i % 3 == 1 ? std::span<const float>(allowed) : std::span<const float>()));
      ++chunks;
    }
  }
  EXPECT_EQ(constants, 6);
  std::cout << chunks << " chunks of about 15,000 values agree\n";
}

TEST(Device, DecodesEveryCodeOfEveryScaleAsTheHost) {
  NEEDS_A_GPU();
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec& codec : test::all_codecs()) {
    if (codec.group != 32) continue;
    SCOPED_TRACE(name_of(codec));
    std::vector<std::uint32_t> scales, offsets;
    const std::uint32_t words = codec.scale == ScaleType::e8m0 ? 256 : 65536;
    for (std::uint32_t word = 0; word < words; ++word) {
      const Group group =
          read_group(codec, codec.scale == ScaleType::fp32 ? static_cast<std::uint32_t>(random()) : word, 0);
      if (group.kind == GroupKind::raw || !(group.step < HUGE_VALF)) continue;  // no steps
      scales.push_back(group.scale_word);
      offsets.push_back(static_cast<std::uint32_t>(random()) >> (codec.scale == ScaleType::fp32 ? 0 : 16));
    }
    std::vector<float> on_device(scales.size() * 256), on_host(on_device.size());
    test::decode_codes_on_device(codec, scales, offsets, on_device);
    for (std::size_t i = 0; i < on_host.size(); i += block_values) {
      const auto first = static_cast<std::uint32_t>(i % 256);
      const Codes codes{first * 0x01010101u + 0x03020100u, first * 0x01010101u + 0x07060504u};
      float block[block_values];
      decode(codec, range_of(Type::fp32), read_group(codec, scales[i / 256], offsets[i / 256]), codes, block);
      std::copy_n(block, block_values, on_host.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ASSERT_EQ(bits_of_all(on_host), bits_of_all(on_device));
  }
}

TEST(Device, ConvertsEveryFloatToE4m3AsIntegersDo) {
  NEEDS_A_GPU();
  EXPECT_EQ(test::e4m3_differences(), 0u);
}

}  // namespace
}  // namespace imbrex::codec
