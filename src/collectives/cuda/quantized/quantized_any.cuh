// The two-shot all-reduce through any codec, with a tolerance if asked, as one kernel. The usual pairs of codecs have
// faster ones (quantized_staged.cuh); this one looks its codec up as it runs.
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
// Posts and unquantized groups: quantized_rank.cuh.
#pragma once

#include "collectives/cuda/quantized/quantized_rank.cuh"

namespace imbrex::cuda {

template <Type type>
class QuantizedTwoShot : QuantizedRank<type, true> {
  using Base = QuantizedRank<type, true>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::workers_, Base::well_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::peer_of, Base::has;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ QuantizedTwoShot(const QuantizedArgs& args, Progress& progress)
      : Base(args), progress_(progress) {}

  __device__ __forceinline__ void run() {
    if (!is_turn(c_, state_)) return;
    if (threadIdx.x >= workers_)
      post();
    else
      work();
    this->end();
  }

 private:
  __device__ __forceinline__ void work() {
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < a_.chunks) {
        if (round >= a_.slots) this->wait_for(CommStep::room, &CommState::freed, round - a_.slots + 1);
        if (well_ || round == 0) send(round);
        end_step(progress_.parts, round, well_);
      }
      if (round >= 1 && round - 1 < a_.chunks) {
        this->wait_for(CommStep::part, &CommState::parts, round);
        if (well_) add(round - 1);
        end_step(progress_.sums, round - 1, well_);
      }
      if (round < 2) continue;
      this->wait_for(CommStep::sum, &CommState::sums, round - 1);
      if (well_) take(round - 2);
      end_step(progress_.freed, round - 2, well_);
    }
  }

  __device__ __forceinline__ void post() {
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      if (round < a_.chunks) this->post_one(progress_.parts, round, &CommState::parts);
      if (round >= 1 && round - 1 < a_.chunks) this->post_one(progress_.sums, round - 1, &CommState::sums);
      if (round >= 2 && round - 2 + a_.slots < a_.chunks) this->post_one(progress_.freed, round - 2, &CommState::freed);
    }
  }

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk), block = block_of(chunk);
    const Codec c = a_.parts.codec;
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i) {
      const bool there = has(peer_of(i), block);
      Values values = {};
      if (there) Vector::to_float(in_.load(peer_of(i) * a_.piece + block), values);
      const codec::Group group =
          this->group_for(c, values, there, a_.part_allowance, is_real(peer_of(i) * a_.piece + block));
      if (!there || !well_) continue;
      this->store_quantized(c, a_.parts, slot_of(a_.parts, peer_of(i), c_.rank, place), index_of(), group,
                            codec::to_planes(c.format, codec::encode(c, range, group, values)), values);
    }
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk), index = index_of();
    const Codec parts = a_.parts.codec, sums = a_.sums.codec;
    constexpr codec::Range range = codec::range_of(type);
    const bool there = has(c_.rank, block_of(chunk));
    const std::uint32_t block = c_.rank * a_.piece + block_of(chunk);
    Values values = {}, sum = {};
    typename Vector::Raw own{};
    if (there) own = in_.load(block);
    if (there) Vector::to_float(own, values);
    const bool real = is_real(block);
    const OwnPart own_part = this->own_part(parts, values, there, real);
    codec::Bound bound;
