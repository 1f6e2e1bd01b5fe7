// The two-shot all-reduce through a codec that the compiler knows, as one kernel whose warps each do one thing.
//
// The vector is cut as in the exact two-shot (exact_kernels.cuh), in blocks of eight values: pieces, chunks, slots. The
// warps of a block:
//
//   senders   quantize chunk k of every other rank's piece, one after the other, into stages in shared memory,
//   adders    wait for the peers' parts of chunk k of this rank's piece, decode and add them by rank number, its own
//             part decoded from codes like the others; quantize the sums into a stage; decode the output from these
//             codes, too, so all ranks get the same bits,
//   takers    wait for the peers' sums of chunk k of the other pieces, and decode them into the output,
//   signallers  copy stages to the peers by cp.async.bulk, and signal once they have arrived; the last one signals
//             what is freed. A fence waits for all that its SM has under way, so several take chunks in turn.
//
// No barrier ends a round: each kind is as many chunks ahead as stages and slots let it, so that loads, codes and links
// are busy at once. Stores that wait for a link would make the SM's other warps wait, too; cp.async.bulk does not.
//
// Senders, adders and takers take a chunk in runs of 64 blocks. Those of whole blocks and ordinary groups go the short
// way (quantized_run.cuh), others, and those of which some group turns out not to be ordinary, that of the `_blocks`.
//
// NOTE: on four H200s teams of adders that take chunks in turn, and more warps at fewer registers, gained nothing.
//
// Posts and counters: quantized_rank.cuh.
#pragma once

#include "collectives/cuda/quantized/quantized_rank.cuh"
#include "collectives/cuda/quantized/quantized_run.cuh"
#include "collectives/cuda/wire/bulk.cuh"

namespace imbrex::cuda {

/// It lies in a block's shared memory. Stages are filled in turn, and emptied by their signallers' copies.
// NOTE: those who fill a stage wait for every phase of its barrier, in order. Signallers, which take every other chunk,
// do not, and a phase is known by its parity alone: they count.
struct StagedProgress {
  std::uint64_t parts_empty[part_stage_count], sums_empty[most_sum_stages];  ///< phase n: of a stage's n-th fill
  ChunkProgress sent;                                                        ///< fills; as the others zero at first
  ChunkProgress added, taken;                                                ///< chunks
  std::uint32_t failed;  ///< not 0 once a wait was given up: senders and signallers read it once a chunk

  /// By one thread; a barrier of the block follows.
  __device__ __forceinline__ void init() {
    sent = added = taken = {};
    failed = 0;
    for (std::uint64_t& barrier : parts_empty) init_stage_barrier(barrier);
    for (std::uint64_t& barrier : sums_empty) init_stage_barrier(barrier);
  }
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
class QuantizedStaged : QuantizedRank<type, false> {
  static constexpr QuantizedRoles roles = roles_of(Most);
  static_assert(roles.part_signallers <= max_comm_signallers && roles.sum_signallers <= max_comm_signallers);
  // NOTE: the same warp writes the same bytes of a stage each time: racecheck sees no order between two that hand a
  // stage on through a signaller. So a warp's turns go on from one fill to the next only where the stages divide by the
  // warps.
  static_assert(part_stage_count % roles.senders == 0);
  static constexpr bool adders_go_on = roles.sum_stages % roles.adders == 0;
  static constexpr bool ahead = Most <= 4;
  static constexpr int unrolled = ahead ? Most : 1;
  using Base = QuantizedRank<type, false>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::well_, Base::lane_;
  using Base::first_of, Base::has, Base::place_of, Base::slot_of, Base::peer_of;
  using typename Base::Counters;
  using typename Base::OwnPart;
  using typename Base::Part;
  using typename Base::Values;
  using typename Base::Vector;

 public:
  __device__ __forceinline__ QuantizedStaged(const QuantizedArgs& args, StagedProgress& progress, std::byte* stages)
      : Base(args),
        progress_(progress),
        stages_(stages),
        peers_(args.comm.ranks - 1),
        runs_((args.span + staged_run - 1) / staged_run),
        whole_blocks_(in_.aligned && out_.aligned ? static_cast<std::uint32_t>(args.count / quantized_block_values)
                                                  : 0) {}

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
    else if (is(roles.part_signallers))
      post_parts(warp);
    else if (is(roles.sum_signallers))
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
    return stages_ + part_stage_count * a_.parts.bytes + chunk % roles.sum_stages * a_.sums.bytes;
  }

