// A communicator's calls through codecs.
#include "collectives/cuda/quantized/quantized.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "codec/bound.hpp"
#include "codec/layout.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/cuda/quantized/quantized_entries.hpp"
#include "collectives/cuda/wire/sizes.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

const std::vector<QuantizedEntry>& entries(Type type) {
  static const auto tables = [] {
    std::array<std::vector<QuantizedEntry>, 3> all;
    const auto add = [&](Type of, std::span<const QuantizedEntry> more) {
      auto& table = all[static_cast<std::size_t>(of)];
      table.insert(table.end(), more.begin(), more.end());
    };
#define IMBREX_QUANTIZED(source, of, ...) add(Type::of, quantized_##source());
#include "collectives/cuda/quantized/quantized_entries.def"
    return all;
  }();
  return tables[static_cast<std::size_t>(type)];
}

bool same_form(const Codec& a, const Codec& b) {
  return a.format == b.format && a.asymmetric == b.asymmetric && a.scale == b.scale;
}

// The pair's kernels; null where there are none.
const QuantizedEntry* find(Type type, const CodecPair& pair) {
  for (const QuantizedEntry& entry : entries(type))
    if (same_form(entry.pair.reduce_scatter, pair.reduce_scatter) && same_form(entry.pair.all_gather, pair.all_gather))
      return &entry;
  return nullptr;
}

// The one of an entry's kernels that is for so many ranks.
std::size_t kernel_for(std::uint32_t ranks) { return ranks > 4 ? 2 : ranks > 2 ? 1 : 0; }

template <typename... Kind>
const void* chosen(Type type, const void* (*bf16)(Kind...), const void* (*fp16)(Kind...), const void* (*fp32)(Kind...),
                   Kind... kind) {
  return type == Type::bf16 ? bf16(kind...) : type == Type::fp16 ? fp16(kind...) : fp32(kind...);
}

// A phase's chunk of `blocks` blocks of values.
QuantizedChunk chunk_of(const Codec& codec, std::uint32_t blocks, int slot_bytes, bool ring) {
  const codec::ChunkLayout layout = codec::layout_of(codec, std::int64_t{blocks} * quantized_block_values, slot_bytes);
  QuantizedChunk chunk{};
  chunk.codec = codec;
  chunk.second = static_cast<std::uint32_t>(layout.second);
  chunk.scale = static_cast<std::uint32_t>(layout.scale);
  chunk.offset = static_cast<std::uint32_t>(layout.offset);
  chunk.slot = static_cast<std::uint32_t>(layout.slot);
  chunk.group_shift =
      static_cast<std::uint32_t>(std::countr_zero(static_cast<std::uint32_t>(codec.group) / quantized_block_values));
  chunk.bytes = static_cast<std::uint32_t>(
      ceil_div(static_cast<std::uint64_t>(layout.bytes) + (ring ? ring_trailer_bytes : 0), 128) * 128);
  return chunk;
}

// Blocks of values, with those that fill up the last group.
std::uint32_t value_blocks_of(std::int64_t count, const CodecPair& pair) {
  const auto group = static_cast<std::uint64_t>(std::max(pair.reduce_scatter.group, pair.all_gather.group));
  return static_cast<std::uint32_t>(ceil_div(static_cast<std::uint64_t>(count), group) * group /
                                    quantized_block_values);
}

// Whether whole groups of parts do nothing but fill up the last group of sums. Only the kernel for any codec knows
// such.
bool fills_sums(std::int64_t count, const CodecPair& pair) {
  return value_blocks_of(count, {pair.reduce_scatter, pair.reduce_scatter}) < value_blocks_of(count, pair);
}

// Chunks of a staged kernel, whose blocks of threads have `each` blocks of values: few, as each takes its time to be
// posted; two for more than two ranks, so that both phases keep links busy at once; as large as can be for long
// vectors, if slots of such chunks stay near. Measured on two H200s and on four.
template <typename StayNear>
std::uint64_t staged_chunks(std::uint32_t ranks, std::uint64_t each, StayNear&& stay_near) {
  std::uint64_t span = ranks == 2 || each >= 6 * 1024 ? 1024 : 512;
  for (const std::uint64_t longer : {1536u, most_staged_span})
    if (each >= 20 * longer && stay_near(longer)) span = longer;
  return std::max<std::uint64_t>(ranks > 2 && each > 256 ? 2 : 0, ceil_div(each, span));
}

}  // namespace

QuantizedKernel quantized_one_shot_kernel(Type type) {
  return {chosen(type, quantized_one_shot_bf16, quantized_one_shot_fp16, quantized_one_shot_fp32), 0};
}

