// The all-reduce through a codec: what a launch is, and who has the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/cuda/comm.hpp"
#include "imbrex/codec.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

inline constexpr std::uint32_t coded_block_values = 8;  // a thread's share of a group

/// Where a chunk's parts lie (codec/layout.hpp), of one of the two steps.
struct CodedChunk {
  Codec codec;
  std::uint32_t second, scale, offset, slot;  ///< bytes from the chunk's begin; the first plane is at 0
  std::uint32_t group_shift;                  ///< of a block's number to that of its group
  std::uint32_t bytes;
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
  std::uint64_t begin;          ///< bytes from the slots' begin to those of source 0
};

struct CodedArgs {
  Comm comm;
  const void* in;
  void* out;
  std::uint64_t count;         ///< values
  std::uint32_t value_blocks;  ///< of coded_block_values values, those that fill up the last group included
  std::uint32_t piece;         ///< but for one_step: of the same, of each rank's part; whole groups of both codecs
  std::uint32_t chunks;        ///< that each block deals with
  std::uint32_t slots;         ///< chunks that a block's slots hold
  float tolerance;             ///< negative: no group travels raw
  float part_allowance;        ///< the error that it leaves to each part
  CodedChunk parts, sums;
};

/// two_step; or one_step: every rank sends its whole vector to all; or a ring.
enum class CodedSteps : std::uint8_t { two_step, one_step, ring };

/// In a ring, what follows a chunk's codes: a float for each warp.
inline constexpr std::uint32_t ring_trailer_bytes = 64;

struct CodedShape {
  CodedSteps steps = CodedSteps::two_step;
  std::uint32_t blocks = 0;
  std::uint32_t workers = 0;  ///< threads of a block, without the warp that posts
  std::uint32_t slots = 0;    ///< chunks that the slots hold at most; 0: what fits
};

inline constexpr std::uint32_t most_coded_workers = 480;

struct CodedKernel {
  const void* function;
  std::uint32_t batch;  ///< blocks of values that a thread takes of a piece at once
};

/// The two-step kernel made for this pair, or else, and where groups may travel raw, the one that takes any.
/// `batch`: 1 or 2; not where there is one only.
CodedKernel coded_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant, std::uint32_t batch);

CodedKernel coded_one_shot_kernel(Type type);
CodedKernel coded_ring_kernel(Type type);
CodedKernel coded_exchange_kernel(ExchangeKind kind, Type type);

/// Loads every kernel: loading one behind a kernel that waits for a peer can stop that peer.
void load_coded_kernels();

}  // namespace imbrex::cuda