  /// Whether a run's blocks are whole, and lie in memory as they are loaded and stored. `first`: of the run, in a
  /// piece.
  __device__ __forceinline__ bool is_whole(std::uint32_t owner, std::uint32_t run, std::uint32_t first) const {
    return (run + 1) * staged_run <= a_.span && first + staged_run <= a_.piece &&
           owner * a_.piece + first + staged_run <= whole_blocks_;
  }
  __device__ __forceinline__ std::uint32_t first_of_run(std::uint32_t chunk, std::uint32_t run) const {
    return first_of(chunk) + run * staged_run;
  }
  /// A pair of the caller's vectors.
  __device__ __forceinline__ RawPair load_own(std::uint32_t owner, std::uint32_t first) const {
    return cuda::load_pair(in_.first, owner * a_.piece + first + first_in_run(lane_));
  }
  __device__ __forceinline__ void store_out(std::uint32_t owner, std::uint32_t first, const PairValues& values) const {
    auto* at = reinterpret_cast<uint4*>(out_.first) + (owner * a_.piece + first + first_in_run(lane_));
    at[0] = Elements<type>::packed(values[0]);
    at[2] = Elements<type>::packed(values[1]);
  }

  // Fill f of the parts' stages: chunk f / peers, for the peer f % peers + 1 ranks on. A warp's turns go on from one
  // fill to the next, so that none is short of work because the runs of one are no multiple of the warps.
  __device__ __forceinline__ void send(std::uint32_t warp) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    const std::uint32_t fills = a_.chunks * peers_;
    RawPair next{};
    bool next_whole = false;
    const auto load = [&](std::uint32_t chunk, std::uint32_t peer, std::uint32_t run) {
      const std::uint32_t first = first_of_run(chunk, run);
      next_whole = chunk < a_.chunks && is_whole(peer_of(peer), run, first);
      if (next_whole) next = load_own(peer_of(peer), first);
    };
    std::uint32_t chunk = 0, peer = 1, run = warp;
    // Where the warp's next turn is.
    std::uint32_t next_chunk = 0, next_peer = 1, next_run = warp;
    const auto settle = [&] {
      for (; next_run >= runs_; next_run -= runs_) {
        ++next_peer;
        if (next_peer > peers_) ++next_chunk, next_peer = 1;
      }
    };
    settle();
    load(next_chunk, next_peer, next_run);
#pragma unroll 1
    for (std::uint32_t fill = 0; fill < fills; ++fill) {
      maybe_pause(c_, state_.epoch, fill);
      // NOTE: without a limit: signallers go through all fills, and all waits for peers are bounded.
      await_phase(progress_.parts_empty[fill % part_stage_count], fill / part_stage_count - 1);
      std::byte* stage = part_stage(fill);
#pragma unroll 1
      for (; run < runs_; run += roles.senders) {
        const RawPair raw = next;
        const bool whole = next_whole;
        next_run += roles.senders;
        settle();
        load(next_chunk, next_peer, next_run);
        if (!whole || !send_run(c, raw, stage, run)) send_blocks(c, chunk, peer, stage, run);
      }
      run -= runs_;
      device::fence_shared_for_bulk();
      end_step(progress_.sent, warp, fill, true);
      if (++peer > peers_) ++chunk, peer = 1;
    }
  }

  /// Codes a run of whole blocks; or says that some group is not usual.
  __device__ __forceinline__ bool send_run(const Codec& c, const RawPair& raw, std::byte* stage, std::uint32_t run) {
    bool usual = true;
    const codec::Group group = usual_group<type>(c, extremes_of<type>(c, raw), usual);
    if (!__all_sync(whole_warp, usual)) return false;
    PairValues values;
    to_float<type>(raw, values);
    const QuantizedPair pair = code_pair(c, codec::range_of(type), group, values, values);
    store_pair(c, a_.parts, stage, run * staged_run + first_in_run(lane_), lane_, group, pair);
    return true;
  }