QuantizedKernel quantized_ring_kernel(Type type) {
  return {chosen(type, quantized_ring_bf16, quantized_ring_fp16, quantized_ring_fp32), 0};
}

QuantizedKernel quantized_exchange_kernel(ExchangeKind kind, Type type) {
  return {chosen(type, quantized_exchange_bf16, quantized_exchange_fp16, quantized_exchange_fp32, kind), 0};
}

const void* quantized_packets_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant) {
  const QuantizedEntry* entry = tolerant ? nullptr : find(type, pair);
  return entry != nullptr ? entry->packets[kernel_for(ranks)] : nullptr;
}

QuantizedKernel quantized_any_kernel(Type type) {
  return {chosen(type, quantized_any_bf16, quantized_any_fp16, quantized_any_fp32), 0};
}

QuantizedKernel quantized_kernel(Type type, std::uint32_t ranks, const CodecPair& pair, bool tolerant) {
  const QuantizedEntry* entry = tolerant ? nullptr : find(type, pair);
  return entry != nullptr ? entry->staged[kernel_for(ranks)] : quantized_any_kernel(type);
}

void load_quantized_kernels() {
  const auto load = [](const QuantizedKernel& kernel) {
    cudaFuncAttributes attributes{};
    IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel.function));
    if (kernel.staged_threads > 0)
      IMBREX_CUDA_TRY(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(most_staged_bytes)));
  };
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) {
    load(quantized_one_shot_kernel(type));
    load(quantized_ring_kernel(type));
    for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all})
      load(quantized_exchange_kernel(kind, type));
    load(quantized_any_kernel(type));
    for (const QuantizedEntry& entry : entries(type)) {
      for (const QuantizedKernel& kernel : entry.staged) load(kernel);
      for (const void* kernel : entry.packets) load({kernel});
    }
  }
}

QuantizedShape CudaCollectives::quantized_shape_of(std::int64_t count, Type type, const CodecPair& pair, bool staged,
                                                   const QuantizedKnobs& knobs) const {
  const std::uint32_t most_span = staged ? most_staged_span : most_quantized_workers;
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  IMBREX_EXPECTS(knobs.slots == 0 || knobs.slots >= rounds_of(knobs.steps), "{} slots: at least {}", knobs.slots,
                 rounds_of(knobs.steps));
  IMBREX_EXPECTS(knobs.span <= most_span && knobs.span % 32 == 0, "a span of {}: a multiple of 32 up to {}", knobs.span,
                 most_span);
  const std::uint64_t piece =
      ceil_div(static_cast<std::uint64_t>(count),
               quantized_block_values * (knobs.steps == QuantizedSteps::one_shot ? 1 : comm_.ranks));
  QuantizedShape s;
  s.steps = knobs.steps;
  s.slots = knobs.slots;
  const int slot_bytes = knobs.tolerance >= 0 ? static_cast<int>(size_of(type)) : 0;
  const bool ring = s.steps == QuantizedSteps::ring;
  const auto bytes_of = [&](std::uint64_t span, std::uint64_t blocks) {  // of one slot for each block and source
    return blocks * comm_.ranks *
           (std::uint64_t{chunk_of(pair.reduce_scatter, static_cast<std::uint32_t>(span), slot_bytes, ring).bytes} +
            chunk_of(pair.all_gather, static_cast<std::uint32_t>(span), slot_bytes, ring).bytes);
  };
  const std::uint64_t most = own_blocks(knobs.blocks, processors_), each = ceil_div(piece, most);
  // In L2, with a third of it left to the vectors.
  const auto stay_near = [&](std::uint64_t span) {
    return (rounds_of(s.steps) + 1) * bytes_of(span, most) <= std::uint64_t{40} << 20;
  };
  const std::uint64_t chunks = std::max<std::uint64_t>(
      1, staged ? staged_chunks(comm_.ranks, each, stay_near) : ceil_div(each, ring ? 256 : most_span));
  // Chunks of one size: the last one takes as long as the others. In whole runs where kernels take these.
  const std::uint64_t unit = staged ? staged_run : 32;
  s.span = knobs.span != 0 ? knobs.span
                           : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                                 ceil_div(ceil_div(each, chunks), unit) * unit, staged ? 128 : 64, most_span));
  s.blocks = own_blocks(knobs.blocks, blocks_for(piece, s.span, processors_));
  // What is left to choose fits the workspace.
  const auto fits = [&] {
    const std::uint64_t held = std::min(rounds_of(s.steps), ceil_div(piece, std::uint64_t{s.span} * s.blocks));
    return held * bytes_of(s.span, s.blocks) <= comm_.copy_bytes;
  };
  while (!fits() && knobs.span == 0 && s.span > 64)
    s.span = static_cast<std::uint32_t>(ceil_div(s.span / 2, unit) * unit);
  while (!fits() && knobs.blocks == 0 && s.blocks > 1) s.blocks /= 2;
  return s;
}

