// The codecs' functions, run on a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/chunk.hpp"
#include "codec/group.hpp"

namespace imbrex::test {

/// GPUs of this machine.
int devices();

/// As codec::encode_chunk and decode_chunk; a thread codes a group.
std::int64_t encode_on_device(const codec::ChunkFormat& format, std::span<const float> values,
                              std::span<const float> allowed, std::span<std::byte> wire);
void decode_on_device(const codec::ChunkFormat& format, std::span<const std::byte> wire, std::span<float> values,
                      std::span<codec::GroupRecord> records);

/// The device functions with everything of the codec but its group known to the compiler, for one codec of each format.
bool has_constant(const Codec& codec);

/// Values of all 256 codes of every group that the words mean, 256 a group.
void decode_codes_on_device(const Codec& codec, std::span<const std::uint32_t> scale_words,
                            std::span<const std::uint32_t> offset_words, std::span<float> values);

/// Floats, of all 2^32, that the conversion instruction makes another e4m3 code than integer arithmetic does.
std::uint64_t e4m3_differences();

}  // namespace imbrex::test
