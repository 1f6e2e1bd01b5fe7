// What the kernels of quantized all-reduces share: chunks, slots, posts, and groups on their way.
//
// Posts. Codes may be any bits, so counters say what has come: one for each peer, block and kind, in the memory of the
// rank that waits, never reset. The workers' warps say in shared memory which chunks they have ended; one more warp
// sees that all have, fences at system scope and stores the counters, so that no worker waits for a fence. A
// waiting warp polls with acquire and meets its other lanes. What a block posts in a call is its number of chunks, of
// each kind.
//
// What was given up. A warp whose wait has passed its limit says so beside its count, and no chunk is posted any more
// that it has a part in: a peer that comes late must not take what was never sent for codes.
//
// What is left out. Not every call posts every counter. One that fell behind would be so by 2^31 posts one day, and
// seem to be ahead; so every 2^20 posts a block stores them all.
//
// Unquantized groups. With a tolerance, the tag in a group's step says that its elements lie in the slot that every
// group has; receivers act on the tag alone.
#pragma once

#include <type_traits>

#include "collectives/cuda/quantized/quantized_block.cuh"
#include "collectives/cuda/wire/comm.cuh"

namespace imbrex::cuda {

inline constexpr std::uint32_t most_quantized_warps = most_quantized_workers / 32;

/// Chunks that each warp of workers has ended a step of. A count of all of them would not do: a fast warp ends two
/// while a slow one ends none.
struct ChunkProgress {
  std::uint32_t chunks[most_quantized_warps];
};

/// Beside a warp's count: it has given up.
// NOTE: its count goes on. The signalling warp must not run ahead of it: stages are handed back by phases that are
// known by their parity alone, and a warp that comes to one which ended twice would wait for ever.
inline constexpr std::uint32_t gave_up = 1u << 31;

/// By a warp, the `warp`-th of those that count; `well`: it has given up no wait.
// NOTE: atomic, as what one warp writes while another reads it has to be; a barrier would bind warps of which one may
// have given up waiting.
__device__ __forceinline__ void end_step(ChunkProgress& ended, std::uint32_t warp, std::uint32_t chunk, bool well) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  __threadfence_block();
  atomicExch_block(&ended.chunks[warp], (chunk + 1) | (well ? 0 : gave_up));
}

/// By a worker's warp.
__device__ __forceinline__ void end_step(ChunkProgress& ended, std::uint32_t chunk, bool well) {
  end_step(ended, threadIdx.x / 32, chunk, well);
}

/// By the warp that posts: until all warps have ended the step of the chunk. Whether none has given up.
// NOTE: the workers' waits are bounded, so this one is.
__device__ __forceinline__ bool await_step(ChunkProgress& ended, std::uint32_t warps, std::uint32_t chunk) {
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t count = 0;
  if (lane < warps)
    while (((count = atomicOr_block(&ended.chunks[lane], 0)) & ~gave_up) < chunk + 1) __nanosleep(20);
  __threadfence_block();
  __syncwarp();
  return __all_sync(whole_warp, (count & gave_up) == 0);
}

/// It lies in a block's shared memory; zero at first.
struct Progress {
  ChunkProgress parts, sums, freed;
};

/// Posts of a block after which it stores all its counters.
inline constexpr std::uint32_t posts_between = 1u << 20;

/// By one thread of a block, after a barrier at the call's end: counts what it has posted, and says whether counters
/// that the call left out are to be stored. All is sent, added and taken then, so what they come to say is true, unless
/// something was given up.
__device__ __forceinline__ bool count_posts(const Comm& c, std::uint32_t before, std::uint32_t now) {
  CommState& own = state_of(c, c.rank);
  own.blocks[blockIdx.x].posts = now;
  return now / posts_between != before / posts_between && device::load_relaxed(&c.own->abort) == 0u &&
         c.fault->abort == 0u;
}

__device__ __forceinline__ std::uint32_t next_rank(const Comm& c) { return c.rank + 1 < c.ranks ? c.rank + 1 : 0; }
__device__ __forceinline__ std::uint32_t previous_rank(const Comm& c) { return c.rank != 0 ? c.rank - 1 : c.ranks - 1; }