// So many rounds after it was sent, a chunk is done with.
std::uint64_t CudaCollectives::rounds_of(QuantizedSteps steps) const {
  return steps == QuantizedSteps::ring ? 2 * comm_.ranks - 1 : 3;
}

QuantizedArgs CudaCollectives::arguments(const void* in, void* out, std::int64_t count, Type type,
                                         const CodecPair& pair, const QuantizedShape& shape, float tolerance) const {
  IMBREX_EXPECTS(count <= std::int64_t{1} << 33, "{} values through a codec: at most 2^33", count);
  const auto ranks = static_cast<int>(comm_.ranks);
  const bool one_shot = shape.steps == QuantizedSteps::one_shot, ring = shape.steps == QuantizedSteps::ring;
  QuantizedArgs a{};
  a.comm = comm_;
  a.in = in;
  a.out = out;
  a.count = static_cast<std::uint64_t>(count);
  a.tolerance = tolerance;
  a.part_allowance = codec::part_allowance(tolerance, one_shot ? ranks : ranks + 1);
  a.value_blocks = value_blocks_of(count, one_shot ? CodecPair{pair.reduce_scatter, pair.reduce_scatter} : pair);
  a.piece = one_shot ? a.value_blocks : quantized_piece(a.value_blocks);
  a.span = shape.span;
  a.chunks = static_cast<std::uint32_t>(ceil_div(a.piece, std::uint64_t{a.span} * shape.blocks));
  const int slot_bytes = tolerance >= 0 ? static_cast<int>(size_of(type)) : 0;
  a.parts = chunk_of(pair.reduce_scatter, a.span, slot_bytes, ring);
  if (!one_shot) a.sums = chunk_of(pair.all_gather, a.span, slot_bytes, ring);
  const std::uint64_t chunk_bytes = std::uint64_t{a.parts.bytes} + a.sums.bytes;
  const std::uint64_t bytes_a_slot = chunk_bytes * shape.blocks * comm_.ranks;
  const std::uint64_t slots = comm_.copy_bytes / bytes_a_slot;
  const std::uint64_t rounds = rounds_of(shape.steps);
  IMBREX_EXPECTS(slots >= std::min<std::uint64_t>(a.chunks, rounds),
                 "{} blocks with a span of {}: the workspace holds {} chunks, at least {} are needed", shape.blocks,
                 shape.span, slots, rounds);
  // More of them only push each other out of L2, of which they leave a third to the vectors. Two
  // ranks' slots are half as large, and twice as many pay (measured on two H200s, as the others on four).
  std::uint64_t held = std::max<std::uint64_t>(rounds, comm_.ranks == 2 ? 16 : 8);
  if (shape.steps == QuantizedSteps::two_shot && comm_.ranks > 2)
    held = std::clamp<std::uint64_t>((std::uint64_t{32} << 20) / bytes_a_slot, rounds + 1, held);
  a.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>({slots, a.chunks, held}));
  if (shape.slots != 0) a.slots = std::min(a.slots, shape.slots);
  a.parts.source_stride = std::uint64_t{a.parts.bytes} * shape.blocks * a.slots;
  a.sums.source_stride = std::uint64_t{a.sums.bytes} * shape.blocks * a.slots;
  a.sums.begin = a.parts.source_stride * comm_.ranks;
  return a;
}

// Blocks of values of each rank's part: whole shares.
std::uint32_t CudaCollectives::quantized_piece(std::uint32_t value_blocks) const {
  constexpr std::uint32_t unit = collectives::share_unit / quantized_block_values;
  return static_cast<std::uint32_t>(ceil_div(ceil_div(value_blocks, comm_.ranks), unit) * unit);
}

bool CudaCollectives::goes_by_packets(std::int64_t count, Type type, const CodecPair& pair,
                                      const QuantizedKnobs& knobs) const {
  if (knobs.way == QuantizedWay::copies) return false;
  const std::uint64_t runs = ceil_div(quantized_piece(value_blocks_of(count, pair)), staged_run);
  const bool possible =
      count <= std::int64_t{1} << 33 && knobs.steps == QuantizedSteps::two_shot && knobs.span == 0 &&
      knobs.slots == 0 && comm_.ranks > 1 && !fills_sums(count, pair) &&
      quantized_packets_kernel(type, comm_.ranks, pair, knobs.tolerance >= 0) != nullptr &&
      runs * comm_.ranks * (run_slot_bytes(pair.reduce_scatter) + run_slot_bytes(pair.all_gather)) <= comm_.copy_bytes;
  IMBREX_EXPECTS(
      possible || knobs.way == QuantizedWay::automatic,
      "{} values of {} through {}: no packets for these ranks, groups, steps, chunks, slots, tolerance, and workspace",
      count, name_of(type), name_of(pair));
  return knobs.way == QuantizedWay::packets ||
         (possible && count * static_cast<std::int64_t>(size_of(type)) <= most_packet_vector);
}

