// The two-step all-reduce through a codec of vectors that are not long: data that are their own flag (packet.cuh), so
// that no fence stands between a step and the next one.
//
// The vector is cut in pieces as ever, a piece in runs of 64 blocks of eight values; a warp takes whole runs, a thread
// two blocks of one group (coded_run.cuh). In its k-th round a warp
//
//   1. codes its k-th run of every other piece for the piece's owner,
//   2. adds the parts of run k - 1 of its own piece by rank number, codes the sums for all, and decodes its output,
//   3. decodes the sums of run k - 2 of the other pieces.
//
// A run in a slot, all of it `empty` between calls: a word or a few of codes for each lane; words of two groups' steps;
// a word that says how the codes come. In a usual run no code is 0 (fp8: 255), so no word of codes is empty once its
// bits are turned (fp8: as they are). In a run with a group that is not usual, whose codes may be any, each takes 16
// bits of a place of their own. Steps never have all bits set.
//
// Slots hold all runs of a call: nobody waits for room, and posts nothing.
#pragma once

#include "collectives/cuda/coded_entries.hpp"
#include "collectives/cuda/coded_rank.cuh"
#include "collectives/cuda/coded_run.cuh"
#include "collectives/cuda/packet.cuh"

namespace imbrex::cuda {

/// How a run's codes come.
enum class RunForm : std::uint32_t { narrow = 1, wide = 2 };

__device__ __forceinline__ std::uint32_t load_word_system(const std::byte* at) {
  std::uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
  return word;
}
__device__ __forceinline__ uint2 load_two_system(const std::byte* at) {
  uint2 v;
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_two_system(std::byte* at, const uint2& v) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(v.x), "r"(v.y) : "memory");
}

/// A run in a slot, as a lane sees it: run_slot_bytes (coded.hpp).
struct RunSlot {
  std::byte* first;

  /// Of a lane's narrow codes: its two blocks'.
  static __device__ __forceinline__ std::uint32_t lane_bytes(const Codec& c) {
    return 2 * static_cast<std::uint32_t>(codec::code_bits(c.format));
  }
  __device__ __forceinline__ std::byte* codes(const Codec& c, std::uint32_t lane) const {
    return first + lane * lane_bytes(c);
  }
  /// Two groups' steps: those of the lanes from lane / span * span on.
  static __device__ __forceinline__ std::uint32_t step_span(const Codec& c) {
    return static_cast<std::uint32_t>(c.group) / coded_block_values;
  }
  __device__ __forceinline__ std::byte* steps(const Codec& c, std::uint32_t lane) const {
    return first + 32 * lane_bytes(c) + lane / step_span(c) * 4;
  }
  __device__ __forceinline__ std::byte* form(const Codec& c) const { return first + 32 * lane_bytes(c) + 32; }
  __device__ __forceinline__ std::byte* wide(const Codec& c, std::uint32_t lane) const {
    return first + 32 * lane_bytes(c) + 64 + lane * 32;
  }
};

/// What a lane loads of it.
struct RunWords {
  uint4 codes;
  std::uint32_t steps, form;
};

__device__ __forceinline__ RunWords load_run(const Codec& c, const RunSlot& slot, std::uint32_t lane) {
  RunWords words;
  if (RunSlot::lane_bytes(c) == 16) {
    words.codes = load_packet(slot.codes(c, lane));
  } else {
    const uint2 two = load_two_system(slot.codes(c, lane));
    words.codes = {two.x, two.y, 0, 0};
  }
  words.steps = load_word_system(slot.steps(c, lane));
  words.form = load_word_system(slot.form(c));
  return words;
}

__device__ __forceinline__ bool has_come(const RunWords& words) {
  if (words.steps == empty_word || words.form == empty_word) return false;
  return words.form == static_cast<std::uint32_t>(RunForm::wide) || !has_empty(words.codes);
}

/// By a whole warp, once all its lanes have loaded all of it.
__device__ __forceinline__ void clear_run(const Codec& c, const RunSlot& slot, std::uint32_t lane, bool wide) {
  if (wide) {
    clear_packet(slot.wide(c, lane));
    clear_packet(slot.wide(c, lane) + packet_bytes);
  } else if (RunSlot::lane_bytes(c) == 16) {
    clear_packet(slot.codes(c, lane));
  } else {
    store_two_system(slot.codes(c, lane), {empty_word, empty_word});
  }
  if (lane % RunSlot::step_span(c) == 0) store_relaxed_system(slot.steps(c, lane), empty_word);
  if (lane == 0) store_relaxed_system(slot.form(c), empty_word);
}

/// Narrow codes as they travel, and back.
__device__ __forceinline__ std::uint32_t turned(const Codec& c, std::uint32_t word) {
  return c.format == CodeFormat::fp8 ? word : ~word;
}

