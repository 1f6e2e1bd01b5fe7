// The two-step all-reduce through a codec, as one kernel.
//
// The vector is cut as in the exact two-shot (exact_kernels.cuh), in blocks of eight values: pieces, chunks, slots. In
// its k-th round a block of threads
//
//   1. codes chunk k of every other rank's piece into its owner's slots, and posts "parts",
//   2. waits for the peers' parts of chunk k - 1 of its own piece, decodes and adds them by rank number, its own part
//      decoded from codes like the others; codes the sums into all peers' slots, and posts "sums"; its own output is
//      decoded from these codes, too, so all ranks get the same bits,
//   3. waits for the sums of chunk k - 2 of the other pieces, decodes them into the output, and posts "freed".
//
// Posts. Codes may be any bits, so counters say what has come: one for each peer, block and kind, in the memory of the
// rank that waits, never reset. The workers' warps count themselves in shared memory as they end a step; one more warp
// sees the count complete, fences at system scope and stores the counters, so that no worker waits for a fence. A
// waiting warp polls with acquire and meets its other lanes. What a block posts in a call is its number of chunks, of
// each kind.
#pragma once

#include <type_traits>

#include "collectives/cuda/coded_block.cuh"
#include "collectives/cuda/coded_entries.hpp"
#include "collectives/cuda/comm.cuh"

namespace imbrex::cuda {

/// Counts of the warps that have ended a step, over the launch.
struct Arrivals {
  std::uint32_t parts, sums, freed;
};

__device__ __forceinline__ void arrive(std::uint32_t& count) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    __threadfence_block();
    atomicAdd_block(&count, 1u);
  }
}

template <Type type, int Most, int Batch, typename FormOfParts, typename FormOfSums>
class CodedTwoShot {
 public:
  // All sources' loads fly together, and loops over ranks are unrolled, where registers hold it.
  static constexpr bool ahead = Most <= 4 && !std::is_same_v<FormOfParts, AnyForm>;
  static constexpr int unrolled = ahead ? Most : 1;
  using Vector = BlockView<type>;
  using Values = float[coded_block_values];

