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
// Posts and raw groups: coded_rank.cuh.
#pragma once

#include "collectives/cuda/coded_entries.hpp"
#include "collectives/cuda/coded_rank.cuh"

namespace imbrex::cuda {

template <Type type, int Most, int Batch, typename FormOfParts, typename FormOfSums>
class CodedTwoShot : CodedRank<type, Batch, std::is_same_v<FormOfParts, AnyForm>> {
  // What the compiler does not know takes registers: then loops over ranks stay loops, and loads are not made ahead.
  static constexpr bool any = std::is_same_v<FormOfParts, AnyForm>, ahead = Most <= 4 && !any;
  static constexpr int unrolled = ahead ? Most : 1;
  using Base = CodedRank<type, Batch, any>;
  using Base::a_, Base::c_, Base::progress_, Base::state_, Base::in_, Base::out_, Base::workers_, Base::well_;
  using Base::index_of, Base::block_of, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ CodedTwoShot(const CodedArgs& args, Progress& progress) : Base(args, progress) {}

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
        send(round);
        end_step(progress_.parts, round);
      }
      if (round >= 1 && round - 1 < a_.chunks) {
        this->wait_for(CommStep::part, &CommState::parts, round);
        if (well_) add(round - 1);
        end_step(progress_.sums, round - 1);
      }
      if (round < 2) continue;
      this->wait_for(CommStep::sum, &CommState::sums, round - 1);
      if (well_) take(round - 2);
      end_step(progress_.freed, round - 2);
    }
  }

  __device__ __forceinline__ void post() {
    for (std::uint32_t round = 0; round < a_.chunks + 2; ++round) {
      if (round < a_.chunks) this->post_one(progress_.parts, round, &CommState::parts);
      if (round >= 1 && round - 1 < a_.chunks) this->post_one(progress_.sums, round - 1, &CommState::sums);
      if (round >= 2 && round - 2 + a_.slots < a_.chunks) this->post_one(progress_.freed, round - 2, &CommState::freed);
    }
  }

  __device__ __forceinline__ bool has(std::uint32_t owner, std::uint32_t block) const {
    return block < a_.piece && owner * a_.piece + block < a_.value_blocks;
  }

  __device__ __forceinline__ void send(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
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
      std::byte* to = slot_of(a_.parts, peer_of(i), c_.rank, place);
#pragma unroll
      for (int b = 0; b < Batch; ++b) {
        Values values = {};
        const bool there = has(peer_of(i), block_of(chunk, b));
        if (there) Vector::to_float(raw[i % unrolled][b], values);
        const codec::Group group = this->group_for(c, values, there, a_.part_allowance);
        if (!there) continue;
        this->store_coded(c, a_.parts, to, index_of(b), group,
                          codec::to_planes(c.format, codec::encode(c, range, group, values)), values);
      }
    }
  }

  __device__ __forceinline__ void add(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
    const Codec parts = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    Part part[Batch][unrolled];
    typename Vector::Raw own[Batch];
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      if (!has(c_.rank, block_of(chunk, b))) continue;
      own[b] = in_.load(c_.rank * a_.piece + block_of(chunk, b));
#pragma unroll unrolled
      for (std::uint32_t s = 0; s < Most; ++s)
        if (ahead && s < c_.ranks && s != c_.rank)
          part[b][s % unrolled] = this->load_part(parts, slot_of(a_.parts, c_.rank, s, place), index_of(b));
    }
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      const bool there = has(c_.rank, block_of(chunk, b));
      Values values = {}, sum = {};
      if (there) Vector::to_float(own[b], values);
      const OwnPart own_part = this->own_part(parts, values, there);
      codec::Bound bound;
#pragma unroll unrolled
      for (std::uint32_t s = 0; s < Most; ++s) {
        if (s >= c_.ranks) continue;
        Part& came = part[b][s % unrolled];
        const std::byte* from = slot_of(a_.parts, c_.rank, s, place);
        if (!ahead && s != c_.rank && there) came = this->load_part(parts, from, index_of(b));
        this->add_part(parts, s, own_part, own[b], came, from, index_of(b), there, bound, sum);
      }
      if (!there) {
#pragma unroll
        for (std::uint32_t i = 0; i < coded_block_values; ++i) sum[i] = 0;
      }
      const codec::Group group = this->group_for(sums, sum, there, any ? allowance(sums, bound.errors) : 0);
      if (any && a_.tolerance >= 0) note_error(bound, sums, group, sum, there);
      if (!there) continue;
      const codec::Codes codes = codec::encode(sums, range, group, sum);
      const codec::Planes coded = codec::to_planes(sums.format, codes);
