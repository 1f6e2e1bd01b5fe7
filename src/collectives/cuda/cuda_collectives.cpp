#include "collectives/cuda/cuda_collectives.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "codec/bound.hpp"
#include "codec/layout.hpp"
#include "collectives/all_reduce.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/early_launch.hpp"
#include "runtime/failure.hpp"

namespace imbrex::cuda {
namespace {

constexpr std::uint64_t packet_size = 16;

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

std::uint32_t blocks_for(std::uint64_t items, std::uint64_t a_block, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ceil_div(items, a_block), 1, most));
}

// Refuses before anything is taken, on every rank alike.
std::size_t workspace_for(const World& world, const CollectivesOptions& options) {
  IMBREX_EXPECTS(world.size() <= static_cast<int>(max_comm_ranks), "{} ranks: collectives on GPUs take at most {}",
                 world.size(), max_comm_ranks);
  constexpr std::size_t least = std::size_t{16} << 20;
  IMBREX_EXPECTS(options.workspace_bytes >= least, "workspace_bytes = {}: at least {} are needed",
                 options.workspace_bytes, least);
  IMBREX_EXPECTS(options.max_delay >= 0 && options.max_delay <= 1, "max_delay = {} s: it must be from 0 to 1",
                 options.max_delay);
  return options.workspace_bytes;
}

std::string text_of(const CommFault& f, int rank, double limit) {
  constexpr const char* what[] = {"vector", "part of this rank's sums", "sums", "free slots", "block", "vote"};
  const std::uint32_t peer = f.peer, block = f.block, expected = f.expected;
  const std::uint64_t epoch = f.epoch, packet = f.packet;
  return fmt::format("rank {} waited longer than {} s in collective call {}, block {}, for rank {}'s {}: {}", rank,
                     limit, epoch, block, peer, what[f.step],
                     expected == 0
                         ? fmt::format("packet {} has not come", packet)
                         : fmt::format("expected {} chunks, saw {}", expected, static_cast<std::int32_t>(f.seen)));
}

void expect_apart(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes, std::size_t element) {
  for (const void* p : {in, out})
    IMBREX_EXPECTS(p != nullptr && reinterpret_cast<std::uintptr_t>(p) % element == 0,
                   "operand at {}: it must be aligned to its elements' {} bytes", p, element);
  const auto *first = static_cast<const std::byte*>(in), *to = static_cast<const std::byte*>(out);
  IMBREX_EXPECTS(first + in_bytes <= to || to + out_bytes <= first,
                 "out at {} ({} bytes) overlaps in at {} ({} bytes): they must be apart, or one for an all-reduce", out,
                 out_bytes, in, in_bytes);
}

// One step's chunk of `blocks` blocks of values.
CodedChunk chunk_of(const Codec& codec, std::uint32_t blocks, int slot_bytes, bool ring) {
  const codec::ChunkLayout layout = codec::layout_of(codec, std::int64_t{blocks} * coded_block_values, slot_bytes);
  CodedChunk chunk{};
  chunk.codec = codec;
  chunk.second = static_cast<std::uint32_t>(layout.second);
  chunk.scale = static_cast<std::uint32_t>(layout.scale);
  chunk.offset = static_cast<std::uint32_t>(layout.offset);
  chunk.slot = static_cast<std::uint32_t>(layout.slot);
  chunk.group_shift =
      static_cast<std::uint32_t>(std::countr_zero(static_cast<std::uint32_t>(codec.group) / coded_block_values));
  chunk.bytes = static_cast<std::uint32_t>(
      ceil_div(static_cast<std::uint64_t>(layout.bytes) + (ring ? ring_trailer_bytes : 0), 128) * 128);
  return chunk;
}

}  // namespace

