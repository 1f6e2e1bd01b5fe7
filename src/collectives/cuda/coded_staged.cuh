// The two-step all-reduce through a codec that the compiler knows, as one kernel whose warps each do one thing.
//
// The vector is cut as in the exact two-shot (exact_kernels.cuh), in blocks of eight values: pieces, chunks, slots. Of
// a block's warps
//
//   senders   code chunk k of every other rank's piece, one after the other, into stages in shared memory,
//   adders    wait for the peers' parts of chunk k of this rank's piece, decode and add them by rank number, its own
//             part decoded from codes like the others; code the sums into a stage; decode the output from these codes,
//             too, so all ranks get the same bits,
//   takers    wait for the peers' sums of chunk k of the other pieces, and decode them into the output,
//   posters   send stages to the peers by bulk copies, and post once they have arrived; the last one posts what is
//             freed. A fence waits for all that its SM has under way, so several take chunks in turn.
//
// Nobody meets in a round: each kind is as many chunks ahead as stages and slots let it, so that loads, codes and links
// are busy at once. Stores that wait for a link would make the SM's other warps wait, too; bulk copies do not.
// NOTE: on four H200s teams of adders that take chunks in turn, and more warps at fewer registers, gained nothing.
//
// Posts and counters: coded_rank.cuh.
#pragma once

#include "collectives/cuda/bulk.cuh"
#include "collectives/cuda/coded_entries.hpp"
#include "collectives/cuda/coded_rank.cuh"
#include "collectives/cuda/coded_usual.cuh"

namespace imbrex::cuda {

/// Of a block's shared memory; zero at first. Stages are filled in order, and counted from the call's begin.
struct StagedProgress {
  Ended parts, sums;                                                        ///< stages that each warp has filled
  Ended taken;                                                              ///< chunks
  std::uint32_t parts_read[max_comm_posters], sums_read[max_comm_posters];  ///< of each poster's stages, up to there
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
class CodedStaged : CodedRank<type, false> {
  static constexpr CodedRoles roles = roles_of(Most);
  static_assert(roles.part_posters <= max_comm_posters && roles.sum_posters <= max_comm_posters);
  static constexpr bool ahead = Most <= 4;
  static constexpr int unrolled = ahead ? Most : 1;
  using Base = CodedRank<type, false>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::well_, Base::lane_;
  using Base::first_of, Base::has, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::Counters;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ CodedStaged(const CodedArgs& args, StagedProgress& progress, std::byte* stages)
      : Base(args), progress_(progress), stages_(stages), peers_(args.comm.ranks - 1) {}

  __device__ __forceinline__ void run() {
    std::uint32_t warp = threadIdx.x / 32;
    const auto is = [&](std::uint32_t count) {
      if (warp < count) return true;
      warp -= count;
      return false;
    };
    if (is(roles.senders))
      send(warp);
    else if (is(roles.adders))
      add(warp);
    else if (is(roles.takers))
      take(warp);
    else if (is(roles.part_posters))
      post_parts(warp);
    else if (is(roles.sum_posters))
      post_sums(warp);
    else
      post_freed();
    this->end();
  }

 private:
  __device__ __forceinline__ std::byte* part_stage(std::uint32_t fill) const {
    return stages_ + fill % part_stage_count * a_.parts.bytes;
  }
  __device__ __forceinline__ std::byte* sum_stage(std::uint32_t chunk) const {
    return stages_ + part_stage_count * a_.parts.bytes + chunk % sum_stage_count * a_.sums.bytes;
  }

  /// Of a warp's i-th block of values in a chunk, among `warps` warps.
  __device__ __forceinline__ std::uint32_t index_of(std::uint32_t warp, std::uint32_t warps, std::uint32_t i) const {
    return (i * warps + warp) * 32 + lane_;
  }