#pragma unroll 1
    for (std::uint32_t s = 0; s < c_.ranks; ++s) {
      const std::byte* from = slot_of(a_.parts, c_.rank, s, place);
      Part came{};
      if (s != c_.rank && there) came = this->load_part(parts, from, index);
      this->add_part(parts, s, own_part, own, came, from, index, there, bound, sum);
    }
    if (__any_sync(whole_warp, there && !real)) fill_up(block, sum, bound);
    if (!there) {
#pragma unroll
      for (std::uint32_t i = 0; i < quantized_block_values; ++i) sum[i] = 0;
    }
    const codec::Group group = this->group_for(sums, sum, there, allowance(sums, bound.errors), real);
    if (a_.tolerance >= 0) note_error(bound, sums, group, sum, there);
    if (!there) return;
    const codec::Codes codes = codec::encode(sums, range, group, sum);
    const codec::Planes quantized = codec::to_planes(sums.format, codes);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      this->store_quantized(sums, a_.sums, slot_of(a_.sums, peer_of(i), c_.rank, place), index, group, quantized, sum);
    if (group.kind == codec::GroupKind::raw) {
      out_.store(block, sum);
      this->count_non_finite(block, sum);
      return;
    }
    codec::decode(sums, range, group, codes, values);
    out_.store(block, values);
    if (a_.tolerance < 0) this->note_quantized_error(bound, sums, group);
    if (group.kind == codec::GroupKind::marked) this->count_non_finite(block, values);
  }

  /// Whether a block has values of the vector.
  __device__ __forceinline__ bool is_real(std::uint64_t block) const {
    return block * quantized_block_values < a_.count;
  }

  /// Blocks that fill up the last group of sums hold copies of the last sum: their own, of parts in groups without the
  /// last value's neighbours, would be others. By a whole warp, which has the last block where it has any after it, as
  /// both lie in one group.
  __device__ __forceinline__ void fill_up(std::uint32_t block, Values& sum, codec::Bound& bound) const {
    const auto last = static_cast<std::uint32_t>((a_.count - 1) / quantized_block_values);
    const bool fills = block > last;
    const std::uint32_t lane = this->lane_ - (fills ? block - last : 0);
    float value = sum[0];
#pragma unroll
    for (std::uint32_t i = 1; i < quantized_block_values; ++i)
      if (i == (a_.count - 1) % quantized_block_values) value = sum[i];
    value = __shfl_sync(whole_warp, value, static_cast<int>(lane));
    const codec::Bound of_last{__shfl_sync(whole_warp, bound.errors, static_cast<int>(lane)),
                               __shfl_sync(whole_warp, bound.roundings, static_cast<int>(lane))};
    if (!fills) return;
    bound = of_last;
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i) sum[i] = value;
  }

  /// What the tolerance leaves to coding the sums of a group. By a whole warp.
  __device__ __forceinline__ float allowance(const Codec& sums, float errors) const {
    for (int distance = 1; distance < sums.group / static_cast<int>(quantized_block_values); distance *= 2)
      errors = fmaxf(errors, __shfl_xor_sync(whole_warp, errors, distance));
    return codec::sum_allowance(a_.tolerance, errors);
  }

  /// With unquantized groups among them. By a whole warp.
  __device__ __forceinline__ void note_error(const codec::Bound& bound, const Codec& sums, const codec::Group& group,
                                             const Values& sum, bool there) {
    constexpr codec::Range range = codec::range_of(type);
    Values rounded;
#pragma unroll
    for (std::uint32_t i = 0; i < quantized_block_values; ++i) rounded[i] = round_to<type>(sum[i]);
    const float magnitude = this->finite_magnitude(sums.group, rounded);
    const int ranks = static_cast<int>(c_.ranks);
    const float error = group.kind == codec::GroupKind::raw
                            ? codec::raw_output_error(bound, ranks, type, magnitude)
                            : codec::quantized_output_error(bound, ranks, type, sums, range, group);
    if (there) this->error_ = max(this->error_, error);
  }

  __device__ __forceinline__ void take(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk), index = index_of(), block = block_of(chunk);
    const Codec c = a_.sums.codec;
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i) {
      if (!has(peer_of(i), block)) continue;
      const std::byte* from = slot_of(a_.sums, c_.rank, peer_of(i), place);
      const Part came = this->load_part(c, a_.sums, from, index);
      const codec::Group group = read_group(c, came.words);
      Values values;
      if (group.kind == codec::GroupKind::raw)
        this->load_raw(a_.sums, from, index, values);
      else
        codec::decode(c, range, group, codec::from_planes(c.format, came.planes), values);
      out_.store(peer_of(i) * a_.piece + block, values);
    }
  }

  Progress& progress_;
};

template <Type type>
__global__ void __launch_bounds__(most_quantized_workers + 32, 1)
    quantized_all_reduce(const __grid_constant__ QuantizedArgs a) {
  __shared__ Progress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  device::wait_for_stream();
  QuantizedTwoShot<type>(a, progress).run();
}

}  // namespace imbrex::cuda