__device__ __forceinline__ uint4 narrow_words(const Codec& c, const CodedPair& pair) {
  const auto& a = pair.planes[0].first;
  const auto& b = pair.planes[1].first;
  if (RunSlot::lane_bytes(c) == 16) return {turned(c, a[0]), turned(c, a[1]), turned(c, b[0]), turned(c, b[1])};
  return {turned(c, a[0]), turned(c, b[0]), 0, 0};
}

__device__ __forceinline__ CodedPair narrow_pair(const Codec& c, const RunWords& words, std::uint32_t lane) {
  CodedPair pair{};
  const uint4& w = words.codes;
  if (RunSlot::lane_bytes(c) == 16) {
    pair.planes[0] = {{turned(c, w.x), turned(c, w.y)}, 0};
    pair.planes[1] = {{turned(c, w.z), turned(c, w.w)}, 0};
  } else {
    pair.planes[0].first[0] = turned(c, w.x);
    pair.planes[1].first[0] = turned(c, w.y);
  }
  pair.words = {lane % RunSlot::step_span(c) < RunSlot::step_span(c) / 2 ? words.steps & 0xffffu : words.steps >> 16,
                0};
  return pair;
}

/// Four codes in 16 bits each, and back.
__device__ __forceinline__ uint2 widened(std::uint32_t four) {
  return {__byte_perm(four, 0, 0x4140), __byte_perm(four, 0, 0x4342)};
}
__device__ __forceinline__ std::uint32_t narrowed(std::uint32_t low, std::uint32_t high) {
  return __byte_perm(low, high, 0x6420);
}

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
class CodedPackets : CodedRank<type, false> {
  using Base = CodedRank<type, false>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::well_, Base::lane_;
  using Base::has, Base::peer_of;

 public:
  __device__ __forceinline__ explicit CodedPackets(const CodedArgs& args) : Base(args) {}

