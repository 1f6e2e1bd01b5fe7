// Where the parts of a quantized chunk lie. Offsets depend on the number of values alone, never on what they are.
#pragma once

#include "codec/format.hpp"

namespace imbrex::codec {

/// A chunk of `count` values from a 16-byte boundary: first plane, second plane, steps, offsets, slots, each of whole
/// 16 bytes. The last group is filled up with copies of the last value. Block i (values 8i ...) has its words at
/// first + i * first_block, second + i * second_block; group g its step at scale + g * scale_bytes(codec), its offset
/// at offset + g * offset_bytes(codec), and its slot at slot + g * codec.group * (bytes of an element).
struct ChunkLayout {
  std::int64_t blocks;  ///< of whole groups
  std::int64_t groups;
  int first_block;   ///< bytes of a block in the first plane
  int second_block;  ///< and in the second; 0 where there is none
  std::int64_t first, second, scale, offset, slot;
  std::int64_t bytes;  ///< multiple of 16
};

/// `slot_bytes`: bytes of an element in the slots for groups that travel raw; 0 leaves the slots out.
IMBREX_CODEC constexpr ChunkLayout layout_of(const Codec& codec, std::int64_t count, int slot_bytes = 0) {
  ChunkLayout layout{};
  layout.groups = (count + codec.group - 1) / codec.group;
  layout.blocks = layout.groups * (codec.group / block_values);
  layout.first_block = first_plane_bits(codec.format);
  layout.second_block = second_plane_bits(codec.format);
  const std::int64_t sizes[5] = {layout.blocks * layout.first_block, layout.blocks * layout.second_block,
                                 layout.groups * scale_bytes(codec), layout.groups * offset_bytes(codec),
                                 layout.groups * codec.group * slot_bytes};
  std::int64_t begins[6] = {0};
  for (int i = 0; i < 5; ++i) begins[i + 1] = begins[i] + (sizes[i] + 15) / 16 * 16;
  layout.first = begins[0];
  layout.second = begins[1];
  layout.scale = begins[2];
  layout.offset = begins[3];
  layout.slot = begins[4];
  layout.bytes = begins[5];
  return layout;
}

}  // namespace imbrex::codec