  __device__ __forceinline__ CodedTwoShot(const CodedArgs& args, Arrivals& arrivals)
      : a_(args),
        c_(args.comm),
        arrivals_(arrivals),
        state_(read_state(c_)),
        in_{static_cast<std::byte*>(const_cast<void*>(args.in)), args.count,
            reinterpret_cast<std::uint64_t>(args.in) % 16 == 0},
        out_{static_cast<std::byte*>(args.out), args.count, reinterpret_cast<std::uint64_t>(args.out) % 16 == 0},
        workers_(blockDim.x - 32),
        lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x >= workers_)
      post();
    else
      work();
    report();
    end_epoch(c_, state_, a_.chunks);
  }

 private:
  __device__ __forceinline__ void work() {
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < a_.chunks) {
        if (round >= a_.slots) wait_for(CommStep::room, &CommState::freed, round - a_.slots + 1);
        send(round);
        arrive(arrivals_.parts);
      }
      if (round >= 1 && round - 1 < a_.chunks) {
        wait_for(CommStep::part, &CommState::parts, round);
        add(round - 1);
        arrive(arrivals_.sums);
      }
      if (round < 2) continue;
      wait_for(CommStep::sum, &CommState::sums, round - 1);
      take(round - 2);
      arrive(arrivals_.freed);
    }
  }

  /// By the last warp.
  __device__ __forceinline__ void post() {
    const std::uint32_t warps = workers_ / 32;
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      if (round < a_.chunks) post_one(arrivals_.parts, warps, round, &CommState::parts);
      if (round >= 1 && round - 1 < a_.chunks) post_one(arrivals_.sums, warps, round - 1, &CommState::sums);
      if (round >= 2 && round - 2 + a_.slots < a_.chunks)
        post_one(arrivals_.freed, warps, round - 2, &CommState::freed);
    }
  }

  using Counters = std::uint32_t (CommState::*)[max_comm_ranks][max_comm_blocks];

  // NOTE: the workers' waits are bounded, so this one is.
  __device__ __forceinline__ void post_one(const std::uint32_t& arrived, std::uint32_t warps, std::uint32_t chunk,
                                           Counters kind) {
    if (lane_ == 0)
      while (*const_cast<const volatile std::uint32_t*>(&arrived) < warps * (chunk + 1)) __nanosleep(20);
    __threadfence_block();
    __syncwarp();
    if (lane_ >= c_.ranks || lane_ == c_.rank) return;
    fence_system();
    store_relaxed_system(&(state_of(c_, lane_).*kind)[c_.rank][blockIdx.x], state_.posts + chunk + 1);
  }

  /// By each warp: until all peers have posted `count` times in this call.
  __device__ __forceinline__ void wait_for(CommStep step, Counters kind, std::uint32_t count) {
    if (well_ && lane_ < c_.ranks && lane_ != c_.rank) {
      const std::uint32_t* counter = &(state_of(c_, c_.rank).*kind)[lane_][blockIdx.x];
      Patience patience;
      for (;;) {
        const std::uint32_t seen = load_acquire_system(counter) - state_.posts;
        if (static_cast<std::int32_t>(seen - count) >= 0) break;
        if (!patience.left(c_, state_.epoch, [&] { return Place{step, lane_, 0, count, seen}; })) {
          well_ = false;
          break;
        }
      }
    }
    well_ = __all_sync(whole_warp, well_);
  }

  /// Of this thread's batch `b`, in a chunk. A warp's blocks are neighbours, so that it stores whole lines of steps.
  __device__ __forceinline__ std::uint32_t index_of(int b) const { return (threadIdx.x / 32 * Batch + b) * 32 + lane_; }

  __device__ __forceinline__ std::uint32_t block_of(std::uint32_t chunk, int b) const {
    return (chunk * gridDim.x + blockIdx.x) * (workers_ * Batch) + index_of(b);
  }

  __device__ __forceinline__ std::byte* slot_of(const CodedChunk& step, std::uint32_t rank, std::uint32_t source,
                                                std::uint32_t chunk) const {
    const std::uint64_t number = static_cast<std::uint64_t>(chunk % a_.slots) * gridDim.x + blockIdx.x;
    return coded_slots_of(c_, rank, state_.epoch) + step.begin + source * step.source_stride + number * step.bytes;
  }

  __device__ __forceinline__ std::uint32_t peer_of(std::uint32_t i) const {
    return c_.rank + i < c_.ranks ? c_.rank + i : c_.rank + i - c_.ranks;
  }

  __device__ __forceinline__ bool has(std::uint32_t owner, std::uint32_t block) const {
    return block < a_.piece && owner * a_.piece + block < a_.value_blocks;
  }

  // A group's step and offset are stored by its first lane.
  static __device__ __forceinline__ bool leads(const Codec& c, std::uint32_t lane) {
    return lane % (static_cast<std::uint32_t>(c.group) / coded_block_values) == 0;
  }

  __device__ __forceinline__ void store_group(const Codec& c, const CodedChunk& step, std::byte* to,
                                              std::uint32_t index, const codec::Group& group) const {
    if (!leads(c, lane_)) return;
    const std::uint32_t number = index / (static_cast<std::uint32_t>(c.group) / coded_block_values);
    store_word(to + step.scale + number * codec::scale_bytes(c), codec::scale_bytes(c), group.scale_word);
    if (codec::offset_bytes(c) != 0)
      store_word(to + step.offset + number * codec::offset_bytes(c), codec::offset_bytes(c), group.offset_word);
  }

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    constexpr codec::Range range = codec::range_of(type);
    typename Vector::Raw raw[unrolled][Batch];
    const auto load = [&](std::uint32_t i) {
#pragma unroll
      for (int b = 0; b < Batch; ++b)
        if (i < c_.ranks && has(peer_of(i), block_of(chunk, b)))
          raw[i % unrolled][b] = in_.load(peer_of(i) * a_.piece + block_of(chunk, b));
    };