  __device__ __forceinline__ void run() {
    const std::uint32_t runs = (a_.piece + staged_run - 1) / staged_run, warps = gridDim.x * (blockDim.x / 32),
                        first = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
                        own = first < runs ? (runs - first + warps - 1) / warps : 0;
    for (std::uint32_t round = 0; own != 0 && round < own + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < own) send(first + round * warps);
      if (round >= 1 && round - 1 < own) add(first + (round - 1) * warps);
      if (round >= 2) take(first + (round - 2) * warps);
    }
    this->end();
  }

 private:
  /// Of a run of `owner`'s piece, whether it is there.
  __device__ __forceinline__ bool has_run(std::uint32_t owner, std::uint32_t run) const {
    return has(owner, run * staged_run);
  }
  /// The lane's first block of a run, in a piece.
  __device__ __forceinline__ std::uint32_t block_of(std::uint32_t run) const {
    return run * staged_run + first_in_run(lane_);
  }
  __device__ __forceinline__ RunSlot slot_of(const CodedChunk& step, std::uint32_t rank, std::uint32_t source,
                                             std::uint32_t run) const {
    return {slots_of(c_, rank, state_.epoch) + step.begin + source * step.source_stride +
            std::uint64_t{run} * step.bytes};
  }

  /// Zeros where nothing is there.
  __device__ __forceinline__ RawPair load_own(std::uint32_t owner, std::uint32_t run) const {
    RawPair raw{};
#pragma unroll
    for (std::uint32_t b = 0; b < 2; ++b)
      if (const std::uint32_t block = block_of(run) + 2 * b; has(owner, block))
        raw.blocks[b] = in_.load(owner * a_.piece + block).words[0];
    return raw;
  }
  __device__ __forceinline__ void store_out(std::uint32_t owner, std::uint32_t run, const PairValues& values) const {
#pragma unroll
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::uint32_t block = block_of(run) + 2 * b;
      float eight[coded_block_values];
#pragma unroll
      for (std::uint32_t i = 0; i < coded_block_values; ++i) eight[i] = values[b * coded_block_values + i];
      if (has(owner, block)) out_.store(owner * a_.piece + block, eight);
    }
  }

  __device__ __forceinline__ void store_run(const Codec& c, const RunSlot& slot, const CodedPair& pair,
                                            bool narrow) const {
    if (!narrow) {
#pragma unroll
      for (std::uint32_t b = 0; b < 2; ++b) {
        const codec::Codes codes = codec::from_planes(c.format, pair.planes[b]);
        const uint2 low = widened(codes.low), high = widened(codes.high);
        store_packet(slot.wide(c, lane_) + b * packet_bytes, {low.x, low.y, high.x, high.y});
      }
    } else if (const uint4 words = narrow_words(c, pair); RunSlot::lane_bytes(c) == 16) {
      store_packet(slot.codes(c, lane_), words);
    } else {
      store_two_system(slot.codes(c, lane_), {words.x, words.y});
    }
    const std::uint32_t span = RunSlot::step_span(c), step = pair.words.scale,
                        next = __shfl_down_sync(whole_warp, step, span / 2);
    if (lane_ % span == 0) store_relaxed_system(slot.steps(c, lane_), step | next << 16);
    if (lane_ == 0)
      store_relaxed_system(slot.form(c), static_cast<std::uint32_t>(narrow ? RunForm::narrow : RunForm::wide));
  }

  /// Codes of a run, if all its groups are usual, else codes of any. By a whole warp, as what follows.
  __device__ __forceinline__ bool code(const Codec& c, const codec::Extremes& extremes, const PairValues& values,
                                       codec::Group& group, CodedPair& pair, PairValues& decoded) const {
    constexpr codec::Range range = codec::range_of(type);
    bool usual = true;
    group = usual_group<type>(c, extremes, usual);
    const bool narrow = __all_sync(whole_warp, usual);
    if (narrow) {
      pair = code_pair(c, range, group, values, decoded);
    } else {
      group = any_group(c, range, extremes, values);
      pair = code_any_pair(c, range, group, values, decoded);
    }
    return narrow;
  }

  __device__ __forceinline__ void send(std::uint32_t run) {
    const Codec c = FormOfParts::of(a_.parts.codec);
    RawPair raw = load_own(peer_of(1), run);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i) {
      const std::uint32_t peer = peer_of(i);
      RawPair next{};
      if (i + 1 < c_.ranks) next = load_own(peer_of(i + 1), run);
      if (has_run(peer, run)) {
        PairValues values;
        to_float<type>(raw, values);
        codec::Group group;
        CodedPair pair;
        const bool narrow = code(c, extremes_of<type>(c, raw), values, group, pair, values);
        store_run(c, slot_of(a_.parts, peer, c_.rank, run), pair, narrow);
      }
      raw = next;
    }
  }

  /// Waits for a run from each source in `wanted`. Whether they came; `wide`: those with wide codes, which may be on
  /// their way yet.
  __device__ __forceinline__ bool await_runs(const Codec& c, const CodedChunk& step, CommStep why, std::uint32_t run,
                                             std::uint32_t wanted, RunWords (&words)[Most], std::uint32_t& wide) {
    Patience patience;
    for (;;) {
      std::uint32_t missing = 0;
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if ((wanted >> s & 1) != 0) words[s] = load_run(c, slot_of(step, c_.rank, s, run), lane_);
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if ((wanted >> s & 1) != 0 && !has_come(words[s])) missing = s + 1;
      missing = __reduce_max_sync(whole_warp, missing);
      if (missing == 0) break;
      const bool left = patience.left(c_, state_.epoch, [&] {
        return Place{why, missing - 1, run * staged_run, 0, 0};
      });
      well_ = __all_sync(whole_warp, left);
      if (!well_) return false;
    }
    wide = 0;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if ((wanted >> s & 1) != 0 && words[s].form == static_cast<std::uint32_t>(RunForm::wide)) wide |= 1u << s;
    return true;
  }

  /// A run that has come, its wide codes perhaps not yet. False if they did not.
  __device__ __forceinline__ bool load_any(const Codec& c, const CodedChunk& step, CommStep why, std::uint32_t run,
                                           std::uint32_t source, bool wide, CodedPair& pair) {
    const RunSlot slot = slot_of(step, c_.rank, source, run);
    pair = narrow_pair(c, load_run(c, slot, lane_), lane_);
    if (!wide) return true;
    uint4 eight[2];
    Patience patience;
    for (;;) {
      eight[0] = load_packet(slot.wide(c, lane_));
      eight[1] = load_packet(slot.wide(c, lane_) + packet_bytes);
      if (__all_sync(whole_warp, !has_empty(eight[0]) && !has_empty(eight[1]))) break;
      const bool left = patience.left(c_, state_.epoch, [&] { return Place{why, source, run * staged_run, 0, 0}; });
      well_ = __all_sync(whole_warp, left);
      if (!well_) return false;
    }
#pragma unroll
    for (std::uint32_t b = 0; b < 2; ++b)
      pair.planes[b] = codec::to_planes(c.format, {narrowed(eight[b].x, eight[b].y), narrowed(eight[b].z, eight[b].w)});
    return true;
  }

  __device__ __forceinline__ void clear_runs(const Codec& c, const CodedChunk& step, std::uint32_t run,
                                             std::uint32_t wanted, std::uint32_t wide) const {
    __syncwarp();
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if ((wanted >> s & 1) != 0) clear_run(c, slot_of(step, c_.rank, s, run), lane_, (wide >> s & 1) != 0);
  }

  __device__ __forceinline__ void add(std::uint32_t run) {
    if (!well_ || !has_run(c_.rank, run)) return;
    const Codec c = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    const std::uint32_t wanted = ((1u << c_.ranks) - 1) & ~(1u << c_.rank);
    const RawPair raw = load_own(c_.rank, run);
    RunWords words[Most];
    std::uint32_t wide;
    if (!await_runs(c, a_.parts, CommStep::part, run, wanted, words, wide)) return;
    PairValues sum = {}, values;
    CodedPair own;
    codec::Group group;
    to_float<type>(raw, values);
    const bool usual = code(c, extremes_of<type>(c, raw), values, group, own, values) && wide == 0;
    codec::Bound bound;
    if (usual) {
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s) {
        if (s >= c_.ranks) continue;
        const CodedPair part = chosen(s == c_.rank, own, narrow_pair(c, words[s], lane_));
        group = read_group(c, part.words);
        decode_pair(c, group, part, values);
        codec::add_part(bound, c, range, group);
        add_values(sum, values, s == 0);
      }
    } else {
#pragma unroll 1
      for (std::uint32_t s = 0; s < c_.ranks; ++s) {
        CodedPair part = own;
        if (s != c_.rank && !load_any(c, a_.parts, CommStep::part, run, s, (wide >> s & 1) != 0, part)) return;
        group = read_group(c, part.words);
        decode_any_pair(c, range, group, part, values);
        codec::add_part(bound, c, range, group);
        add_values(sum, values, s == 0);
      }
    }
    clear_runs(c, a_.parts, run, wanted, wide);