CudaCollectives::CudaCollectives(World& world, int device, const CollectivesOptions& options)
    : world_(world),
      device_(device),
      policy_(collectives::agreed_policy(world, runtime::gpu_of(device).name)),
      heap_(world, device, workspace_for(world, options)) {
  const Gpu& gpu = runtime::gpu_of(device);
  IMBREX_EXPECTS(gpu.major == 9, "GPU {} is of compute capability {}.{}: collectives of Imbrex' own take 9.0 (Hopper)",
                 device, gpu.major, gpu.minor);
  load_exact_kernels();
  load_coded_kernels();
  load_exchange_kernels();
  load_rms_norm_kernels();
  load_vote_kernels();
  processors_ = std::min(static_cast<std::uint32_t>(gpu.sms), max_comm_blocks);
  offset_ = heap_.allocate(options.workspace_bytes);
  void* fault = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&fault, sizeof(CommFault), cudaHostAllocMapped | cudaHostAllocPortable));
  fault_.reset(static_cast<CommFault*>(fault));
  std::memset(fault, 0, sizeof(CommFault));
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&fault, fault_.get(), 0));
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&rescue_, cudaStreamNonBlocking));

  comm_.first = heap_.handle().at(0, offset_);
  comm_.stride = heap_.handle().stride;
  comm_.copy_bytes = (options.workspace_bytes - slots_offset) / 4 / 4096 * 4096;
  comm_.limit_ns = static_cast<std::uint64_t>(world.options().wait_limit * 1e9);
  comm_.fault = static_cast<CommFault*>(fault);
  comm_.rank = static_cast<std::uint32_t>(world.rank());
  comm_.ranks = static_cast<std::uint32_t>(world.size());
  comm_.pause_seed = static_cast<std::uint32_t>(options.delays);
  comm_.max_pause_ns = options.delays == 0 ? 0 : static_cast<std::uint32_t>(options.max_delay * 1e9);
  // The slots of packets are empty before anybody sends.
  IMBREX_CUDA_TRY(cudaMemset(heap_.handle().at(world.rank(), offset_) + slots_offset, 0xff, 2 * comm_.copy_bytes));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  world_.barrier();
}

// What peers still send lies in memory that lives as long as they map it.
CudaCollectives::~CudaCollectives() {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  if (rescue_ != nullptr) cudaStreamDestroy(rescue_);
}

void CudaCollectives::expect_alive() {
  IMBREX_EXPECTS(!dead_, "these collectives failed before");
  look();
  world_.throw_if_failed();
}

// Of a whole vector, from each rank.
std::uint64_t CudaCollectives::slot_bytes() const { return comm_.copy_bytes / comm_.ranks / 256 * 256; }

std::int64_t CudaCollectives::one_shot_bytes(Type type, std::int64_t row_bytes) const {
  const std::uint64_t row = static_cast<std::uint64_t>(row_bytes), in_slots = ceil_div(row, packet_size) * packet_size;
  return std::min(policy_.one_shot_bytes(type), static_cast<std::int64_t>(slot_bytes() / in_slots * row));
}