  // Fill f of the parts' stages: chunk f / peers, for the peer f % peers + 1 ranks on.
  __device__ __forceinline__ void send(std::uint32_t warp) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    constexpr codec::Range range = codec::range_of(type);
    const std::uint32_t warps = a_.span / 32, rounds = (warps + roles.senders - 1) / roles.senders,
                        fills = a_.chunks * peers_;
    typename Vector::Raw next{};
    const auto load = [&](std::uint32_t chunk, std::uint32_t peer, std::uint32_t i) {
      const std::uint32_t index = index_of(warp, roles.senders, i), block = first_of(chunk) + index;
      if (chunk < a_.chunks && index < a_.span && has(peer_of(peer), block))
        next = in_.load(peer_of(peer) * a_.piece + block);
    };
    load(0, 1, 0);
    std::uint32_t chunk = 0, peer = 1;
#pragma unroll 1
    for (std::uint32_t fill = 0; fill < fills; ++fill) {
      const std::uint32_t next_chunk = peer == peers_ ? chunk + 1 : chunk, next_peer = peer == peers_ ? 1 : peer + 1;
      maybe_pause(c_, state_.epoch, fill);
      if (fill >= part_stage_count) {
        const std::uint32_t last = fill - part_stage_count;
        await_read(progress_.parts_read[last / peers_ % roles.part_posters], last + 1);
      }
      std::byte* stage = part_stage(fill);
#pragma unroll 1
      for (std::uint32_t i = 0; i < rounds; ++i) {
        const std::uint32_t index = index_of(warp, roles.senders, i);
        const typename Vector::Raw raw = next;
        if (i + 1 < rounds)
          load(chunk, peer, i + 1);
        else
          load(next_chunk, next_peer, 0);
        if (index - lane_ >= a_.span) continue;
        Values values = {};
        const bool there = has(peer_of(peer), first_of(chunk) + index);
        if (there) Vector::to_float(raw, values);
        bool usual = true;
        codec::Group group = usual_group_of<type>(c, values, usual);
        codec::Codes codes = codec::encode(c, range, group, values);
        if (!__all_sync(whole_warp, usual)) {
          group = group_of(c, range, values);
          codes = codec::encode(c, range, group, values);
        }
        this->store_coded(c, a_.parts, stage, index, group, codec::to_planes(c.format, codes), values);
      }
      fence_for_bulk();
      end_step(progress_.parts, warp, fill);
      chunk = next_chunk, peer = next_peer;
    }
  }

  __device__ __forceinline__ void add(std::uint32_t warp) {
    const Codec parts = FormOfParts::of(a_.parts.codec);
    const std::uint32_t warps = a_.span / 32, rounds = (warps + roles.adders - 1) / roles.adders;
    // Into the second-level cache, where the parts are, too: no registers are held for it.
    const auto prefetch = [&](std::uint32_t chunk, std::uint32_t i) {
      const std::uint32_t index = index_of(warp, roles.adders, i), block = first_of(chunk) + index;
      if (chunk < a_.chunks && index < a_.span && has(c_.rank, block)) in_.prefetch(c_.rank * a_.piece + block);
    };
    prefetch(0, 0);
#pragma unroll 1
    for (std::uint32_t chunk = 0; chunk < a_.chunks; ++chunk) {
      maybe_pause(c_, state_.epoch, chunk);
      const std::uint32_t place = place_of(chunk);
      this->wait_for(CommStep::part, &CommState::parts, chunk + 1, chunk % roles.part_posters);
      if (chunk >= sum_stage_count) {
        const std::uint32_t last = chunk - sum_stage_count;
        await_read(progress_.sums_read[last % roles.sum_posters], last + 1);
      }
      std::byte* stage = sum_stage(chunk);
#pragma unroll 1
      for (std::uint32_t i = 0; i < rounds; ++i) {
        const std::uint32_t index = index_of(warp, roles.adders, i);
        const bool there = well_ && has(c_.rank, first_of(chunk) + index) && index < a_.span;
        typename Vector::Raw own{};
        if (there) own = in_.load(c_.rank * a_.piece + first_of(chunk) + index);
        Part part[unrolled];
#pragma unroll unrolled
        for (std::uint32_t s = 0; s < Most; ++s)
          if (ahead && there && s < c_.ranks && s != c_.rank)
            part[s % unrolled] = this->load_part(parts, slot_of(a_.parts, c_.rank, s, place), index);
        if (i + 1 < rounds)
          prefetch(chunk, i + 1);
        else
          prefetch(chunk + 1, 0);
        if (index - lane_ < a_.span) add_block(chunk, index, place, stage, own, part, there);
      }
      fence_for_bulk();
      end_step(progress_.sums, warp, chunk);
    }
  }

  __device__ __forceinline__ void add_block(std::uint32_t chunk, std::uint32_t index, std::uint32_t place,
                                            std::byte* stage, const typename Vector::Raw& own, Part (&part)[unrolled],
                                            bool there) {
    const Codec sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    Values sum;
    codec::Bound bound;
    bool usual = true;
    add_usual_parts(index, place, own, part, there, bound, sum, usual);
    codec::Group group = usual_group_of<type>(sums, sum, usual);
    codec::Codes codes = codec::encode(sums, range, group, sum);
    Values values;
    if (__all_sync(whole_warp, usual)) {
      codec::decode_numbers(sums, group, codes, values);
    } else {
      bound = {};
      add_parts(chunk, index, there, bound, sum);
      group = group_of(sums, range, sum);
      codes = codec::encode(sums, range, group, sum);
      codec::decode(sums, range, group, codes, values);
    }
    this->store_coded(sums, a_.sums, stage, index, group, codec::to_planes(sums.format, codes), sum);
    if (!there) return;
    const std::uint32_t block = c_.rank * a_.piece + first_of(chunk) + index;
    out_.store(block, values);
    this->note_coded_error(bound, sums, group);
    if (group.kind == codec::GroupKind::marked) this->count_non_finite(block, values);
  }

