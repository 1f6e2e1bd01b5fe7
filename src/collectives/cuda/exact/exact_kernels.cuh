// Exact all-reduces of one element type: sums in fp32, by rank number, so the bits are the same on all ranks.
#pragma once

#include "collectives/cuda/exact/exact.hpp"
#include "collectives/cuda/exact/exact_report.cuh"

namespace imbrex::cuda {

inline constexpr int most_threads = 512;

/// Slots: [source][packet]. Packet q is sent, added and stored by the same thread, so `out` may be `in`.
template <Type type, int Most, bool report>
__global__ void __launch_bounds__(most_threads, 1) one_shot_all_reduce(const __grid_constant__ ExactArgs a) {
  device::wait_for_stream();
  const Comm& c = a.comm;
  const BlockState state = read_state(c);
  const bool well = begins_well(c);
  if (!is_turn(c, state)) return;
  const VectorView in = view(a.in, a.bytes), out = view(a.out, a.bytes);
  const std::uint64_t begin = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  maybe_pause(c, state.epoch, 0);
  for (std::uint64_t q = begin; q < a.packets; q += step) {
    const uint4 packet = sendable(load_elements<type>(in, q));
#pragma unroll
    for (std::uint32_t i = 1; i < Most; ++i) {
      if (i >= c.ranks || !well) break;
      const std::uint32_t peer = c.rank + i < c.ranks ? c.rank + i : c.rank + i - c.ranks;
      store_packet(slots_of(c, peer, state.epoch) + c.rank * a.source_stride + q * packet_bytes, packet);
    }
  }
  maybe_pause(c, state.epoch, 1);
  const std::uint32_t wanted = ((1u << c.ranks) - 1) & ~(1u << c.rank);
  ExactReport<type, report> losses;
  for (std::uint64_t q = begin; well && q < a.packets; q += step) {
    uint4 got[1][Most];
    const uint4 own = load_elements<type>(in, q);
    if (!collect<1, Most>(c, state.epoch, slots_of(c, c.rank, state.epoch) + q * packet_bytes, a.source_stride, 0,
                          wanted, got, [&](int, int s) {
                            return Place{CommStep::vector, static_cast<std::uint32_t>(s), q, 0, 0};
                          }))
      break;
    Sum<type> sum;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if (s < c.ranks) {
        const uint4 part = chosen(s == c.rank, own, got[0][s]);
        sum.add(part, s == 0);
        losses.part(part);
      }
    const uint4 packed = sum.packed();
    store_elements<type>(out, q, packed);
    losses.sum(packed, c.ranks);
  }
  // All ranks have the same.
  if (c.rank == 0) losses.write(c, state.epoch);
  end_epoch(c, state);
}

/// The vector is cut into one piece a rank, its owner; a piece into chunks, dealt out to the blocks in turn; chunk k of
/// a block lies in its slots k mod `slots`. Slots: [parts, sums][source][slot, block][batch][thread]. In its k-th round
/// a block
///
///   1. sends chunk k of every other piece to its owner,
///   2. adds the parts of chunk k - 1 of its own piece, and sends the sums to all,
///   3. stores the sums of chunk k - 2 of the other pieces,
///
/// so that both directions of the links stay busy and no thread waits for what was sent a moment ago. It then tells its
/// peers that the chunk's slots are free; before step 1 they wait for that.
// NOTE: with blocks that begin at different steps, and warps that do not meet in a round, 64 MiB took 402 us instead of
// 300 (four H200s).
template <Type type, int Most, int Batch, bool report>
class TwoShot {
 public:
  __device__ __forceinline__ explicit TwoShot(const ExactArgs& args)
      : a_(args),
        c_(args.comm),
        state_(read_state(c_)),
        in_(view(args.in, args.bytes)),
        out_(view(args.out, args.bytes)),
        span_(blockDim.x * Batch),
        well_(begins_well(c_)) {}

  __device__ __forceinline__ void run() {
    if (!is_turn(c_, state_)) return;
    std::uint32_t posts = 0;
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < a_.chunks) {
        if (round >= a_.slots) well_ = wait_for_room(c_, state_, round - a_.slots + 1, well_);
        send(round);
      }
      if (round >= 1 && round - 1 < a_.chunks) add(round - 1);
      if (round < 2) continue;
      take(round - 2);
      if (round - 2 + a_.slots < a_.chunks) well_ = post_room(c_, state_, ++posts, well_);
    }
    losses_.write(c_, state_.epoch);
    end_epoch(c_, state_, posts);
  }

 private:
  // The number of batch 0's packet in a piece.
  __device__ __forceinline__ std::uint64_t packet_of(std::uint32_t chunk) const {
    return (static_cast<std::uint64_t>(chunk) * gridDim.x + blockIdx.x) * span_ + threadIdx.x;
  }

  __device__ __forceinline__ std::uint64_t slot_of(std::uint32_t chunk) const {
    return ((static_cast<std::uint64_t>(chunk) % a_.slots * gridDim.x + blockIdx.x) * span_ + threadIdx.x) *
           packet_bytes;
  }

  __device__ __forceinline__ std::byte* parts(std::uint32_t rank) const { return slots_of(c_, rank, state_.epoch); }

  __device__ __forceinline__ std::byte* sums(std::uint32_t rank) const {
    return slots_of(c_, rank, state_.epoch) + c_.ranks * a_.source_stride;
  }

  __device__ __forceinline__ std::uint32_t peer_of(std::uint32_t i) const {
    return c_.rank + i < c_.ranks ? c_.rank + i : c_.rank + i - c_.ranks;
  }

  /// Whether the owner's piece has that packet, counted within the piece.
  __device__ __forceinline__ bool has(std::uint32_t owner, std::uint64_t q) const {
    return q < a_.piece && owner * a_.piece + q < a_.packets;
  }

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint64_t first = packet_of(chunk), slot = slot_of(chunk) + c_.rank * a_.source_stride;
    uint4 packets[Batch][Most];
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (std::uint32_t i = 1; i < Most; ++i)
        if (const std::uint64_t q = first + b * blockDim.x; i < c_.ranks && has(peer_of(i), q))
          packets[b][i] = load_elements<type>(in_, peer_of(i) * a_.piece + q);
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (std::uint32_t i = 1; i < Most; ++i)
        if (const std::uint64_t q = first + b * blockDim.x; well_ && i < c_.ranks && has(peer_of(i), q))
          store_packet(parts(peer_of(i)) + slot + b * blockDim.x * packet_bytes, sendable(packets[b][i]));
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint64_t first = packet_of(chunk), slot = slot_of(chunk);
    const std::uint32_t sources = ((1u << c_.ranks) - 1) & ~(1u << c_.rank);
    std::uint32_t wanted = 0;
    uint4 own[Batch], got[Batch][Most];