#pragma unroll unrolled
    for (std::uint32_t i = 0; i < Most; ++i)
      if (ahead && i != 0) load(i);
#pragma unroll unrolled
    for (std::uint32_t i = 0; i < Most; ++i) {
      if (i == 0 || i >= c_.ranks) continue;
      if (!ahead) load(i);
      std::byte* to = slot_of(a_.parts, peer_of(i), c_.rank, chunk);
#pragma unroll
      for (int b = 0; b < Batch; ++b) {
        Values values = {};
        const bool there = has(peer_of(i), block_of(chunk, b));
        if (there) Vector::to_float(raw[i % unrolled][b], values);
        const codec::Group group = group_of(c, range, values);
        if (!there) continue;
        store_planes(c, a_.parts, to, index_of(b), codec::to_planes(c.format, codec::encode(c, range, group, values)));
        store_group(c, a_.parts, to, index_of(b), group);
      }
    }
  }

  __device__ __forceinline__ void load_part(std::uint32_t chunk, int b, std::uint32_t source, codec::Planes& planes,
                                            GroupWords& words) const {
    const Codec c = FormOfParts::of(a_.parts.codec);
    const std::byte* from = slot_of(a_.parts, c_.rank, source, chunk);
    planes = load_planes(c, a_.parts, from, index_of(b));
    words = load_group_words(c, a_.parts, from, index_of(b));
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const Codec parts = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    codec::Planes planes[Batch][unrolled];
    GroupWords words[Batch][unrolled];
    typename Vector::Raw own[Batch];
    if (!well_) return;
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      if (!has(c_.rank, block_of(chunk, b))) continue;
      own[b] = in_.load(c_.rank * a_.piece + block_of(chunk, b));
#pragma unroll unrolled
      for (std::uint32_t s = 0; s < Most; ++s)
        if (ahead && s < c_.ranks && s != c_.rank)
          load_part(chunk, b, s, planes[b][s % unrolled], words[b][s % unrolled]);
    }
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      const bool there = has(c_.rank, block_of(chunk, b));
      Values values = {}, sum = {};
      if (there) Vector::to_float(own[b], values);
      const codec::Group own_group = group_of(parts, range, values);
      const codec::Codes own_codes = codec::encode(parts, range, own_group, values);
      codec::Bound bound;
#pragma unroll unrolled
      for (std::uint32_t s = 0; s < Most; ++s) {
        if (s >= c_.ranks || !there) continue;
        const bool mine = s == c_.rank;
        codec::Planes& came = planes[b][s % unrolled];
        GroupWords &words_came = words[b][s % unrolled], both = words_of(parts, own_group);
        if (!ahead && !mine) load_part(chunk, b, s, came, words_came);
        both.scale = mine ? both.scale : words_came.scale;
        both.offset = mine ? both.offset : words_came.offset;
        const codec::Group group = read_group(parts, both);
        codec::Codes codes = codec::from_planes(parts.format, came);
        codes.low = mine ? own_codes.low : codes.low;
        codes.high = mine ? own_codes.high : codes.high;
        codec::decode(parts, range, group, codes, values);
        codec::add_part(bound, parts, range, group);
#pragma unroll
        for (std::uint32_t i = 0; i < coded_block_values; ++i) sum[i] = s == 0 ? values[i] : sum[i] + values[i];
      }
      const codec::Group group = group_of(sums, range, sum);
      if (!there) continue;
      const codec::Codes codes = codec::encode(sums, range, group, sum);
      const codec::Planes coded = codec::to_planes(sums.format, codes);
#pragma unroll unrolled
      for (std::uint32_t i = 0; i < Most; ++i) {
        if (i == 0 || i >= c_.ranks) continue;
        std::byte* to = slot_of(a_.sums, peer_of(i), c_.rank, chunk);
        store_planes(sums, a_.sums, to, index_of(b), coded);
        store_group(sums, a_.sums, to, index_of(b), group);
      }
      codec::decode(sums, range, group, codes, values);
      const std::uint32_t block = c_.rank * a_.piece + block_of(chunk, b);
      out_.store(block, values);
      error_ = max(error_, codec::coded_output_error(bound, static_cast<int>(c_.ranks), type, sums, range, group));
      if (group.kind != codec::GroupKind::marked) continue;
