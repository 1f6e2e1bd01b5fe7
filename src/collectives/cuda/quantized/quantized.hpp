// The all-reduce through a codec: what a launch is, and who has the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "codec/format.hpp"
#include "collectives/cuda/wire/comm.hpp"
#include "imbrex/codec.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

inline constexpr std::uint32_t quantized_block_values = 8;  // a thread's share of a group

/// Where a chunk's parts lie (codec/layout.hpp), in one of the two phases.
struct QuantizedChunk {
  Codec codec;
  std::uint32_t second, scale, offset, slot;  ///< bytes from the chunk's begin; the first plane is at 0
  std::uint32_t group_shift;                  ///< of a block's number to that of its group
  std::uint32_t bytes;
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
  std::uint64_t begin;          ///< bytes from the slots' begin to those of source 0
};

struct QuantizedArgs {
  Comm comm;
  const void* in;
  void* out;
  std::uint64_t count;         ///< values
  std::uint32_t value_blocks;  ///< of quantized_block_values values, those that fill up the last group included
  std::uint32_t piece;         ///< except one_shot: of the same, of each rank's part; whole groups of both codecs
  std::uint32_t span;          ///< value blocks of a chunk, in whole warps
  std::uint32_t chunks;        ///< that each block deals with
  std::uint32_t slots;         ///< chunks that a block's slots hold
  float tolerance;             ///< negative: no group travels raw
  float part_allowance;        ///< the error that it leaves to each part
  QuantizedChunk parts, sums;
};

/// two_shot; or one_shot: every rank sends its whole vector to all; or a ring.
enum class QuantizedSteps : std::uint8_t { two_shot, one_shot, ring };

/// In a ring, what follows a chunk's codes: a float for each warp.
inline constexpr std::uint32_t ring_trailer_bytes = 64;

struct QuantizedShape {
  QuantizedSteps steps = QuantizedSteps::two_shot;
  std::uint32_t blocks = 0;
  std::uint32_t span = 0;   ///< blocks of values in a chunk
  std::uint32_t slots = 0;  ///< chunks that the slots hold at most; 0: what fits
};

/// Threads of kernels that are not staged: one for each block of a chunk's values. A warp that posts comes on top.
inline constexpr std::uint32_t most_quantized_workers = 480;

/// Warps of a staged kernel by what they do, and the stages that adders fill; one more warp posts what is freed.
struct QuantizedRoles {
  std::uint32_t senders, adders, takers, part_signallers, sum_signallers, sum_stages;

  constexpr std::uint32_t threads() const {
    return 32 * (senders + adders + takers + part_signallers + sum_signallers + 1);
  }
};

/// The roles in the kernel for up to `most` ranks, measured on two H200s and on four. Each of two ranks adds half of
/// the vector, and posts a sum for every part.
constexpr QuantizedRoles roles_of(int most) {
  return most == 2 ? QuantizedRoles{6, 8, 4, 2, 2, 4} : QuantizedRoles{6, 6, 4, 2, 1, 6};
}

/// The stages that senders fill, and the most that adders do.
inline constexpr std::uint32_t part_stage_count = 6, most_sum_stages = 6;
/// Blocks of values that a warp of such a kernel takes at once.
inline constexpr std::uint32_t staged_run = 64;
inline constexpr std::uint32_t most_staged_span = 2048, most_staged_bytes = 216 << 10;

/// How codes travel: as packets that carry their own flag (LL), for vectors that are not long, or in copies with
/// signals.
enum class QuantizedWay : std::uint8_t { automatic, packets, copies };

/// Threads of a kernel of packets for up to `most` ranks (quantized_packets.cuh): more leave it too few registers.
constexpr std::uint32_t most_packet_threads(std::uint32_t most) { return most > 4 ? 384 : 512; }

/// A run's slot: each lane's words of codes, a word for each group, and of asymmetric codes one for the key in a sector
/// of its own.
constexpr std::uint32_t lane_words(const Codec& codec) {
  const int bits = codec::code_bits(codec.format);
  return bits == 8 ? 4 : bits > 4 ? 3 : 2;
}
inline constexpr std::uint32_t run_group_bytes = 64;
constexpr std::uint32_t run_slot_bytes(const Codec& codec) {
  return 32 * 4 * lane_words(codec) + run_group_bytes + (codec.asymmetric ? 32 : 0);
}

/// Bytes of the longest vector whose codes go by packets.
inline constexpr std::int64_t most_packet_vector = std::int64_t{16} << 20;

struct QuantizedKernel {
  const void* function = nullptr;
  std::uint32_t staged_threads = 0;  ///< whatever the span, with stages in dynamic shared memory; 0: it is not staged
  std::uint32_t sum_stages = 0;      ///< stages of sums, after the stages of parts
};

/// The two-shot kernel made for this pair, or else, and where groups may travel unquantized, the one that takes any.
QuantizedKernel quantized_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant);

/// The two-shot kernel by packets; null where no kernel is made for this pair, and where groups may travel unquantized.
const void* quantized_packets_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant);

QuantizedKernel quantized_one_shot_kernel(Type type);
QuantizedKernel quantized_ring_kernel(Type type);
QuantizedKernel quantized_exchange_kernel(ExchangeKind kind, Type type);

/// Loads every kernel: loading one after a kernel that waits for a peer can stop that peer.
void load_quantized_kernels();

}  // namespace imbrex::cuda
