// The ring all-reduce through a codec, a baseline that is never chosen automatically: each hop decodes, adds and
// quantizes again.
//
// Rank r begins piece r - 1, which goes round until rank r - 1 adds the last part; then the quantized sums go round as
// they are. A chunk passes through 2 R - 1 stages on every rank; in round t, stage s deals with chunk t - s:
//
//   0                 code the own part of piece r - 1 into the next rank's slots
//   1 ... R - 2       decode what came of piece r - 1 - s, add the own part, code it into the next rank's slots
//   R - 1             the same for piece r, the own one, with the codec of the sums
//   R ... 2 R - 2     decode the sums of piece r - (s - R + 1) into the output, pass them on except the last
//
// Posts as in quantized_rank.cuh, but to the next rank only, one counter a stage; that of the last stage goes back to
// the previous rank, since the chunk's slots are free. What codings may have cost on the way goes with the codes: one
// number a warp, the largest of its blocks.
#pragma once

#include "collectives/cuda/quantized/quantized_rank.cuh"

namespace imbrex::cuda {

/// It lies in a block's shared memory; zero at first.
struct RingProgress {
  ChunkProgress stages[2 * max_comm_ranks - 1];
};

template <Type type>
class QuantizedRing : QuantizedRank<type, false> {
  using Base = QuantizedRank<type, false>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::workers_, Base::well_, Base::lane_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::store_quantized;
  using typename Base::Counters;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ QuantizedRing(const QuantizedArgs& args, RingProgress& progress)
      : Base(args), stages_(2 * c_.ranks - 1), ring_(progress) {}

  __device__ __forceinline__ void run() {
    well_ = __all_sync(whole_warp, well_);
    const bool posts = threadIdx.x >= workers_;
    for (std::uint32_t round = 0; round < a_.chunks + stages_ - 1; ++round) {
      if (!posts) maybe_pause(c_, state_.epoch, round);
#pragma unroll 1
      for (std::uint32_t s = 0; s < stages_; ++s) {
        const std::uint32_t chunk = round - s;
        if (chunk >= a_.chunks) continue;
        if (posts) {
          post(s, chunk);
        } else {
          work(s, chunk);
          end_step(ring_.stages[s], chunk, well_);
        }
      }
    }
    this->end();
  }

 private:
  __device__ __forceinline__ std::uint32_t before(std::uint32_t distance) const {
    return (c_.rank + 2 * c_.ranks - distance) % c_.ranks;
  }

  /// By the warp that posts: what a stage has sent, or that a chunk's slots are free.
  __device__ __forceinline__ void post(std::uint32_t s, std::uint32_t chunk) {
    if (c_.ranks == 1) return;
    well_ = await_step(ring_.stages[s], workers_ / 32, chunk) && well_;
    if (!well_ || lane_ != 0) return;
    device::fence_system();
    device::store_relaxed(ring_counter(c_, s), state_.posts + chunk + 1);
  }

  /// By each warp: until the neighbour has posted `count` chunks after its stage.
  __device__ __forceinline__ void wait_one(CommStep step, std::uint32_t stage, std::uint32_t peer,
                                           std::uint32_t count) {
    if (well_ && lane_ == 0) {
      const std::uint32_t* counter = &state_of(c_, c_.rank).ring[stage][blockIdx.x];
      BoundedPolls polls;
      for (;;) {
        const std::uint32_t seen = device::load_acquire(counter) - state_.posts;
        if (static_cast<std::int32_t>(seen - count) >= 0) break;
        if (!polls.left(c_, state_.epoch, [&] { return Place{step, peer, 0, count, seen}; })) {
          well_ = false;
          break;
        }
      }
    }
    well_ = __all_sync(whole_warp, well_);
    __syncwarp();  // a vote orders no memory: what one lane has acquired is the others' from here on
  }

  __device__ __forceinline__ bool has(std::uint32_t owner, std::uint32_t block) const {
    return block < a_.piece && owner * a_.piece + block < a_.value_blocks;
  }

  __device__ __forceinline__ float& error_word(const QuantizedChunk& step, std::byte* slot) const {
    return reinterpret_cast<float*>(slot + step.bytes - ring_trailer_bytes)[threadIdx.x / 32];
  }