  /// A run of any blocks. By a whole warp, as all that follow.
  __device__ __forceinline__ void send_blocks(const Codec& c, std::uint32_t chunk, std::uint32_t peer, std::byte* stage,
                                              std::uint32_t run) {
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t first = run * staged_run; first < min((run + 1) * staged_run, a_.span); first += 32) {
      const std::uint32_t index = first + lane_, block = first_of(chunk) + index;
      Values values = {};
      if (has(peer_of(peer), block)) Vector::to_float(in_.load(peer_of(peer) * a_.piece + block), values);
      const codec::Group group = group_of(c, range, values);
      this->store_quantized(c, a_.parts, stage, index, group,
                            codec::to_planes(c.format, codec::encode(c, range, group, values)), values);
    }
  }

  __device__ __forceinline__ void add(std::uint32_t warp) {
    // Into L2, where the parts are, too: no registers are held for it.
    const auto prefetch = [&](std::uint32_t chunk, std::uint32_t run) {
      const std::uint32_t first = first_of_run(chunk, run);
      if (chunk < a_.chunks && is_whole(c_.rank, run, first)) in_.prefetch(c_.rank * a_.piece + first + lane_ * 2);
    };
    std::uint32_t run = warp;
    prefetch(0, run);
#pragma unroll 1
    for (std::uint32_t chunk = 0; chunk < a_.chunks; ++chunk) {
      maybe_pause(c_, state_.epoch, chunk);
      const std::uint32_t place = place_of(chunk);
      await(CommStep::part, &CommState::parts, chunk + 1, chunk % roles.part_signallers);
      await_phase(progress_.sums_empty[chunk % roles.sum_stages], chunk / roles.sum_stages - 1);
      std::byte* stage = sum_stage(chunk);
#pragma unroll 1
      for (; run < runs_; run += roles.adders) {
        const bool whole = well_ && is_whole(c_.rank, run, first_of_run(chunk, run));
        if (!whole || !add_run(chunk, run, place, stage, [&] {
              const std::uint32_t next = run + roles.adders;
              if (next < runs_)
                prefetch(chunk, next);
              else
                prefetch(chunk + 1, adders_go_on ? next - runs_ : warp);
            }))
          add_blocks(chunk, run, place, stage);
      }
      run = adders_go_on ? run - runs_ : warp;
      device::fence_shared_for_bulk();
      end_step(progress_.added, warp, chunk, well_);
    }
  }

  /// Sums a run of whole blocks by rank number; or says that some group is not usual. `meanwhile`: what is done while
  /// the loads are under way.
  template <typename Meanwhile>
  __device__ __forceinline__ bool add_run(std::uint32_t chunk, std::uint32_t run, std::uint32_t place, std::byte* stage,
                                          Meanwhile&& meanwhile) {
    const Codec c = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    const std::uint32_t first = first_of_run(chunk, run), index = run * staged_run + first_in_run(lane_);
    const RawPair raw = load_own(c_.rank, first);
    QuantizedPair parts[unrolled];
    const auto load = [&](std::uint32_t s) {
      if (s < c_.ranks && s != c_.rank)
        parts[s % unrolled] = cuda::load_pair(c, a_.parts, slot_of(a_.parts, c_.rank, s, place), index);
    };
#pragma unroll unrolled
    for (std::uint32_t s = 0; s < Most; ++s)
      if (ahead) load(s);
    meanwhile();
    bool usual = true;
    PairValues sum, values;
    QuantizedPair own;
    {
      const codec::Group group = usual_group<type>(c, extremes_of<type>(c, raw), usual);
      to_float<type>(raw, values);
      own = code_pair(c, range, group, values, values);
    }
    codec::Bound bound;
#pragma unroll unrolled
    for (std::uint32_t s = 0; s < Most; ++s) {
      if (s >= c_.ranks) continue;
      if (!ahead) load(s);
      const QuantizedPair part = chosen(s == c_.rank, own, parts[s % unrolled]);
      add_usual_part<type>(c, part, s == 0, sum, bound, usual);
    }
    const codec::Group group = usual_group<type>(sums, extremes_of(sums, sum), usual);
    if (!__all_sync(whole_warp, usual)) return false;
    const QuantizedPair pair = code_pair(sums, range, group, sum, values);
    store_pair(sums, a_.sums, stage, index, lane_, group, pair);
    store_out(c_.rank, first, values);
    this->note_quantized_error(bound, sums, group);
    return true;
  }

  /// A run of any blocks. Reads all anew: nothing is kept for so rare a case.
  __device__ __forceinline__ void add_blocks(std::uint32_t chunk, std::uint32_t run, std::uint32_t place,
                                             std::byte* stage) {
    const Codec sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t first = run * staged_run; first < min((run + 1) * staged_run, a_.span); first += 32) {
      const std::uint32_t index = first + lane_, block = first_of(chunk) + index;
      const bool there = well_ && has(c_.rank, block);
      codec::Bound bound;
      Values sum, values;
      add_parts(chunk, index, there, bound, sum);
      const codec::Group group = group_of(sums, range, sum);
      const codec::Codes codes = codec::encode(sums, range, group, sum);
      codec::decode(sums, range, group, codes, values);
      this->store_quantized(sums, a_.sums, stage, index, group, codec::to_planes(sums.format, codes), sum);
      if (!there) continue;
      out_.store(c_.rank * a_.piece + block, values);
      this->note_quantized_error(bound, sums, group);
      if (group.kind == codec::GroupKind::marked) this->count_non_finite(c_.rank * a_.piece + block, values);
    }
  }

  /// Sums by rank number: 0 where nothing is there.
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
    for (std::uint32_t i = 0; i < quantized_block_values; ++i) sum[i] = there ? sum[i] : 0;
  }

  __device__ __forceinline__ void take(std::uint32_t warp) {
    std::uint32_t run = warp;
#pragma unroll 1
    for (std::uint32_t chunk = 0; chunk < a_.chunks; ++chunk) {
      maybe_pause(c_, state_.epoch, chunk);
      const std::uint32_t place = place_of(chunk);
      await(CommStep::sum, &CommState::sums, chunk + 1, chunk % roles.sum_signallers);
#pragma unroll 1
      for (; run < runs_; run += roles.takers)
        if (well_ && !take_run(chunk, run, place)) take_blocks(chunk, run, place);
      run -= runs_;
      end_step(progress_.taken, warp, chunk, well_);
    }
  }

  /// Decodes the peers' sums of a run of whole blocks; or says that some are not whole, or some group not usual.
  __device__ __forceinline__ bool take_run(std::uint32_t chunk, std::uint32_t run, std::uint32_t place) {
    const Codec c = FormOfSums::of(a_.sums.codec);
    const std::uint32_t first = first_of_run(chunk, run), index = run * staged_run + first_in_run(lane_);
    QuantizedPair sums[unrolled];
    bool whole = true;
    const auto load = [&](std::uint32_t i) {
      if (i >= c_.ranks) return;
      whole = whole && is_whole(peer_of(i), run, first);
      if (whole) sums[i % unrolled] = cuda::load_pair(c, a_.sums, slot_of(a_.sums, c_.rank, peer_of(i), place), index);
    };
#pragma unroll unrolled
    for (std::uint32_t i = 1; i < Most; ++i)
      if (ahead) load(i);
#pragma unroll unrolled
    for (std::uint32_t i = 1; i < Most; ++i) {
      if (i >= c_.ranks) continue;
      if (!ahead) load(i);
      if (!whole) return false;
      bool usual = true;
      const QuantizedPair& came = sums[i % unrolled];
      const codec::Group group = read_usual_group<type>(c, came.words, usual);
      if (!__all_sync(whole_warp, usual)) return false;
      PairValues values;
      decode_pair(c, group, came, values);
      store_out(peer_of(i), first, values);
    }
    return true;
  }

  /// A run of any blocks.
  __device__ __forceinline__ void take_blocks(std::uint32_t chunk, std::uint32_t run, std::uint32_t place) {
    const Codec c = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
#pragma unroll 1
    for (std::uint32_t first = run * staged_run; first < min((run + 1) * staged_run, a_.span); first += 32) {
      const std::uint32_t index = first + lane_, block = first_of(chunk) + index;
#pragma unroll 1
      for (std::uint32_t i = 1; i < c_.ranks; ++i) {
        if (!has(peer_of(i), block)) continue;
        const Part came = this->load_part(c, a_.sums, slot_of(a_.sums, c_.rank, peer_of(i), place), index);
        Values values;
        codec::decode(c, range, read_group(c, came.words), codec::from_planes(c.format, came.planes), values);
        out_.store(peer_of(i) * a_.piece + block, values);
      }
    }
  }

  /// As wait_for; who gives up tells those who send.
  __device__ __forceinline__ void await(CommStep step, Counters kind, std::uint32_t count, std::uint32_t signaller) {
    this->wait_for(step, kind, count, signaller);
    if (!well_ && lane_ == 0) *const_cast<volatile std::uint32_t*>(&progress_.failed) = 1;
  }

  /// By a warp that sends, once a chunk.
  __device__ __forceinline__ void look_for_failure() {
    const bool failed = *const_cast<const volatile std::uint32_t*>(&progress_.failed) != 0u;
    well_ = __all_sync(whole_warp, well_ && !failed);
  }

  /// Until the peers are done with the slots of a chunk.
  __device__ __forceinline__ void wait_for_room(std::uint32_t chunk) {
    if (chunk >= a_.slots) await(CommStep::room, &CommState::freed, chunk - a_.slots + 1, 0);
    look_for_failure();
  }

  /// By lane 0 of a signaller, which made the copies: they have arrived, and the peers may know.
  __device__ __forceinline__ void post(Counters kind, std::uint32_t signaller, std::uint32_t chunk) {
    wait_bulk();
    device::fence_system();
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      device::store_relaxed(&(state_of(c_, peer_of(i)).*kind)[signaller][c_.rank][blockIdx.x],
                            state_.posts + chunk + 1);
  }

  __device__ __forceinline__ void post_parts(std::uint32_t signaller) {
    for (std::uint32_t chunk = signaller; chunk < a_.chunks; chunk += roles.part_signallers) {
      wait_for_room(chunk);
      for (std::uint32_t i = 1; i < c_.ranks; ++i) {
        const std::uint32_t fill = chunk * peers_ + i - 1;
        await_step(progress_.sent, roles.senders, fill);
        if (lane_ == 0) {
          if (well_)
            bulk_store(slot_of(a_.parts, peer_of(i), c_.rank, place_of(chunk)), part_stage(fill), a_.parts.bytes);
          commit_bulk();
          wait_bulk_read();
          arrive_at(progress_.parts_empty[fill % part_stage_count]);
        }
        __syncwarp();
      }
      if (lane_ == 0 && well_) post(&CommState::parts, signaller, chunk);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void post_sums(std::uint32_t signaller) {
    for (std::uint32_t chunk = signaller; chunk < a_.chunks; chunk += roles.sum_signallers) {
      wait_for_room(chunk);
      well_ = await_step(progress_.added, roles.adders, chunk) && well_;
      if (lane_ == 0) {
        for (std::uint32_t i = 1; well_ && i < c_.ranks; ++i)
          bulk_store(slot_of(a_.sums, peer_of(i), c_.rank, place_of(chunk)), sum_stage(chunk), a_.sums.bytes);
        commit_bulk();
        wait_bulk_read();
        arrive_at(progress_.sums_empty[chunk % roles.sum_stages]);
        if (well_) post(&CommState::sums, signaller, chunk);
      }
      __syncwarp();
    }
  }

  /// A chunk's slots are free once its parts are added and its sums taken.
  __device__ __forceinline__ void post_freed() {
    for (std::uint32_t chunk = 0; chunk + a_.slots < a_.chunks; ++chunk) {
      well_ = await_step(progress_.added, roles.adders, chunk) && well_;
      look_for_failure();
      this->post_one(progress_.taken, roles.takers, chunk, &CommState::freed);
    }
  }

  StagedProgress& progress_;
  std::byte* stages_;  // of parts, then of sums
  std::uint32_t peers_, runs_;
  std::uint32_t whole_blocks_;  // of the vectors; none where they are not aligned
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(roles_of(Most).threads(), 1)
    quantized_staged(const __grid_constant__ QuantizedArgs a) {
  __shared__ StagedProgress progress;
  extern __shared__ __align__(128) std::byte stages[];
  if (threadIdx.x == 0) progress.init();
  __syncthreads();
  device::wait_for_stream();
  if (!is_turn(a.comm, read_state(a.comm))) return;
  QuantizedStaged<type, Most, FormOfParts, FormOfSums>(a, progress, stages).run();
}

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
QuantizedKernel staged_kernel() {
  constexpr QuantizedRoles roles = roles_of(Most);
  return {reinterpret_cast<const void*>(&quantized_staged<type, Most, FormOfParts, FormOfSums>), roles.threads(),
          roles.sum_stages};
}

}  // namespace imbrex::cuda