ExactShape CudaCollectives::shape_of(std::int64_t count, Type type, const ExactKnobs& knobs) const {
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * size_of(type);
  const std::uint64_t packets = ceil_div(bytes, packet_size);
  ExactAlgorithm algorithm = knobs.algorithm;
  if (algorithm == ExactAlgorithm::automatic)
    algorithm =
        static_cast<std::int64_t>(bytes) <= one_shot_bytes(type) ? ExactAlgorithm::one_shot : ExactAlgorithm::two_shot;
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  IMBREX_EXPECTS(knobs.threads <= 512 && knobs.threads % 32 == 0, "{} threads: a multiple of 32 up to 512",
                 knobs.threads);
  IMBREX_EXPECTS(knobs.batch <= 2, "batches of {}: 1 or 2", knobs.batch);
  IMBREX_EXPECTS(knobs.slots == 0 || (knobs.slots >= 3 && knobs.slots <= most_exact_slots), "{} slots: from 3 to {}",
                 knobs.slots, most_exact_slots);
  ExactShape s;
  if (algorithm == ExactAlgorithm::one_shot) {
    s.kernel = ExactKernel::one_shot;
    s.batch = 1;
    s.threads = knobs.threads != 0 ? knobs.threads : packets <= 64 * 128 ? 128 : packets <= 128 * 256 ? 256 : 512;
    s.blocks = knobs.blocks != 0 ? knobs.blocks : blocks_for(packets, s.threads, 128);
    const std::uint64_t most = slot_bytes();
    IMBREX_EXPECTS(bytes <= most, "{} elements of {}: one_shot takes at most {} bytes with this workspace", count,
                   name_of(type), most);
    return s;
  }
  // Measured on four H200s: more threads than the links need let no step wait for another.
  const std::uint64_t piece = ceil_div(packets, comm_.ranks);
  const bool large = piece > 128 * 256, huge = piece > (3 << 20);
  s.kernel = ExactKernel::two_shot;
  s.threads = knobs.threads != 0 ? knobs.threads : large ? 512 : 256;
  s.batch = knobs.batch != 0 ? knobs.batch : huge ? 2 : 1;
  s.blocks = knobs.blocks != 0 ? knobs.blocks : blocks_for(piece, s.threads * s.batch, 128);
  s.slots = knobs.slots;
  // What is left to choose fits the workspace.
  const auto fits = [&] {
    const std::uint64_t span = std::uint64_t{s.blocks} * s.threads * s.batch;
    return ceil_div(piece, span) <= 1 || 3 * span * packet_size * 2 * comm_.ranks <= comm_.copy_bytes;
  };
  if (!fits() && knobs.batch == 0) s.batch = 1;
  while (!fits() && knobs.blocks == 0 && s.blocks > 1) s.blocks /= 2;
  return s;
}

ExactArgs CudaCollectives::arguments(const void* in, void* out, std::int64_t count, Type type,
                                     const ExactShape& shape) const {
  ExactArgs a{};
  a.comm = comm_;
  a.in = in;
  a.out = out;
  a.bytes = static_cast<std::uint64_t>(count) * size_of(type);
  a.packets = ceil_div(a.bytes, packet_size);
  if (shape.kernel == ExactKernel::one_shot) {
    a.source_stride = ceil_div(a.bytes, 256) * 256;
    return a;
  }
  // Pieces of whole 128-byte lines.
  a.piece = ceil_div(ceil_div(a.packets, comm_.ranks), 8) * 8;
  const std::uint64_t span = std::uint64_t{shape.blocks} * shape.threads * shape.batch;
  a.source_stride = comm_.copy_bytes / 2 / comm_.ranks / 256 * 256;
  const std::uint64_t chunks = ceil_div(a.piece, span), slots = a.source_stride / (span * packet_size);
  // A block that waits for room two rounds behind its peers, which wait for it one round ahead: three go on.
  IMBREX_EXPECTS(slots >= std::min<std::uint64_t>(chunks, 3),
                 "{} blocks of {} threads with batches of {}: the workspace holds {} chunks, at least 3 are needed",
                 shape.blocks, shape.threads, shape.batch, slots);
  IMBREX_EXPECTS(chunks < std::uint64_t{1} << 30, "{} elements are too many for {} blocks", count, shape.blocks);
  a.chunks = static_cast<std::uint32_t>(chunks);
  a.slots = a.chunks;
  if (slots < chunks || shape.slots != 0)
    a.slots =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, shape.slots != 0 ? shape.slots : most_exact_slots));
  return a;
}

void CudaCollectives::expect_operands(const void* in, const void* out, std::int64_t count, Type type) {
  expect_alive();
  IMBREX_EXPECTS(count >= 0, "count = {}: it must not be negative", count);
  if (count == 0) return;
  const std::size_t element = size_of(type), bytes = static_cast<std::size_t>(count) * element;
  expect_apart(in, in == out ? 0 : bytes, out, in == out ? 0 : bytes, element);
}

void CudaCollectives::launch(const void* kernel, std::uint32_t blocks, std::uint32_t threads, void* args,
                             cudaStream_t stream, std::size_t shared_bytes, std::uint32_t cluster) const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  cudaLaunchAttribute attributes[2] = {early_launch(), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  IMBREX_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, &args));
}

