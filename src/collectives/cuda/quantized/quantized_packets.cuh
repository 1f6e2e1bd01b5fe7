// The two-shot all-reduce through a codec of vectors that are not long: packets that carry their own flag (packet.cuh),
// so that no fence stands between a phase and the next one.
//
// The vector is cut in pieces as for the other kernels, a piece in runs of 64 blocks of eight values; a warp takes
// whole runs, a thread two blocks of one group (quantized_run.cuh). In its k-th round a warp
//
//   1. codes its k-th run of every other piece for the piece's owner,
//   2. adds the parts of run k - 1 of its own piece by rank number, codes the sums for all, and decodes its output,
//   3. decodes the sums of run k - 2 of the other pieces.
//
// A run in a slot, all of it `empty` between calls: words of codes for each lane; for each group a word with its step,
// and with its offset, or of symmetric codes with the run's key; of asymmetric codes a word with the key.
//
// Keys. Codes may be any bits, `empty` among them, so each of their bytes travels exclusive-or'ed with the run's key,
// of which nothing comes out as `empty`. There is one: `empty` is four times the same byte, so each of a run's at most
// 128 words rules out at most one of 256 keys. Nearly always the first one will do.
//
// Slots hold all runs of a call: no warp waits for room or posts.
#pragma once

#include "collectives/cuda/quantized/quantized_rank.cuh"
#include "collectives/cuda/quantized/quantized_run.cuh"
#include "collectives/cuda/wire/packet.cuh"

namespace imbrex::cuda {

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

/// A lane's words of codes: those of its two blocks' planes, of int6 and int5 the second planes in the third word.
using CodeWords = uint4;

__device__ __forceinline__ CodeWords code_words(const Codec& c, const QuantizedPair& pair) {
  const codec::Planes &a = pair.planes[0], &b = pair.planes[1];
  switch (codec::first_plane_bits(c.format)) {
    case 8: return {a.first[0], a.first[1], b.first[0], b.first[1]};
    case 4: return {a.first[0], b.first[0], a.second | b.second << 16, 0};
  }
  return {a.first[0] | b.first[0] << 16, a.second | b.second << 16, 0, 0};
}

__device__ __forceinline__ QuantizedPair pair_of(const Codec& c, const CodeWords& w, std::uint32_t words) {
  QuantizedPair pair{};
  pair.words = {words, 0};
  codec::Planes &a = pair.planes[0], &b = pair.planes[1];
  switch (codec::first_plane_bits(c.format)) {
    case 8:
      a = {{w.x, w.y}, 0};
      b = {{w.z, w.w}, 0};
      break;
    case 4:
      a = {{w.x, 0}, w.z & 0xffffu};
      b = {{w.y, 0}, w.z >> 16};
      break;
    default: a = {{w.x & 0xffffu, 0}, w.y & 0xffffu}; b = {{w.x >> 16, 0}, w.y >> 16};
  }
  return pair;
}

/// Each byte exclusive-or'ed with the key.
__device__ __forceinline__ CodeWords keyed(const CodeWords& w, std::uint32_t key) {
  const std::uint32_t keys = key * 0x01010101u;
  return {w.x ^ keys, w.y ^ keys, w.z ^ keys, w.w ^ keys};
}

__device__ __forceinline__ bool has_empty(const Codec& c, const CodeWords& w) {
  const std::uint32_t words = lane_words(c);
  const std::uint32_t two = max(w.x, w.y), three = words > 2 ? max(two, w.z) : two;
  return (words > 3 ? max(three, w.w) : three) == empty_word;
}

/// The run's: the least of which no lane's words come out empty. By a whole warp.
__device__ __forceinline__ std::uint32_t key_of(const Codec& c, const CodeWords& words) {
  std::uint32_t key = 0;
  while (__any_sync(whole_warp, has_empty(c, keyed(words, key)))) ++key;
  return key;
}

/// What a lane loads of a run.
struct RunWords {
  CodeWords codes;
  std::uint32_t group, key;  ///< its group's word; asymmetric: the key's
};

/// A run in a slot (run_slot_bytes), as a lane sees it.
struct RunSlot {
  std::byte* first;
  std::uint32_t lane;