#pragma unroll
    for (std::uint32_t i = 0; i < 2 * coded_block_values; ++i)
      if (!has(c_.rank, block_of(run) + i / coded_block_values * 2)) sum[i] = 0;
    CodedPair pair;
    const bool narrow = code(sums, extremes_of(sums, sum), sum, group, pair, values);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i)
      store_run(sums, slot_of(a_.sums, peer_of(i), c_.rank, run), pair, narrow);
    store_out(c_.rank, run, values);
    report(run, bound, sums, group, values);
  }

  __device__ __forceinline__ void report(std::uint32_t run, const codec::Bound& bound, const Codec& sums,
                                         const codec::Group& group, const PairValues& values) {
#pragma unroll
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::uint32_t block = block_of(run) + 2 * b;
      if (!has(c_.rank, block)) continue;
      this->note_coded_error(bound, sums, group);
      if (group.kind != codec::GroupKind::marked) continue;
      float eight[coded_block_values];
#pragma unroll
      for (std::uint32_t i = 0; i < coded_block_values; ++i) eight[i] = values[b * coded_block_values + i];
      this->count_non_finite(c_.rank * a_.piece + block, eight);
    }
  }

  __device__ __forceinline__ void take(std::uint32_t run) {
    if (!well_) return;
    const Codec c = FormOfSums::of(a_.sums.codec);
    std::uint32_t wanted = 0, wide;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if (s < c_.ranks && s != c_.rank && has_run(s, run)) wanted |= 1u << s;
    RunWords words[Most];
    if (!await_runs(c, a_.sums, CommStep::sum, run, wanted, words, wide)) return;
    PairValues values;
    if (wide == 0) {
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s) {
        if ((wanted >> s & 1) == 0) continue;
        const CodedPair sums = narrow_pair(c, words[s], lane_);
        decode_pair(c, read_group(c, sums.words), sums, values);
        store_out(s, run, values);
      }
    } else {
#pragma unroll 1
      for (std::uint32_t s = 0; s < c_.ranks; ++s) {
        CodedPair sums;
        if ((wanted >> s & 1) == 0) continue;
        if (!load_any(c, a_.sums, CommStep::sum, run, s, (wide >> s & 1) != 0, sums)) return;
        decode_any_pair(c, codec::range_of(type), read_group(c, sums.words), sums, values);
        store_out(s, run, values);
      }
    }
    clear_runs(c, a_.sums, run, wanted, wide);
  }
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(most_packet_threads(Most), 1) coded_packets(const __grid_constant__ CodedArgs a) {
  wait_for_stream();
  if (!is_turn(a.comm, read_state(a.comm))) return;
  CodedPackets<type, Most, FormOfParts, FormOfSums>(a).run();
}

template <Type type, typename FormOfParts, typename FormOfSums>
CodedEntry packet_entry() {
  return {{FormOfParts::of({}), FormOfSums::of({})},
          {{reinterpret_cast<const void*>(&coded_packets<type, 2, FormOfParts, FormOfSums>)},
           {reinterpret_cast<const void*>(&coded_packets<type, 4, FormOfParts, FormOfSums>)},
           {reinterpret_cast<const void*>(&coded_packets<type, 8, FormOfParts, FormOfSums>)}}};
}

}  // namespace imbrex::cuda
