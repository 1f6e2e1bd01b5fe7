// A communicator's exact all-reduces.
#include "collectives/cuda/exact/exact.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/cuda/wire/sizes.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

const void* exact_kernel_bf16(std::uint32_t ranks, const ExactShape& shape, bool report);
const void* exact_kernel_fp16(std::uint32_t ranks, const ExactShape& shape, bool report);
const void* exact_kernel_fp32(std::uint32_t ranks, const ExactShape& shape, bool report);

const void* exact_kernel(Type type, std::uint32_t ranks, const ExactShape& shape, bool report) {
  return type == Type::bf16   ? exact_kernel_bf16(ranks, shape, report)
         : type == Type::fp16 ? exact_kernel_fp16(ranks, shape, report)
                              : exact_kernel_fp32(ranks, shape, report);
}

void load_exact_kernels() {
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (const std::uint32_t ranks : {2u, 4u, max_comm_ranks}) {
      std::vector<ExactShape> shapes{{ExactKernel::one_shot, 1, 32, 1}};
      for (std::uint32_t batch = 1; batch <= most_batch(ranks); batch *= 2)
        shapes.push_back({ExactKernel::two_shot, 1, 32, batch});
      for (const ExactShape& shape : shapes)
        for (const bool report : {false, true}) {
          cudaFuncAttributes attributes{};
          IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, exact_kernel(type, ranks, shape, report)));
        }
    }
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
  IMBREX_EXPECTS(knobs.batch == 0 || (std::has_single_bit(knobs.batch) && knobs.batch <= most_batch(comm_.ranks)),
                 "batches of {}: 1, 2, or 4 of two ranks", knobs.batch);
  IMBREX_EXPECTS(knobs.slots == 0 || (knobs.slots >= 3 && knobs.slots <= most_exact_slots), "{} slots: from 3 to {}",
                 knobs.slots, most_exact_slots);
  ExactShape s;
  if (algorithm == ExactAlgorithm::one_shot) {
    s.kernel = ExactKernel::one_shot;
    s.batch = 1;
    s.threads = knobs.threads != 0 ? knobs.threads : packets <= 64 * 128 ? 128 : packets <= 128 * 256 ? 256 : 512;
    s.blocks = own_blocks(knobs.blocks, blocks_for(packets, s.threads, usual_blocks_));
    const std::uint64_t most = slot_bytes();
    IMBREX_EXPECTS(bytes <= most, "{} elements of {}: one_shot takes at most {} bytes with this workspace", count,
                   name_of(type), most);
    return s;
  }
  // Measured on four H200s: more threads than the links need let no step wait for another. On two, where a thread has
  // one peer's packet on its way where it has three of four ranks', batches make up for that.
  const std::uint64_t piece = ceil_div(packets, comm_.ranks);
  const bool large = piece > 128 * 256, huge = piece > (3 << 20);
  s.kernel = ExactKernel::two_shot;
  s.threads = knobs.threads != 0 ? knobs.threads : large ? 512 : 256;
  s.batch = knobs.batch != 0                         ? knobs.batch
            : huge                                   ? most_batch(comm_.ranks)
            : comm_.ranks == 2 && piece >= (1 << 18) ? 2
                                                     : 1;
  s.blocks = own_blocks(knobs.blocks, blocks_for(piece, s.threads * s.batch, usual_blocks_));
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

void CudaCollectives::all_reduce(const void* in, void* out, std::int64_t count, Type type, cudaStream_t stream,
                                 const ExactKnobs& knobs) {
  expect_operands(in, out, count, type);
  const ExactShape shape = shape_of(count, type, knobs);
  if (count == 0) return;
  if (comm_.ranks == 1 && knobs.turn == Turn::always && !knobs.report) {
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

}  // namespace imbrex::cuda