#pragma unroll
    for (int b = 0; b < Batch; ++b)
      if (const std::uint64_t q = first + b * blockDim.x; has(c_.rank, q)) {
        wanted |= sources << (b * Most);
        own[b] = load_elements<type>(in_, c_.rank * a_.piece + q);
      }
    if (!well_ || !collect<Batch, Most>(
                      c_, state_.epoch, parts(c_.rank) + slot, a_.source_stride, blockDim.x * packet_bytes, wanted, got,
                      [&](int b, int s) {
                        return Place{CommStep::part, static_cast<std::uint32_t>(s), first + b * blockDim.x, 0, 0};
                      })) {
      well_ = false;
      return;
    }
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      const std::uint64_t q = first + b * blockDim.x;
      if (!has(c_.rank, q)) continue;
      Sum<type> sum;
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if (s < c_.ranks) {
          const uint4 part = chosen(s == c_.rank, own[b], got[b][s]);
          sum.add(part, s == 0);
          losses_.part(part);
        }
      const uint4 packet = sendable(sum.packed());
      losses_.sum(packet, c_.ranks);
#pragma unroll
      for (std::uint32_t i = 1; i < Most; ++i)
        if (i < c_.ranks)
          store_packet(sums(peer_of(i)) + slot + c_.rank * a_.source_stride + b * blockDim.x * packet_bytes, packet);
      store_elements<type>(out_, c_.rank * a_.piece + q, packet);
    }
  }

  __device__ __forceinline__ void take(std::uint32_t chunk) {
    const std::uint64_t first = packet_of(chunk);
    std::uint32_t wanted = 0;
    uint4 got[Batch][Most];
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if (s < c_.ranks && s != c_.rank && has(s, first + b * blockDim.x)) wanted |= 1u << (b * Most + s);
    if (!well_ || !collect<Batch, Most>(
                      c_, state_.epoch, sums(c_.rank) + slot_of(chunk), a_.source_stride, blockDim.x * packet_bytes,
                      wanted, got, [&](int b, int s) {
                        return Place{CommStep::sum, static_cast<std::uint32_t>(s), first + b * blockDim.x, 0, 0};
                      })) {
      well_ = false;
      return;
    }
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if ((wanted >> (b * Most + s) & 1) != 0)
          store_elements<type>(out_, s * a_.piece + first + b * blockDim.x, got[b][s]);
  }

  const ExactArgs& a_;
  const Comm& c_;
  BlockState state_;
  VectorView in_, out_;
  std::uint32_t span_;
  bool well_;  ///< nothing is sent otherwise
  ExactReport<type, report> losses_;
};

template <Type type, int Most, int Batch, bool report>
__global__ void __launch_bounds__(most_threads, 1) two_shot_all_reduce(const __grid_constant__ ExactArgs a) {
  device::wait_for_stream();
  TwoShot<type, Most, Batch, report>(a).run();
}

template <Type type, int Most, bool report>
const void* exact_kernel_of(const ExactShape& shape) {
  if (shape.kernel == ExactKernel::one_shot)
    return reinterpret_cast<const void*>(&one_shot_all_reduce<type, Most, report>);
  if (shape.batch == 1) return reinterpret_cast<const void*>(&two_shot_all_reduce<type, Most, 1, report>);
  if (shape.batch == 2) return reinterpret_cast<const void*>(&two_shot_all_reduce<type, Most, 2, report>);
  if constexpr (most_batch(Most) == 4)
    if (shape.batch == 4) return reinterpret_cast<const void*>(&two_shot_all_reduce<type, Most, 4, report>);
  return nullptr;
}

template <Type type, int Most>
const void* exact_kernel_of(const ExactShape& shape, bool report) {
  return report ? exact_kernel_of<type, Most, true>(shape) : exact_kernel_of<type, Most, false>(shape);
}

template <Type type>
const void* exact_kernel_of(std::uint32_t ranks, const ExactShape& shape, bool report) {
  return ranks <= 2   ? exact_kernel_of<type, 2>(shape, report)
         : ranks <= 4 ? exact_kernel_of<type, 4>(shape, report)
                      : exact_kernel_of<type, static_cast<int>(max_comm_ranks)>(shape, report);
}

}  // namespace imbrex::cuda