  /// A group's lanes.
  static __device__ __forceinline__ std::uint32_t span(const Codec& c) {
    return static_cast<std::uint32_t>(c.group) / (2 * quantized_block_values);
  }
  __device__ __forceinline__ bool leads(const Codec& c) const { return lane % span(c) == 0; }

  /// The first four or two words, and the third.
  __device__ __forceinline__ std::byte* codes(const Codec& c) const {
    return first + lane * (lane_words(c) == 4 ? 16 : 8);
  }
  __device__ __forceinline__ std::byte* third() const { return first + 32 * 8 + lane * 4; }
  __device__ __forceinline__ std::byte* group(const Codec& c) const {
    return first + 32 * 4 * lane_words(c) + lane / span(c) * 4;
  }
  __device__ __forceinline__ std::byte* key(const Codec& c) const {
    return first + 32 * 4 * lane_words(c) + run_group_bytes;
  }

  __device__ __forceinline__ RunWords load(const Codec& c) const {
    RunWords words{};
    if (lane_words(c) == 4) {
      words.codes = load_packet(codes(c));
    } else {
      const uint2 two = load_two_system(codes(c));
      words.codes = {two.x, two.y, lane_words(c) == 3 ? load_word_system(third()) : 0, 0};
    }
    words.group = load_word_system(group(c));
    if (c.asymmetric) words.key = load_word_system(key(c));
    return words;
  }

  __device__ __forceinline__ void store(const Codec& c, const RunWords& words) const {
    if (lane_words(c) == 4)
      store_packet(codes(c), words.codes);
    else
      store_two_system(codes(c), {words.codes.x, words.codes.y});
    if (lane_words(c) == 3) device::store_relaxed(third(), words.codes.z);
    if (leads(c)) device::store_relaxed(group(c), words.group);
    if (c.asymmetric && lane == 0) device::store_relaxed(key(c), words.key);
  }

  /// By a whole warp, once all its lanes have loaded all of it.
  __device__ __forceinline__ void clear(const Codec& c) const {
    constexpr std::uint32_t e = empty_word;
    store(c, {{e, e, e, e}, e, e});
  }
};

// NOTE: a group's step is below all bits set, which would be a NaN scale, so its word is never empty.
__device__ __forceinline__ bool has_come(const Codec& c, const RunWords& words) {
  return !has_empty(c, words.codes) && words.group != empty_word && words.key != empty_word;
}

/// A run's codes as they travel, and back. By a whole warp.
__device__ __forceinline__ RunWords sent(const Codec& c, const QuantizedPair& pair) {
  const CodeWords codes = code_words(c, pair);
  const std::uint32_t key = key_of(c, codes);
  return {keyed(codes, key), c.asymmetric ? pair.words.scale : pair.words.scale | key << 16, c.asymmetric ? key : 0};
}
__device__ __forceinline__ QuantizedPair received(const Codec& c, const RunWords& words) {
  const std::uint32_t key = c.asymmetric ? words.key : words.group >> 16;
  return pair_of(c, keyed(words.codes, key), c.asymmetric ? words.group : words.group & 0xffffu);
}

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
class QuantizedPackets : QuantizedRank<type, false> {
  using Base = QuantizedRank<type, false>;
  using Base::a_, Base::c_, Base::state_, Base::in_, Base::out_, Base::well_, Base::lane_;
  using Base::has, Base::peer_of;

 public:
  __device__ __forceinline__ explicit QuantizedPackets(const QuantizedArgs& args) : Base(args) {}

  __device__ __forceinline__ void run() {
    const std::uint32_t runs = (a_.piece + staged_run - 1) / staged_run, warps = gridDim.x * (blockDim.x / 32),
                        first = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
                        own = first < runs ? (runs - first + warps - 1) / warps : 0;
    for (std::uint32_t round = 0; own != 0 && round < own + 2; ++round) {
      maybe_pause(c_, state_.epoch, round);
      if (round < own) send(first + round * warps);
      if (round == 0) well_ = __all_sync(whole_warp, well_);
      if (round >= 1 && round - 1 < own) add(first + (round - 1) * warps);
      if (round >= 2) take(first + (round - 2) * warps);
    }
    this->end();
  }