  /// Sums by rank number: 0 where nothing is there. By a whole warp. Reads all anew: nothing is kept for so rare a
  /// case.
  __device__ __forceinline__ void add_parts(std::uint32_t chunk, std::uint32_t index, bool there, codec::Bound& bound,
                                            Values& sum) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    const std::uint32_t place = place_of(chunk);
    Values values = {};
    typename Vector::Raw own{};
    if (there) own = in_.load(c_.rank * a_.piece + first_of(chunk) + index);
    if (there) Vector::to_float(own, values);
    const OwnPart own_part = this->own_part(c, values, there);
#pragma unroll 1
    for (std::uint32_t s = 0; s < c_.ranks; ++s) {
      const std::byte* from = slot_of(a_.parts, c_.rank, s, place);
      Part came{};
      if (s != c_.rank && there) came = this->load_part(c, from, index);
      this->add_part(c, s, own_part, own, came, from, index, there, bound, sum);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < coded_block_values; ++i) sum[i] = there ? sum[i] : 0;
  }

  /// The same where all groups are usual.
  __device__ __forceinline__ void add_usual_parts(std::uint32_t index, std::uint32_t place,
                                                  const typename Vector::Raw& own, Part (&part)[unrolled], bool there,
                                                  codec::Bound& bound, Values& sum, bool& usual) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    constexpr codec::Range range = codec::range_of(type);
    Values values = {};
    if (there) Vector::to_float(own, values);
    const codec::Group own_group = usual_group_of<type>(c, values, usual);
    const codec::Codes own_codes = codec::encode(c, range, own_group, values);
#pragma unroll
    for (std::uint32_t i = 0; i < coded_block_values; ++i) sum[i] = 0;
#pragma unroll unrolled
    for (std::uint32_t s = 0; s < Most; ++s) {
      if (s >= c_.ranks) continue;
      Part& came = part[s % unrolled];
      if (!ahead && s != c_.rank && there) came = this->load_part(c, slot_of(a_.parts, c_.rank, s, place), index);
      const bool mine = s == c_.rank;
      const std::uint32_t words = mine ? words_of(c, own_group).scale : there ? came.words.scale : 0;
      const codec::Group group = read_usual_group<type>(c, {words, 0}, usual);
      codec::Codes codes = codec::from_planes(c.format, came.planes);
      codes.low = mine ? own_codes.low : codes.low;
      codes.high = mine ? own_codes.high : codes.high;
      codec::decode_numbers(c, group, codes, values);
      codec::add_part(bound, c, range, group);
#pragma unroll
      for (std::uint32_t i = 0; i < coded_block_values; ++i)
        sum[i] = !there ? 0 : s == 0 ? values[i] : sum[i] + values[i];
    }
  }

  __device__ __forceinline__ void take(std::uint32_t warp) {
    const Codec c = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t chunk = 0; chunk < a_.chunks; ++chunk) {
      maybe_pause(c_, state_.epoch, chunk);
      const std::uint32_t place = place_of(chunk);
      this->wait_for(CommStep::sum, &CommState::sums, chunk + 1, chunk % roles.sum_posters);
#pragma unroll 1
      for (std::uint32_t index = warp * 32 + lane_; well_ && index < a_.span; index += roles.takers * 32) {
        const std::uint32_t block = first_of(chunk) + index;
        Part part[unrolled];
        const auto load = [&](std::uint32_t i) {
          if (i < c_.ranks && has(peer_of(i), block))
            part[i % unrolled] = this->load_part(c, a_.sums, slot_of(a_.sums, c_.rank, peer_of(i), place), index);
        };
#pragma unroll unrolled
        for (std::uint32_t i = 1; i < Most; ++i)
          if (ahead) load(i);
#pragma unroll unrolled
        for (std::uint32_t i = 1; i < Most; ++i) {
          if (i >= c_.ranks || !has(peer_of(i), block)) continue;
          if (!ahead) load(i);
          const Part& came = part[i % unrolled];
          const codec::Codes codes = codec::from_planes(c.format, came.planes);
          Values values;
          bool usual = true;
          codec::decode_numbers(c, read_usual_group<type>(c, came.words, usual), codes, values);
          if (!usual) codec::decode(c, range, read_group(c, came.words), codes, values);
          out_.store(peer_of(i) * a_.piece + block, values);
        }
      }
      end_step(progress_.taken, warp, chunk);
    }
  }

  /// Until the peers are done with the slots of a chunk.
  __device__ __forceinline__ void wait_for_room(std::uint32_t chunk) {
    if (chunk >= a_.slots) this->wait_for(CommStep::room, &CommState::freed, chunk - a_.slots + 1);
  }

  /// By lane 0 of a poster, which made the copies: they have arrived, and the peers may know.
  __device__ __forceinline__ void post(Counters kind, std::uint32_t poster, std::uint32_t chunk) {
    wait_bulk();
    fence_system();
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      store_relaxed_system(&(state_of(c_, peer_of(i)).*kind)[poster][c_.rank][blockIdx.x], state_.posts + chunk + 1);
  }

  __device__ __forceinline__ void post_parts(std::uint32_t poster) {
    for (std::uint32_t chunk = poster; chunk < a_.chunks; chunk += roles.part_posters) {
      wait_for_room(chunk);
      for (std::uint32_t i = 1; i < c_.ranks; ++i) {
        const std::uint32_t fill = chunk * peers_ + i - 1;
        await_step(progress_.parts, roles.senders, fill);
        if (lane_ == 0) {
          if (well_)
            bulk_store(slot_of(a_.parts, peer_of(i), c_.rank, place_of(chunk)), part_stage(fill), a_.parts.bytes);
          commit_bulk();
          wait_bulk_read();
          say(progress_.parts_read[poster], fill + 1);
        }
        __syncwarp();
      }
      if (lane_ == 0) post(&CommState::parts, poster, chunk);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void post_sums(std::uint32_t poster) {
    for (std::uint32_t chunk = poster; chunk < a_.chunks; chunk += roles.sum_posters) {
      wait_for_room(chunk);
      await_step(progress_.sums, roles.adders, chunk);
      if (lane_ == 0) {
        for (std::uint32_t i = 1; well_ && i < c_.ranks; ++i)
          bulk_store(slot_of(a_.sums, peer_of(i), c_.rank, place_of(chunk)), sum_stage(chunk), a_.sums.bytes);
        commit_bulk();
        wait_bulk_read();
        say(progress_.sums_read[poster], chunk + 1);
        post(&CommState::sums, poster, chunk);
      }
      __syncwarp();
    }
  }

  /// A chunk's slots are free once its parts are added and its sums taken.
  __device__ __forceinline__ void post_freed() {
    for (std::uint32_t chunk = 0; chunk + a_.slots < a_.chunks; ++chunk) {
      await_step(progress_.sums, roles.adders, chunk);
      this->post_one(progress_.taken, roles.takers, chunk, &CommState::freed);
    }
  }

  /// By a warp that fills stages: until the poster's copies have read those up to `count`.
  // NOTE: the posters' waits are bounded, so this one is.
  __device__ __forceinline__ void await_read(const std::uint32_t& read, std::uint32_t count) {
    while (static_cast<std::int32_t>(value_of(read) - count) < 0) __nanosleep(20);
    __syncwarp();
  }

  // Shared memory, between warps.
  __device__ __forceinline__ std::uint32_t value_of(const std::uint32_t& word) {
    return *const_cast<const volatile std::uint32_t*>(&word);
  }
  __device__ __forceinline__ void say(std::uint32_t& word, std::uint32_t value) {
    *const_cast<volatile std::uint32_t*>(&word) = value;
  }

  StagedProgress& progress_;
  std::byte* stages_;  // of parts, then of sums
  std::uint32_t peers_;
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(roles_of(Most).threads(), 1) coded_staged(const __grid_constant__ CodedArgs a) {
  __shared__ StagedProgress progress;
  extern __shared__ __align__(128) std::byte stages[];
  if (threadIdx.x == 0) progress = {};
  __syncthreads();
  wait_for_stream();
  if (!is_turn(a.comm, read_state(a.comm))) return;
  CodedStaged<type, Most, FormOfParts, FormOfSums>(a, progress, stages).run();
}

template <Type type, typename FormOfParts, typename FormOfSums>
CodedEntry coded_entry() {
  return {{FormOfParts::of({}), FormOfSums::of({})},
          {{reinterpret_cast<const void*>(&coded_staged<type, 2, FormOfParts, FormOfSums>), roles_of(2).threads()},
           {reinterpret_cast<const void*>(&coded_staged<type, 4, FormOfParts, FormOfSums>), roles_of(4).threads()},
           {reinterpret_cast<const void*>(&coded_staged<type, 8, FormOfParts, FormOfSums>), roles_of(8).threads()}}};
}

template <CodeFormat format, bool asymmetric = false>
using Usual = Form<format, asymmetric, ScaleType::bf16>;

}  // namespace imbrex::cuda