void CudaCollectives::all_reduce_by_packets(const void* in, void* out, std::int64_t count, Type type,
                                            const CodecPair& pair, cudaStream_t stream, const QuantizedKnobs& knobs) {
  QuantizedArgs a{};
  a.comm = comm_;
  a.comm.turn = knobs.turn;
  a.in = in;
  a.out = out;
  a.count = static_cast<std::uint64_t>(count);
  a.tolerance = -1;
  a.value_blocks = value_blocks_of(count, pair);
  a.piece = quantized_piece(a.value_blocks);
  const std::uint64_t runs = ceil_div(a.piece, staged_run);
  a.parts.codec = pair.reduce_scatter;
  a.sums.codec = pair.all_gather;
  for (QuantizedChunk* step : {&a.parts, &a.sums}) {
    step->bytes = run_slot_bytes(step->codec);
    step->source_stride = runs * step->bytes;
  }
  a.sums.begin = a.parts.source_stride * comm_.ranks;
  // A warp for each run if there are enough, spread over the processors.
  const std::uint64_t most = own_blocks(knobs.blocks, processors_);
  const std::uint64_t warps = std::min<std::uint64_t>(ceil_div(runs, most), most_packet_threads(comm_.ranks) / 32);
  const auto blocks = static_cast<std::uint32_t>(std::min(most, ceil_div(runs, warps)));
  launch(quantized_packets_kernel(type, comm_.ranks, pair, false), blocks, static_cast<std::uint32_t>(warps) * 32, &a,
         stream);
}

void CudaCollectives::all_reduce(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair,
                                 cudaStream_t stream, const QuantizedKnobs& knobs) {
  validate(pair.reduce_scatter);
  validate(pair.all_gather);
  expect_operands(in, out, count, type);
  if (count > 0 && goes_by_packets(count, type, pair, knobs))
    return all_reduce_by_packets(in, out, count, type, pair, stream, knobs);
  const QuantizedKernel kernel =
      knobs.steps == QuantizedSteps::one_shot ? quantized_one_shot_kernel(type)
      : knobs.steps == QuantizedSteps::ring
          ? quantized_ring_kernel(type)
          : quantized_kernel(type, comm_.ranks, pair, knobs.tolerance >= 0 || fills_sums(count, pair));
  IMBREX_EXPECTS(knobs.steps != QuantizedSteps::ring || knobs.tolerance < 0, "a ring takes no tolerance");
  IMBREX_EXPECTS(knobs.steps != QuantizedSteps::ring || !fills_sums(count, pair),
                 "{} values through {}: a ring takes no vector whose last group of sums is longer than that of parts",
                 count, name_of(pair));
  const QuantizedShape shape = quantized_shape_of(count, type, pair, kernel.staged_threads > 0, knobs);
  if (count == 0) return;
  QuantizedArgs args = arguments(in, out, count, type, pair, shape, knobs.tolerance);
  args.comm.turn = knobs.turn;
  if (kernel.staged_threads == 0) return launch(kernel.function, shape.blocks, shape.span + 32, &args, stream);
  launch(kernel.function, shape.blocks, kernel.staged_threads, &args, stream,
         std::size_t{part_stage_count} * args.parts.bytes + std::size_t{kernel.sum_stages} * args.sums.bytes);
}

void CudaCollectives::exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type,
                               const Codec& codec, cudaStream_t stream, std::uint32_t blocks) {
  validate(codec);
  expect_blocks(kind, in, out, count, type);
  const CodecPair pair{codec, codec};
  const QuantizedKnobs knobs{.blocks = blocks, .steps = QuantizedSteps::one_shot};
  const QuantizedKernel kernel = quantized_exchange_kernel(kind, type);
  const QuantizedShape shape = quantized_shape_of(count, type, pair, kernel.staged_threads > 0, knobs);
  if (count == 0) return;
  QuantizedArgs args = arguments(in, out, count, type, pair, shape, -1);
  launch(kernel.function, shape.blocks, shape.span + 32, &args, stream);
}

}  // namespace imbrex::cuda