/// What this rank's block posts after a stage of a ring: to the next rank, except the last one, which sends nothing.
__device__ __forceinline__ std::uint32_t* ring_counter(const Comm& c, std::uint32_t stage) {
  const bool last = stage + 2 == 2 * c.ranks;
  return &state_of(c, last ? previous_rank(c) : next_rank(c)).ring[stage][blockIdx.x];
}

/// By that thread: all of the block's counters at its peers.
__device__ __forceinline__ void store_counters(const Comm& c, std::uint32_t now) {
  if (c.ranks == 1) return;
  device::fence_system();
#pragma unroll 1
  for (std::uint32_t stage = 0; stage + 1 < 2 * c.ranks; ++stage) device::store_relaxed(ring_counter(c, stage), now);
#pragma unroll 1
  for (std::uint32_t i = 0; i < c.ranks * max_comm_signallers; ++i) {
    const std::uint32_t peer = i / max_comm_signallers, signaller = i % max_comm_signallers;
    if (peer == c.rank) continue;
    CommState& state = state_of(c, peer);
    device::store_relaxed(&state.parts[signaller][c.rank][blockIdx.x], now);
    device::store_relaxed(&state.sums[signaller][c.rank][blockIdx.x], now);
    device::store_relaxed(&state.freed[signaller][c.rank][blockIdx.x], now);
  }
}

/// `Tolerant`: groups may travel raw.
template <Type type, bool Tolerant>
class QuantizedRank {
 public:
  using Vector = BlockView<type>;
  using Values = float[quantized_block_values];

 protected:
  using Counters = CommCounters (CommState::*)[max_comm_signallers];

  __device__ __forceinline__ QuantizedRank(const QuantizedArgs& args)
      : a_(args),
        c_(args.comm),
        state_(read_state(c_)),
        in_{static_cast<std::byte*>(const_cast<void*>(args.in)), args.count,
            reinterpret_cast<std::uint64_t>(args.in) % 16 == 0},
        out_{static_cast<std::byte*>(args.out), args.count, reinterpret_cast<std::uint64_t>(args.out) % 16 == 0},
        workers_(blockDim.x - 32),
        lane_(threadIdx.x % 32),
        well_(begins_well(c_)) {}

  /// By the warp that posts, once the workers' warps are done. Where one has given up, now or before, nothing is
  /// posted.
  __device__ __forceinline__ void post_one(ChunkProgress& ended, std::uint32_t chunk, Counters kind) {
    post_one(ended, workers_ / 32, chunk, kind);
  }
  __device__ __forceinline__ void post_one(ChunkProgress& ended, std::uint32_t warps, std::uint32_t chunk,
                                           Counters kind) {
    well_ = await_step(ended, warps, chunk) && well_;
    if (!well_ || lane_ >= c_.ranks || lane_ == c_.rank) return;
    device::fence_system();
    device::store_relaxed(&(state_of(c_, lane_).*kind)[0][c_.rank][blockIdx.x], state_.posts + chunk + 1);
  }

  /// By each warp: until all peers have posted up to `count` in this call.
  __device__ __forceinline__ void wait_for(CommStep step, Counters kind, std::uint32_t count,
                                           std::uint32_t signaller = 0) {
    if (well_ && lane_ < c_.ranks && lane_ != c_.rank) {
      const std::uint32_t* counter = &(state_of(c_, c_.rank).*kind)[signaller][lane_][blockIdx.x];
      BoundedPolls polls;
      for (;;) {
        const std::uint32_t seen = device::load_acquire(counter) - state_.posts;
        if (static_cast<std::int32_t>(seen - count) >= 0) break;
        if (!polls.left(c_, state_.epoch, [&] { return Place{step, lane_, 0, count, seen}; })) {
          well_ = false;
          break;
        }
      }
    }
    well_ = __all_sync(whole_warp, well_);
    __syncwarp();  // a vote orders no memory: what one lane has acquired is the others' from here on
  }

