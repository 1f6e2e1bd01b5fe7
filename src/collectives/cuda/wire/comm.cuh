// Epochs, slots and bounded waits of the collectives' kernels. See comm.hpp for the protocol.
#pragma once

#include "collectives/cuda/wire/comm.hpp"

namespace imbrex::cuda {

__device__ __forceinline__ std::byte* workspace(const Comm& c, std::uint32_t rank) {
  return c.states + rank * c.stride;
}

__device__ __forceinline__ CommState& state_of(const Comm& c, std::uint32_t rank) {
  return *reinterpret_cast<CommState*>(workspace(c, rank));
}

__device__ __forceinline__ std::byte* slots_of(const Comm& c, std::uint32_t rank, std::uint64_t epoch) {
  return workspace(c, rank) + slots_offset + (epoch & 1) * c.copy_bytes;
}

__device__ __forceinline__ std::byte* quantized_slots_of(const Comm& c, std::uint32_t rank, std::uint64_t epoch) {
  return slots_of(c, rank, epoch) + 2 * c.copy_bytes;
}

/// By every thread of a block, before end_epoch.
__device__ __forceinline__ BlockState read_state(const Comm& c) {
  BlockState s;
  const void* at = &state_of(c, c.rank).blocks[blockIdx.x];
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(s.epoch), "=l"(*reinterpret_cast<std::uint64_t*>(&s.posts))
               : "l"(at)
               : "memory");
  return s;
}

/// By a thread, behind wait_for_stream: false where a rank had given up before. So calls that are queued after one
/// that failed send nothing, nor does a rank that comes to it late; its host hears of it. Threads may hear different
/// answers.
// NOTE: loaded beside the block's state and looked at before the first store, it takes no time of its own; all warps of
// an SM but one get it from L1.
__device__ __forceinline__ bool begins_well(const Comm& c) {
  std::uint32_t abort;
  asm volatile("ld.relaxed.cta.global.u32 %0, [%1];" : "=r"(abort) : "l"(&c.own->abort) : "memory");
  return abort == 0u || !device::given_up(c, false);
}

/// Whether this kernel has anything to do. The same for all blocks of all ranks.
__device__ __forceinline__ bool is_turn(const Comm& c, const BlockState& s) {
  if (c.turn == Turn::always) return true;
  const bool exact = *const_cast<const volatile std::uint64_t*>(&state_of(c, c.rank).exact_epoch) == s.epoch;
  return exact == (c.turn == Turn::if_exact);
}

/// By every thread of a block, once. `rooms`: what the block posted to each peer's `room` in this call.
__device__ __forceinline__ void end_epoch(const Comm& c, const BlockState& s, std::uint32_t rooms = 0) {
  __syncthreads();
  BlockState* blocks = state_of(c, c.rank).blocks;
  if (threadIdx.x == 0) {
    blocks[blockIdx.x].epoch = s.epoch + 1;
    blocks[blockIdx.x].rooms = s.rooms + rooms;
  }
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) {
    state_of(c, c.rank).reports[(s.epoch + 1) & 1] = {};
    device::enter_epoch(c, s.epoch);  // where no wait of it was long
  }
  for (std::uint32_t b = gridDim.x + threadIdx.x; b < max_comm_blocks; b += blockDim.x) blocks[b].epoch = s.epoch + 1;
}

/// By whole warps, before end_epoch: what their threads found. Positive floats order like their bits.
__device__ __forceinline__ void write_report(const Comm& c, std::uint64_t epoch, float error, std::uint32_t non_finite,
                                             std::uint32_t raw_groups) {
  CommReport& r = state_of(c, c.rank).reports[epoch & 1];
  const std::uint32_t worst = __reduce_max_sync(0xffffffffu, __float_as_uint(error)),
                      odd = __reduce_add_sync(0xffffffffu, non_finite),
                      raw = __reduce_add_sync(0xffffffffu, raw_groups);
  if (threadIdx.x % 32 != 0) return;
  if (worst != 0) atomicMax(&r.error_bits, worst);
  if (odd != 0) atomicAdd(&r.non_finite, static_cast<unsigned long long>(odd));
  if (raw != 0) atomicAdd(&r.raw_groups, raw);
}

/// What a thread waits for, for the record.
struct Place {
  CommStep step;
  std::uint32_t peer;
  std::uint64_t packet;
  std::uint32_t expected, seen;
};

/// Most waits are short: neither the clock nor the rank's word is read before the 64th poll, and the host's once in a
/// thousand.
inline constexpr device::Cadence cadence{.pause = 0, .look = 64, .ask = 1024};

/// Bounds a loop of polls: asked after a poll that failed, says whether to go on. where() is a Place. A rank enters an
/// epoch when a wait of it has become long, or with its end: a store at its beginning would hold up what is sent.
class BoundedPolls {
 public:
  template <typename Where>
  __device__ __forceinline__ bool left(const Comm& c, std::uint64_t epoch, Where&& where) {
    return polls_.left(
        c,
        [&](device::Fault& fault) {
          const Place place = where();
          fault.kind = static_cast<std::uint32_t>(place.step);
          fault.place[0] = place.peer;
          fault.place[1] = blockIdx.x;
          fault.place[2] = static_cast<std::uint32_t>(place.packet);
          fault.place[3] = static_cast<std::uint32_t>(place.packet >> 32);
          fault.expected = place.expected;
          fault.seen = place.seen;
          fault.epoch = epoch;
        },
        [&] { device::enter_epoch(c, epoch); });
  }

 private:
  device::BoundedPolls<cadence> polls_;
};

/// By every thread of a block: until all peers have freed `count` chunks in this call. Whether that is so, and `well`
/// is so for all threads: one answer for the block, whose threads send nothing else.
__device__ __forceinline__ bool wait_for_room(const Comm& c, const BlockState& s, std::uint32_t count, bool well) {
  if (threadIdx.x < c.ranks && threadIdx.x != c.rank && well) {
    const std::uint32_t* room = &state_of(c, c.rank).room[threadIdx.x][blockIdx.x];
    BoundedPolls polls;
    for (;;) {
      const std::uint32_t seen = device::load_acquire(room) - s.rooms;
      if (static_cast<std::int32_t>(seen - count) >= 0) break;
      if (!polls.left(c, s.epoch, [&] { return Place{CommStep::room, threadIdx.x, 0, count, seen}; })) {
        well = false;
        break;
      }
    }
  }
  return __syncthreads_and(well) != 0;
}

/// By every thread of a block: tells the peers that it has freed `count` chunks, if `well` is so for all threads, and
/// returns whether it is. The fence covers what the block's other threads cleared before the barrier. The last warp
/// posts, so that the first one can wait for room meanwhile.
__device__ __forceinline__ bool post_room(const Comm& c, const BlockState& s, std::uint32_t count, bool well) {
  well = __syncthreads_and(well) != 0;
  const std::uint32_t peer = blockDim.x - 1 - threadIdx.x;
  if (!well || peer >= c.ranks || peer == c.rank) return well;
  device::fence_system();
  device::store_relaxed(&state_of(c, peer).room[c.rank][blockIdx.x], s.rooms + count);
  return well;
}

/// Tests: pauses this warp, one time in eight.
__device__ __forceinline__ void maybe_pause(const Comm& c, std::uint64_t epoch, std::uint32_t step) {
  device::pause_for_tests(c, epoch, step, blockIdx.x * 32 + threadIdx.x / 32);
}

}  // namespace imbrex::cuda
