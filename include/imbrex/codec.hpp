// Codecs: how a collective shortens what it sends. docs/dev/codec-format.md tells the formats, the layout and the
// bounds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "imbrex/types.hpp"

namespace imbrex {

/// What a value becomes: an integer of that many bits times its group's step, or a float e4m3 times the step.
enum class CodeFormat : std::uint8_t { int8, int6, int5, int4, int3, fp8 };

/// How a group's step is written: 2, 4 or 1 bytes. Always rounded up, so that no value is clipped. An E8M0 step is a
/// power of two.
enum class ScaleType : std::uint8_t { bf16, fp32, e8m0 };

/// Groups of neighbouring values share a step. Symmetric: value = code * step, zero is exact. Asymmetric: value =
/// offset + code * step, for values that lie to one side of zero; not with fp8. NaN and infinities come back where they
/// were; a group that holds one keeps its finite values with two codes fewer.
struct Codec {
  CodeFormat format = CodeFormat::int8;
  bool asymmetric = false;
  int group = 32;  ///< values: 32, 64 or 128
  ScaleType scale = ScaleType::bf16;

  friend bool operator==(const Codec&, const Codec&) = default;
};

/// The codecs of a two-shot all-reduce: of the parts sent to be summed, and of the sums sent back.
struct CodecPair {
  Codec reduce_scatter;
  Codec all_gather;

  friend bool operator==(const CodecPair&, const CodecPair&) = default;
};

/// What became of sums that went through a codec, over all ranks.
struct CodecReport {
  float largest_error = 0;      ///< no finite element of the sums is farther from the exact sum than this
  std::int64_t non_finite = 0;  ///< elements of the sums that are NaN or infinite
  std::int64_t groups = 0;      ///< sent through the codec: in all steps, by all ranks
};

/// FORMAT[-asym][-gGROUP][-SCALE], without what is the default: "int8", "int4-asym-g128", "fp8-g64-e8m0".
std::string name_of(const Codec& codec);
std::string name_of(const CodecPair& pair);  ///< "int8" where both are the same, else "int4+int8"

/// Inverses of name_of; the parts after FORMAT in any order. A pair may also be "flash8", "flash6" or "flash4": Flash
/// Communication's (arXiv 2412.04964) asymmetric int8, int4 then int8, and int4, in groups of 128. Throw
/// Error(invalid_input) naming the part that is none.
Codec parse_codec(std::string_view name);
CodecPair parse_codec_pair(std::string_view name);

/// Throws Error(invalid_input) naming the field that breaks a rule above.
void validate(const Codec& codec);

/// Bytes that `count` values take on the wire, scales included: `count` is rounded up to whole groups, planes to 16
/// bytes.
std::int64_t wire_bytes(const Codec& codec, std::int64_t count);

/// Bits on the wire per value, for large counts: 8.5 for int8 in groups of 32 with a bf16 scale.
double wire_bits(const Codec& codec);

/// Largest possible |decoded - value| in a group whose values lie in [low, high], both finite.
float error_bound(const Codec& codec, float low, float high);

}  // namespace imbrex