  /// The number of this thread's block of values in a chunk.
  __device__ __forceinline__ std::uint32_t index_of() const { return threadIdx.x; }

  __device__ __forceinline__ std::uint32_t block_of(std::uint32_t chunk) const { return first_of(chunk) + index_of(); }

  /// A chunk's first block in a piece.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t chunk) const {
    return (chunk * gridDim.x + blockIdx.x) * a_.span;
  }

  /// Whether the owner's piece has that block, counted within the piece.
  __device__ __forceinline__ bool has(std::uint32_t owner, std::uint32_t block) const {
    return block < a_.piece && owner * a_.piece + block < a_.value_blocks;
  }

  /// The place of a chunk's slots among a source's.
  __device__ __forceinline__ std::uint32_t place_of(std::uint32_t chunk) const {
    return chunk % a_.slots * gridDim.x + blockIdx.x;
  }

  __device__ __forceinline__ std::byte* slot_of(const QuantizedChunk& step, std::uint32_t rank, std::uint32_t source,
                                                std::uint32_t place) const {
    return quantized_slots_of(c_, rank, state_.epoch) + step.begin + source * step.source_stride +
           std::uint64_t{place} * step.bytes;
  }

  __device__ __forceinline__ std::uint32_t peer_of(std::uint32_t i) const {
    return c_.rank + i < c_.ranks ? c_.rank + i : c_.rank + i - c_.ranks;
  }

  /// The group of a block, raw if its error is beyond what is allowed. By a whole warp. `real`: the block has values of
  /// the vector, and is not one of those that fill up its last group.
  __device__ __forceinline__ codec::Group group_for(const Codec& c, const Values& values, bool there, float allowed,
                                                    bool real = true) {
    constexpr codec::Range range = codec::range_of(type);
    codec::Group group = group_of(c, range, values);
    if constexpr (Tolerant)
      if (a_.tolerance >= 0 && there &&
          (group.kind == codec::GroupKind::marked || codec::error_of(c, group) > allowed)) {
        group = codec::raw_group(c);
        if (leads(c) && real) ++raw_groups_;
      }
    return group;
  }

  /// A block's words, and its group's by the group's first lane.
  __device__ __forceinline__ void store_quantized(const Codec& c, const QuantizedChunk& step, std::byte* to,
                                                  std::uint32_t index, const codec::Group& group,
                                                  const codec::Planes& planes, const Values& values) const {
    if (Tolerant && group.kind == codec::GroupKind::raw)
      BlockView<type>{to + step.slot, ~0ull, true}.store(index, values);
    else
      store_planes(c, step, to, index, planes);
    if (leads(c)) store_group_words(c, step, to, index, group);
  }

  /// A raw block as a peer stored it.
  __device__ __forceinline__ void load_raw(const QuantizedChunk& step, const std::byte* from, std::uint32_t index,
                                           Values& values) const {
    const auto* at = reinterpret_cast<const uint4*>(from + step.slot) + index * Vector::words;
    typename Vector::Raw raw;
#pragma unroll
    for (std::uint32_t w = 0; w < Vector::words; ++w) raw.words[w] = __ldcg(at + w);
    Vector::to_float(raw, values);
  }

  /// The largest finite magnitude among the values of `group` neighbours. By a whole warp.
  __device__ __forceinline__ float finite_magnitude(int group, const Values& values) const {
    std::int32_t finite = codec::fold_finite(codec::range_of(type), 0, values);
    for (int distance = 1; distance < group / static_cast<int>(quantized_block_values); distance *= 2)
      finite = max(finite, __shfl_xor_sync(whole_warp, finite, distance));
    return __int_as_float(finite);
  }

  /// This rank's part of a block, quantized as if it were to travel.
  struct OwnPart {
    codec::Group group;
    codec::Codes codes;
  };

  __device__ __forceinline__ OwnPart own_part(const Codec& parts, const Values& values, bool there, bool real = true) {
    const codec::Group group = group_for(parts, values, there, a_.part_allowance, real);
    return {group, codec::encode(parts, codec::range_of(type), group, values)};
  }

  /// A peer's part as it came.
  struct Part {
    codec::Planes planes;
    GroupWords words;
  };

  __device__ __forceinline__ Part load_part(const Codec& c, const QuantizedChunk& step, const std::byte* from,
                                            std::uint32_t index) const {
    return {load_planes(c, step, from, index), load_group_words(c, step, from, index)};
  }
  __device__ __forceinline__ Part load_part(const Codec& parts, const std::byte* from, std::uint32_t index) const {
    return load_part(parts, a_.parts, from, index);
  }

  /// Decodes rank s's part of a block, this rank's own from its codes, too, and adds its share of the bound. By a whole
  /// warp.
  __device__ __forceinline__ void decode_part(const Codec& parts, std::uint32_t s, const OwnPart& own,
                                              const typename Vector::Raw& own_raw, const Part& came,
                                              const std::byte* from, std::uint32_t index, bool there,
                                              codec::Bound& bound, Values& values) const {
    constexpr codec::Range range = codec::range_of(type);
    const bool mine = s == c_.rank;
    GroupWords words = words_of(parts, own.group);
    words.scale = mine ? words.scale : came.words.scale;
    words.offset = mine ? words.offset : came.words.offset;
    const codec::Group group = read_group(parts, words);
    codec::Codes codes = codec::from_planes(parts.format, came.planes);
    codes.low = mine ? own.codes.low : codes.low;
    codes.high = mine ? own.codes.high : codes.high;
    const bool raw = Tolerant && group.kind == codec::GroupKind::raw;
    if (!raw) {
      codec::decode(parts, range, group, codes, values);
    } else if (there) {
      if (mine)
        Vector::to_float(own_raw, values);
      else
        load_raw(a_.parts, from, index, values);
    }
    if (Tolerant && __any_sync(whole_warp, raw)) {
      const float magnitude = finite_magnitude(parts.group, values);
      if (raw) codec::add_exact_part(bound, magnitude);
    }
    if (!raw) codec::add_part(bound, parts, range, group);
  }

  /// Decodes it and adds it, in the order of the ranks.
  __device__ __forceinline__ void add_part(const Codec& parts, std::uint32_t s, const OwnPart& own,
                                           const typename Vector::Raw& own_raw, const Part& came, const std::byte* from,
                                           std::uint32_t index, bool there, codec::Bound& bound, Values& sum) const {
    Values values = {};
    decode_part(parts, s, own, own_raw, came, from, index, there, bound, values);
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i) sum[i] = s == 0 ? values[i] : sum[i] + values[i];
  }

  /// Where sums were sent as codes of `group`.
  __device__ __forceinline__ void note_quantized_error(const codec::Bound& bound, const Codec& sums,
                                                       const codec::Group& group) {
    error_ = max(error_, codec::quantized_output_error(bound, static_cast<int>(c_.ranks), type, sums,
                                                       codec::range_of(type), group));
  }

  __device__ __forceinline__ void count_non_finite(std::uint32_t block, const Values& values) {
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i)
      if (std::uint64_t{block} * quantized_block_values + i < a_.count && !(fabsf(values[i]) < range.overflow))
        ++non_finite_;
  }

  __device__ __forceinline__ void end() {
    write_report(c_, state_.epoch, error_, non_finite_, raw_groups_);
    end_epoch(c_, state_);
    const std::uint32_t now = state_.posts + a_.chunks;
    if (threadIdx.x == 0 && count_posts(c_, state_.posts, now)) store_counters(c_, now);
  }

  const QuantizedArgs& a_;
  const Comm& c_;
  BlockState state_;
  Vector in_, out_;
  std::uint32_t workers_, lane_;
  bool well_;  ///< nothing is sent otherwise. The same for a warp, once it has waited for something
  float error_ = 0;
  std::uint32_t non_finite_ = 0, raw_groups_ = 0;

 private:
  /// A group's step and offset are stored by its first lane.
  __device__ __forceinline__ bool leads(const Codec& c) const {
    return (lane_ & (static_cast<std::uint32_t>(c.group) / quantized_block_values - 1)) == 0;
  }
};

}  // namespace imbrex::cuda