#pragma unroll unrolled
      for (std::uint32_t i = 0; i < Most; ++i) {
        if (i == 0 || i >= c_.ranks) continue;
        this->store_coded(sums, a_.sums, slot_of(a_.sums, peer_of(i), c_.rank, place), index_of(b), group, coded, sum);
      }
      const std::uint32_t block = c_.rank * a_.piece + block_of(chunk, b);
      if (any && group.kind == codec::GroupKind::raw) {
        out_.store(block, sum);
        this->count_non_finite(block, sum);
        continue;
      }
      codec::decode(sums, range, group, codes, values);
      out_.store(block, values);
      if (!any || a_.tolerance < 0)
        this->error_ =
            max(this->error_, codec::coded_output_error(bound, static_cast<int>(c_.ranks), type, sums, range, group));
      if (group.kind == codec::GroupKind::marked) this->count_non_finite(block, values);
    }
  }

  /// What the tolerance leaves to coding the sums of a group. By a whole warp.
  __device__ __forceinline__ float allowance(const Codec& sums, float errors) const {
    for (int distance = 1; distance < sums.group / static_cast<int>(coded_block_values); distance *= 2)
      errors = fmaxf(errors, __shfl_xor_sync(whole_warp, errors, distance));
    return codec::sum_allowance(a_.tolerance, errors);
  }

  /// With raw groups among them. By a whole warp.
  __device__ __forceinline__ void note_error(const codec::Bound& bound, const Codec& sums, const codec::Group& group,
                                             const Values& sum, bool there) {
    constexpr codec::Range range = codec::range_of(type);
    Values rounded;
#pragma unroll
    for (std::uint32_t i = 0; i < coded_block_values; ++i) rounded[i] = round_to<type>(sum[i]);
    const float magnitude = this->finite_magnitude(sums.group, rounded);
    const int ranks = static_cast<int>(c_.ranks);
    const float error = group.kind == codec::GroupKind::raw
                            ? codec::raw_output_error(bound, ranks, type, magnitude)
                            : codec::coded_output_error(bound, ranks, type, sums, range, group);
    if (there) this->error_ = max(this->error_, error);
  }

  __device__ __forceinline__ void take(std::uint32_t chunk) {
    const std::uint32_t place = place_of(chunk);
    const Codec c = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    codec::Planes planes[unrolled][Batch];
    GroupWords words[unrolled][Batch];
    const auto load = [&](std::uint32_t i) {
#pragma unroll
      for (int b = 0; b < Batch; ++b)
        if (i < c_.ranks && has(peer_of(i), block_of(chunk, b))) {
          const std::byte* from = slot_of(a_.sums, c_.rank, peer_of(i), place);
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
          const codec::Group group = read_group(c, words[i % unrolled][b]);
          if (any && group.kind == codec::GroupKind::raw)
            this->load_raw(a_.sums, slot_of(a_.sums, c_.rank, peer_of(i), place), index_of(b), values);
          else
            codec::decode(c, range, group, codec::from_planes(c.format, planes[i % unrolled][b]), values);
          out_.store(peer_of(i) * a_.piece + block_of(chunk, b), values);
        }
    }
  }
};

template <Type type, int Most, int Batch, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(most_coded_workers + 32, 1) coded_all_reduce(const __grid_constant__ CodedArgs a) {
  __shared__ Progress progress;
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  wait_for_stream();
  CodedTwoShot<type, Most, Batch, FormOfParts, FormOfSums>(a, progress).run();
}

template <Type type, typename FormOfParts, typename FormOfSums>
CodedEntry coded_entry() {
  constexpr bool any = std::is_same_v<FormOfParts, AnyForm>;
  constexpr int wide = any ? 1 : 2;
  const auto kernel = [](auto function, std::uint32_t batch) {
    return CodedKernel{reinterpret_cast<const void*>(function), batch};
  };
  return {{FormOfParts::of({}), FormOfSums::of({})},
          any,
          {kernel(&coded_all_reduce<type, 4, 1, FormOfParts, FormOfSums>, 1),
           kernel(&coded_all_reduce<type, 4, wide, FormOfParts, FormOfSums>, wide),
           kernel(&coded_all_reduce<type, 8, 1, FormOfParts, FormOfSums>, 1)}};
}

template <CodeFormat format, bool asymmetric = false>
using Usual = Form<format, asymmetric, ScaleType::bf16>;

}  // namespace imbrex::cuda