  __device__ __forceinline__ void work(std::uint32_t s, std::uint32_t chunk) {
    const std::uint32_t last = c_.ranks - 1;
    if (s == 0 && chunk >= a_.slots && c_.ranks > 1)
      wait_one(CommStep::room, stages_ - 1, next_rank(c_), chunk - a_.slots + 1);
    if (s > 0) wait_one(s <= last ? CommStep::part : CommStep::sum, s - 1, previous_rank(c_), chunk + 1);
    if (!well_) return;
    if (s <= last)
      add(s, chunk);
    else
      pass(s - last, chunk);
  }

  /// Stages up to the owner's.
  __device__ __forceinline__ void add(std::uint32_t s, std::uint32_t chunk) {
    constexpr codec::Range range = codec::range_of(type);
    const bool owner = s + 1 == c_.ranks;
    const std::uint32_t piece = owner ? c_.rank : before(s + 1), block = block_of(chunk), place = place_of(chunk);
    const bool there = has(piece, block);
    const QuantizedChunk& step = owner ? a_.sums : a_.parts;
    Values values = {};
    if (there) Vector::to_float(in_.load(piece * a_.piece + block), values);
    float error = 0;
    if (s > 0) {
      std::byte* from = slot_of(a_.parts, c_.rank, s - 1, place);
      const Codec parts = a_.parts.codec;
      float coding = 0, magnitude = 0;
      if (there) {
        const Part came = this->load_part(parts, from, index_of());
        const codec::Group group = read_group(parts, came.words);
        Values sum;
        codec::decode(parts, range, group, codec::from_planes(parts.format, came.planes), sum);
        coding = codec::error_of(parts, group);
#pragma unroll
        for (std::uint32_t i = 0; i < quantized_block_values; ++i) {
          values[i] = sum[i] + values[i];
          if (fabsf(values[i]) < range.overflow) magnitude = fmaxf(magnitude, fabsf(values[i]));
        }
      }
      coding = largest(coding);
      magnitude = largest(magnitude);
      // A partial sum above the type's largest, which does not round to infinity, is decoded as the largest.
      const float cut = fmaxf(0, magnitude - range.largest);
      error = codec::raised(
          codec::multiply_add(magnitude, 0x1.01p-24f, __ldcg(&error_word(a_.parts, from)) + coding + cut));
    }
    const codec::Group group = group_of(step.codec, range, values);
    const codec::Codes codes = codec::encode(step.codec, range, group, values);
    if (c_.ranks > 1) {
      std::byte* to = slot_of(step, next_rank(c_), owner ? 0 : s, place);
      if (there)
        store_quantized(step.codec, step, to, index_of(), group, codec::to_planes(step.codec.format, codes), values);
      if (lane_ == 0 && !owner) error_word(step, to) = error;
    }
    if (!owner || !there) return;
    codec::decode(step.codec, range, group, codes, values);
    out_.store(piece * a_.piece + block, values);
    this->error_ = max(this->error_, codec::quantized_output_error({error, 0}, static_cast<int>(c_.ranks), type,
                                                                   step.codec, range, group));
    if (group.kind == codec::GroupKind::marked) this->count_non_finite(piece * a_.piece + block, values);
  }

  /// The largest of positive floats in a warp.
  static __device__ __forceinline__ float largest(float value) {
    return __uint_as_float(__reduce_max_sync(whole_warp, __float_as_uint(value)));
  }

  /// Sums that have made `hop` hops.
  __device__ __forceinline__ void pass(std::uint32_t hop, std::uint32_t chunk) {
    constexpr codec::Range range = codec::range_of(type);
    const std::uint32_t owner = before(hop), block = block_of(chunk), place = place_of(chunk);
    if (!has(owner, block)) return;
    const Codec c = a_.sums.codec;
    const std::byte* from = slot_of(a_.sums, c_.rank, hop - 1, place);
    const codec::Planes planes = load_planes(c, a_.sums, from, index_of());
    const codec::Group group = read_group(c, load_group_words(c, a_.sums, from, index_of()));
    Values values;
    codec::decode(c, range, group, codec::from_planes(c.format, planes), values);
    if (hop + 1 < c_.ranks)
      store_quantized(c, a_.sums, slot_of(a_.sums, next_rank(c_), hop, place), index_of(), group, planes, values);
    out_.store(owner * a_.piece + block, values);
  }

  std::uint32_t stages_;
  RingProgress& ring_;
};

template <Type type>
__global__ void __launch_bounds__(most_quantized_workers + 32, 1)
    quantized_ring(const __grid_constant__ QuantizedArgs a) {
  __shared__ RingProgress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  device::wait_for_stream();
  QuantizedRing<type>(a, progress).run();
}

}  // namespace imbrex::cuda