void CudaCollectives::all_reduce(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream,
                                 const ExactKnobs& knobs) {
  expect_operands(in, out, count, type);
  const ExactShape shape = shape_of(count, type, knobs);
  if (count == 0) return;
  if (comm_.ranks == 1 && knobs.turn == Turn::always) {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    if (in != out)
      IMBREX_CUDA_TRY(
          cudaMemcpyAsync(out, in, static_cast<std::size_t>(count) * size_of(type), cudaMemcpyDeviceToDevice, stream));
    return;
  }
  ExactArgs args = arguments(in, out, count, type, shape);
  args.comm.turn = knobs.turn;
  launch(exact_kernel(type, comm_.ranks, shape, knobs.report), shape.blocks, shape.threads, &args, stream);
}

CodedShape CudaCollectives::coded_shape_of(std::int64_t count, Type type, const CodecPair& pair, bool staged,
                                           const CodedKnobs& knobs) const {
  const std::uint32_t most_span = staged ? most_staged_span : most_coded_workers;
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  IMBREX_EXPECTS(knobs.slots == 0 || knobs.slots >= rounds_of(knobs.steps), "{} slots: at least {}", knobs.slots,
                 rounds_of(knobs.steps));
  IMBREX_EXPECTS(knobs.span <= most_span && knobs.span % 32 == 0, "a span of {}: a multiple of 32 up to {}", knobs.span,
                 most_span);
  const std::uint64_t piece = ceil_div(static_cast<std::uint64_t>(count),
                                       coded_block_values * (knobs.steps == CodedSteps::one_step ? 1 : comm_.ranks));
  CodedShape s;
  s.steps = knobs.steps;
  s.slots = knobs.slots;
  // Chunks of one size: the last one takes as long as the others.
  const std::uint64_t most = knobs.blocks != 0 ? knobs.blocks : processors_, each = ceil_div(piece, most);
  // A ring keeps more chunks under way. Staged kernels want two, if they are not too small (measured on four H200s).
  const std::uint32_t usual_span = knobs.steps == CodedSteps::ring ? 256 : most_span;
  const std::uint64_t chunks = std::max<std::uint64_t>(staged && each > 256 ? 2 : 1, ceil_div(each, usual_span));
  s.span = knobs.span != 0 ? knobs.span
                           : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                                 ceil_div(ceil_div(each, chunks), 32) * 32, staged ? 128 : 64, most_span));
  s.blocks = knobs.blocks != 0 ? knobs.blocks : blocks_for(piece, s.span, processors_);
  // What is left to choose fits the workspace.
  const auto fits = [&] {
    const int slot_bytes = knobs.tolerance >= 0 ? static_cast<int>(size_of(type)) : 0;
    const bool ring = s.steps == CodedSteps::ring;
    const std::uint64_t bytes = std::uint64_t{chunk_of(pair.reduce_scatter, s.span, slot_bytes, ring).bytes} +
                                chunk_of(pair.all_gather, s.span, slot_bytes, ring).bytes;
    const std::uint64_t held = std::min(rounds_of(s.steps), ceil_div(piece, std::uint64_t{s.span} * s.blocks));
    return held * bytes * s.blocks * comm_.ranks <= comm_.copy_bytes;
  };
  while (!fits() && knobs.span == 0 && s.span > 64) s.span = (s.span / 2 + 31) / 32 * 32;
  while (!fits() && knobs.blocks == 0 && s.blocks > 1) s.blocks /= 2;
  return s;
}

// So many rounds after it was sent, a chunk is done with.
std::uint64_t CudaCollectives::rounds_of(CodedSteps steps) const {
  return steps == CodedSteps::ring ? 2 * comm_.ranks - 1 : 3;
}