#pragma unroll
      for (std::uint32_t i = 0; i < coded_block_values; ++i)
        if (std::uint64_t{block} * coded_block_values + i < a_.count && !isfinite(values[i])) ++non_finite_;
    }
  }

  __device__ __forceinline__ void take(std::uint32_t chunk) {
    const Codec c = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    codec::Planes planes[unrolled][Batch];
    GroupWords words[unrolled][Batch];
    if (!well_) return;
    const auto load = [&](std::uint32_t i) {
#pragma unroll
      for (int b = 0; b < Batch; ++b)
        if (i < c_.ranks && has(peer_of(i), block_of(chunk, b))) {
          const std::byte* from = slot_of(a_.sums, c_.rank, peer_of(i), chunk);
          planes[i % unrolled][b] = load_planes(c, a_.sums, from, index_of(b));
          words[i % unrolled][b] = load_group_words(c, a_.sums, from, index_of(b));
        }
    };
#pragma unroll unrolled
    for (std::uint32_t i = 0; i < Most; ++i)
      if (ahead && i != 0) load(i);
#pragma unroll unrolled
    for (std::uint32_t i = 0; i < Most; ++i) {
      if (i == 0 || i >= c_.ranks) continue;
      if (!ahead) load(i);
#pragma unroll
      for (int b = 0; b < Batch; ++b)
        if (has(peer_of(i), block_of(chunk, b))) {
          Values values;
          const codec::Codes codes = codec::from_planes(c.format, planes[i % unrolled][b]);
          codec::decode(c, range, read_group(c, words[i % unrolled][b]), codes, values);
          out_.store(peer_of(i) * a_.piece + block_of(chunk, b), values);
        }
    }
  }

  /// Positive floats order like their bits.
  __device__ __forceinline__ void report() {
    CommReport& r = state_of(c_, c_.rank).reports[state_.epoch & 1];
    const std::uint32_t worst = __reduce_max_sync(whole_warp, __float_as_uint(error_)),
                        odd = __reduce_add_sync(whole_warp, non_finite_);
    if (lane_ != 0 || threadIdx.x >= workers_) return;
    if (worst != 0) atomicMax(&r.error_bits, worst);
    if (odd != 0) atomicAdd(&r.non_finite, static_cast<unsigned long long>(odd));
  }

  const CodedArgs& a_;
  const Comm& c_;
  Arrivals& arrivals_;
  BlockState state_;
  Vector in_, out_;
  std::uint32_t workers_, lane_;
  bool well_ = true;
  float error_ = 0;
  std::uint32_t non_finite_ = 0;
};

template <Type type, int Most, int Batch, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(most_coded_workers + 32, 1) coded_all_reduce(const __grid_constant__ CodedArgs a) {
  __shared__ Arrivals arrivals;
  if (threadIdx.x == 0) arrivals = {};
  __syncthreads();
  wait_for_stream();
  CodedTwoShot<type, Most, Batch, FormOfParts, FormOfSums>(a, arrivals).run();
}

template <Type type, typename FormOfParts, typename FormOfSums>
CodedEntry coded_entry() {
  constexpr bool any = std::is_same_v<FormOfParts, AnyForm>;
  // What the compiler does not know takes registers.
  constexpr int batch = any ? 1 : 2;
  return {{FormOfParts::of({}), FormOfSums::of({})},
          any,
          {{reinterpret_cast<const void*>(&coded_all_reduce<type, 4, batch, FormOfParts, FormOfSums>), batch},
           {reinterpret_cast<const void*>(&coded_all_reduce<type, 8, 1, FormOfParts, FormOfSums>), 1}}};
}

template <CodeFormat format, bool asymmetric = false>
using Usual = Form<format, asymmetric, ScaleType::bf16>;

}  // namespace imbrex::cuda