 private:
  /// Whether a run of `owner`'s piece is there.
  __device__ __forceinline__ bool has_run(std::uint32_t owner, std::uint32_t run) const {
    return has(owner, run * staged_run);
  }
  /// The lane's first block of a run, in a piece.
  __device__ __forceinline__ std::uint32_t block_of(std::uint32_t run) const {
    return run * staged_run + first_in_run(lane_);
  }
  __device__ __forceinline__ RunSlot slot_of(const QuantizedChunk& step, std::uint32_t rank, std::uint32_t source,
                                             std::uint32_t run) const {
    return {
        slots_of(c_, rank, state_.epoch) + step.begin + source * step.source_stride + std::uint64_t{run} * step.bytes,
        lane_};
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
    for (std::uint32_t b = 0; b < 2; ++b)
      if (const std::uint32_t block = block_of(run) + 2 * b; has(owner, block))
        out_.store(owner * a_.piece + block, values[b]);
  }

  /// Codes of any groups, and what they stand for. By a whole warp, as what follows.
  __device__ __forceinline__ QuantizedPair code_any(const Codec& c, const codec::Extremes& extremes,
                                                    const PairValues& values, codec::Group& group,
                                                    PairValues& decoded) const {
    constexpr codec::Range range = codec::range_of(type);
    group = any_group(c, range, extremes, values);
    return code_any_pair(c, range, group, values, decoded);
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
        const codec::Extremes extremes = extremes_of<type>(c, raw);
        bool usual = true;
        codec::Group group = usual_group<type>(c, extremes, usual);
        const QuantizedPair pair = __all_sync(whole_warp, usual)
                                       ? code_pair(c, codec::range_of(type), group, values, values)
                                       : code_any(c, extremes, values, group, values);
        const RunWords words = sent(c, pair);
        if (well_) slot_of(a_.parts, peer, c_.rank, run).store(c, words);
      }
      raw = next;
    }
  }

  /// Waits for a run from each source in `wanted`. False if they did not come.
  __device__ __forceinline__ bool await_runs(const Codec& c, const QuantizedChunk& step, CommStep why,
                                             std::uint32_t run, std::uint32_t wanted, RunWords (&words)[Most]) {
    BoundedPolls polls;
    for (;;) {
      std::uint32_t missing = 0;
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if ((wanted >> s & 1) != 0) words[s] = slot_of(step, c_.rank, s, run).load(c);
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s)
        if ((wanted >> s & 1) != 0 && !has_come(c, words[s])) missing = s + 1;
      missing = __reduce_max_sync(whole_warp, missing);
      if (missing == 0) return true;
      const bool left = polls.left(c_, state_.epoch, [&] { return Place{why, missing - 1, run * staged_run, 0, 0}; });
      well_ = __all_sync(whole_warp, left);
      if (!well_) return false;
    }
  }

  __device__ __forceinline__ void clear_runs(const Codec& c, const QuantizedChunk& step, std::uint32_t run,
                                             std::uint32_t wanted) const {
    __syncwarp();
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if ((wanted >> s & 1) != 0) slot_of(step, c_.rank, s, run).clear(c);
  }

  __device__ __forceinline__ void add(std::uint32_t run) {
    if (!well_ || !has_run(c_.rank, run)) return;
    const Codec c = FormOfParts::of(a_.parts.codec);
    const std::uint32_t wanted = ((1u << c_.ranks) - 1) & ~(1u << c_.rank);
    const RawPair raw = load_own(c_.rank, run);
    RunWords words[Most];
    if (!await_runs(c, a_.parts, CommStep::part, run, wanted, words)) return;
    if (!add_usual(run, raw, words)) add_any(run);
    clear_runs(c, a_.parts, run, wanted);
  }

  /// Sums a run by rank number; or says that some group is not usual.
  __device__ __forceinline__ bool add_usual(std::uint32_t run, const RawPair& raw, const RunWords (&words)[Most]) {
    const Codec c = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    bool usual = true;
    PairValues sum, values;
    to_float<type>(raw, values);
    const QuantizedPair own =
        code_pair(c, range, usual_group<type>(c, extremes_of<type>(c, raw), usual), values, values);
    codec::Bound bound;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if (s < c_.ranks)
        add_usual_part<type>(c, chosen(s == c_.rank, own, received(c, words[s])), s == 0, sum, bound, usual);
    const codec::Group group = usual_group<type>(sums, extremes_of(sums, sum), usual);
    if (!__all_sync(whole_warp, usual)) return false;
    const QuantizedPair pair = code_pair(sums, range, group, sum, values);
    put_sums(run, bound, group, pair, values);
    return true;
  }

  /// Adds a run with any groups. Reads all anew: nothing is kept for so rare a case.
  __device__ __forceinline__ void add_any(std::uint32_t run) {
    const Codec c = FormOfParts::of(a_.parts.codec), sums = FormOfSums::of(a_.sums.codec);
    constexpr codec::Range range = codec::range_of(type);
    const RawPair raw = load_own(c_.rank, run);
    PairValues sum = {}, values;
    to_float<type>(raw, values);
    codec::Group group;
    const QuantizedPair own = code_any(c, extremes_of<type>(c, raw), values, group, values);
    codec::Bound bound;
#pragma unroll 1
    for (std::uint32_t s = 0; s < c_.ranks; ++s) {
      QuantizedPair part = own;
      if (s != c_.rank) part = received(c, slot_of(a_.parts, c_.rank, s, run).load(c));
      group = read_group(c, part.words);
      decode_any_pair(c, range, group, part, values);
      codec::add_part(bound, c, range, group);
      add_values(sum, values, s == 0);
    }
    const QuantizedPair pair = code_any(sums, extremes_of(sums, sum), sum, group, values);
    put_sums(run, bound, group, pair, values);
  }

  /// Sends a run's quantized sums to all, stores what they stand for, and reports.
  __device__ __forceinline__ void put_sums(std::uint32_t run, const codec::Bound& bound, const codec::Group& group,
                                           const QuantizedPair& pair, const PairValues& values) {
    const Codec sums = FormOfSums::of(a_.sums.codec);
    const RunWords words = sent(sums, pair);
#pragma unroll 1
    for (std::uint32_t i = 1; i < c_.ranks; ++i) slot_of(a_.sums, peer_of(i), c_.rank, run).store(sums, words);
    store_out(c_.rank, run, values);
#pragma unroll
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::uint32_t block = block_of(run) + 2 * b;
      if (!has(c_.rank, block)) continue;
      this->note_quantized_error(bound, sums, group);
      if (group.kind == codec::GroupKind::marked) this->count_non_finite(c_.rank * a_.piece + block, values[b]);
    }
  }

  __device__ __forceinline__ void take(std::uint32_t run) {
    if (!well_) return;
    const Codec c = FormOfSums::of(a_.sums.codec);
    std::uint32_t wanted = 0;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if (s < c_.ranks && s != c_.rank && has_run(s, run)) wanted |= 1u << s;
    RunWords words[Most];
    if (!await_runs(c, a_.sums, CommStep::sum, run, wanted, words)) return;
    bool usual = true;
#pragma unroll
    for (std::uint32_t s = 0; s < Most; ++s)
      if ((wanted >> s & 1) != 0) read_usual_group<type>(c, received(c, words[s]).words, usual);
    PairValues values;
    if (__all_sync(whole_warp, usual)) {
#pragma unroll
      for (std::uint32_t s = 0; s < Most; ++s) {
        if ((wanted >> s & 1) == 0) continue;
        const QuantizedPair sums = received(c, words[s]);
        decode_pair(c, read_group(c, sums.words), sums, values);
        store_out(s, run, values);
      }
    } else {
#pragma unroll 1
      for (std::uint32_t s = 0; s < c_.ranks; ++s) {
        if ((wanted >> s & 1) == 0) continue;
        const QuantizedPair sums = received(c, slot_of(a_.sums, c_.rank, s, run).load(c));
        decode_any_pair(c, codec::range_of(type), read_group(c, sums.words), sums, values);
        store_out(s, run, values);
      }
    }
    clear_runs(c, a_.sums, run, wanted);
  }
};

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
__global__ void __launch_bounds__(most_packet_threads(Most), 1)
    quantized_packets(const __grid_constant__ QuantizedArgs a) {
  device::wait_for_stream();
  if (!is_turn(a.comm, read_state(a.comm))) return;
  QuantizedPackets<type, Most, FormOfParts, FormOfSums>(a).run();
}

template <Type type, int Most, typename FormOfParts, typename FormOfSums>
const void* packets_kernel() {
  return reinterpret_cast<const void*>(&quantized_packets<type, Most, FormOfParts, FormOfSums>);
}

}  // namespace imbrex::cuda