CodedArgs CudaCollectives::arguments(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair,
                                     const CodedShape& shape, float tolerance) const {
  IMBREX_EXPECTS(count <= std::int64_t{1} << 33, "{} values through a codec: at most 2^33", count);
  const auto ranks = static_cast<int>(comm_.ranks);
  const bool one_step = shape.steps == CodedSteps::one_step, ring = shape.steps == CodedSteps::ring;
  CodedArgs a{};
  a.comm = comm_;
  a.in = in;
  a.out = out;
  a.count = static_cast<std::uint64_t>(count);
  a.tolerance = tolerance;
  a.part_allowance = codec::part_allowance(tolerance, one_step ? ranks : ranks + 1);
  const auto group = static_cast<std::uint64_t>(one_step ? pair.reduce_scatter.group
                                                         : std::max(pair.reduce_scatter.group, pair.all_gather.group));
  a.value_blocks = static_cast<std::uint32_t>(ceil_div(a.count, group) * group / coded_block_values);
  constexpr std::uint64_t unit = collectives::share_unit / coded_block_values;
  a.piece = one_step ? a.value_blocks
                     : static_cast<std::uint32_t>(ceil_div(ceil_div(a.value_blocks, comm_.ranks), unit) * unit);
  a.span = shape.span;
  a.chunks = static_cast<std::uint32_t>(ceil_div(a.piece, std::uint64_t{a.span} * shape.blocks));
  const int slot_bytes = tolerance >= 0 ? static_cast<int>(size_of(type)) : 0;
  a.parts = chunk_of(pair.reduce_scatter, a.span, slot_bytes, ring);
  if (!one_step) a.sums = chunk_of(pair.all_gather, a.span, slot_bytes, ring);
  const std::uint64_t chunk_bytes = std::uint64_t{a.parts.bytes} + a.sums.bytes;
  const std::uint64_t slots = comm_.copy_bytes / (chunk_bytes * shape.blocks * comm_.ranks);
  const std::uint64_t rounds = rounds_of(shape.steps);
  IMBREX_EXPECTS(slots >= std::min<std::uint64_t>(a.chunks, rounds),
                 "{} blocks with a span of {}: the workspace holds {} chunks, at least {} are needed", shape.blocks,
                 shape.span, slots, rounds);
  // More of them only push each other out of the second-level cache.
  a.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>({slots, a.chunks, std::max<std::uint64_t>(rounds, 8)}));
  if (shape.slots != 0) a.slots = std::min(a.slots, shape.slots);
  a.parts.source_stride = std::uint64_t{a.parts.bytes} * shape.blocks * a.slots;
  a.sums.source_stride = std::uint64_t{a.sums.bytes} * shape.blocks * a.slots;
  a.sums.begin = a.parts.source_stride * comm_.ranks;
  return a;
}

void CudaCollectives::all_reduce(const void* in, void* out, std::int64_t count, Type type, const CodecPair& pair,
                                 cudaStream_t stream, const CodedKnobs& knobs) {
  validate(pair.reduce_scatter);
  validate(pair.all_gather);
  expect_operands(in, out, count, type);
  const CodedKernel kernel = knobs.steps == CodedSteps::one_step ? coded_one_shot_kernel(type)
                             : knobs.steps == CodedSteps::ring
                                 ? coded_ring_kernel(type)
                                 : coded_kernel(type, comm_.ranks, pair, knobs.tolerance >= 0);
  IMBREX_EXPECTS(knobs.steps != CodedSteps::ring || knobs.tolerance < 0, "a ring takes no tolerance");
  const CodedShape shape = coded_shape_of(count, type, pair, kernel.staged, knobs);
  if (count == 0) return;
  CodedArgs args = arguments(in, out, count, type, pair, shape, knobs.tolerance);
  args.comm.turn = knobs.turn;
  if (!kernel.staged) return launch(kernel.function, shape.blocks, shape.span + 32, &args, stream);
  launch(kernel.function, shape.blocks, staged_threads, &args, stream,
         std::size_t{part_stage_count} * args.parts.bytes + std::size_t{sum_stage_count} * args.sums.bytes);
}

void CudaCollectives::expect_blocks(ExchangeKind kind, const void* in, const void* out, std::int64_t count, Type type) {
  expect_alive();
  IMBREX_EXPECTS(count >= 0, "count = {}: it must not be negative", count);
  if (count == 0) return;
  const std::size_t element = size_of(type), bytes = static_cast<std::size_t>(count) * element;
  const bool gathers = kind == ExchangeKind::all_gather, sums = kind == ExchangeKind::reduce_scatter;
  expect_apart(in, bytes * (gathers ? 1 : comm_.ranks), out, bytes * (sums ? 1 : comm_.ranks), element);
}

void CudaCollectives::exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type,
                               const Codec& codec, cudaStream_t stream, std::uint32_t blocks) {
  validate(codec);
  expect_blocks(kind, in, out, count, type);
  const CodecPair pair{codec, codec};
  const CodedKnobs knobs{.blocks = blocks, .steps = CodedSteps::one_step};
  const CodedKernel kernel = coded_exchange_kernel(kind, type);
  const CodedShape shape = coded_shape_of(count, type, pair, kernel.staged, knobs);
  if (count == 0) return;
  CodedArgs args = arguments(in, out, count, type, pair, shape, -1);
  launch(kernel.function, shape.blocks, shape.span + 32, &args, stream);
}

void CudaCollectives::exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type,
                               cudaStream_t stream, const ExchangeKnobs& knobs) {
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  expect_blocks(kind, in, out, count, type);
  if (count == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  if (comm_.ranks == 1) {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    IMBREX_CUDA_TRY(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream));
    return;
  }
  // Stretches of blocks that the slots hold, one call each.
  const std::uint64_t most = slot_bytes();
  for (std::uint64_t at = 0; at < bytes; at += most) {
    ExchangeArgs args{comm_,
                      static_cast<const std::byte*>(in) + at,
                      static_cast<std::byte*>(out) + at,
                      std::min<std::uint64_t>(most, bytes - at),
                      bytes,
                      0,
                      at > 0};
    args.source_stride = ceil_div(args.bytes, 256) * 256;
    const std::uint64_t packets = ceil_div(args.bytes, packet_size);
    const std::uint32_t threads = packets <= 64 * 128 ? 128 : most_exchange_threads;
    launch(exchange_kernel(kind, type, comm_.ranks, knobs.report),
           knobs.blocks != 0 ? knobs.blocks : blocks_for(packets, threads, 128), threads, &args, stream);
  }
}

CommState CudaCollectives::own_state() const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  CommState state;
  IMBREX_CUDA_TRY(cudaMemcpy(&state, heap_.handle().at(world_.rank(), offset_), sizeof state, cudaMemcpyDeviceToHost));
  return state;
}

CommReport CudaCollectives::report() const {
  const CommState state = own_state();
  return state.reports[(state.blocks[0].epoch + 1) & 1];
}

void CudaCollectives::finish(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  bool told = false;
  for (int round = 0;; ++round) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady)
      fail(fmt::format("rank {}: the GPU reports: {}", world_.rank(), cudaGetErrorString(status)));
    cudaGetLastError();
    if (round < 20000) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (told || round % 64 != 0) continue;
    try {
      world_.throw_if_failed();
    } catch (const Error&) {
      abort();  // a peer is lost
      told = true;
    }
  }
  if (fault_->state != CommFault::clear || fault_->ended_early != 0 || told) throw_fault();
}

// Throws the world's first failure, which may be the loss of the rank that this one waited for.
void CudaCollectives::look() {
  if (fault_->state != CommFault::clear || fault_->ended_early != 0) throw_fault();
}

void CudaCollectives::abort() noexcept {
  const std::uint32_t yes = 1;
  std::byte* state = heap_.handle().at(world_.rank(), offset_);
  cudaMemcpyAsync(state + offsetof(CommState, abort), &yes, sizeof yes, cudaMemcpyHostToDevice, rescue_);
  cudaGetLastError();
}

void CudaCollectives::fail(const std::string& message) {
  dead_ = true;
  runtime::fail(world_, message);
}

void CudaCollectives::throw_fault() {
  dead_ = true;
  if (fault_->state == CommFault::timed_out) fail(text_of(*fault_, world_.rank(), world_.options().wait_limit));
  runtime::fail_as_told(world_);
}

}  // namespace imbrex::cuda
