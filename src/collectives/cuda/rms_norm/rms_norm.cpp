#include "collectives/cuda/rms_norm/rms_norm.hpp"

#include <algorithm>
#include <bit>

#include "collectives/all_reduce.hpp"
#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/cuda/wire/sizes.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

const void* rms_norm_kernel_bf16(std::uint32_t ranks, ExactKernel kernel);
const void* rms_norm_kernel_fp16(std::uint32_t ranks, ExactKernel kernel);
const void* rms_norm_kernel_fp32(std::uint32_t ranks, ExactKernel kernel);

const void* rms_norm_kernel(Type type, std::uint32_t ranks, ExactKernel kernel) {
  return type == Type::bf16   ? rms_norm_kernel_bf16(ranks, kernel)
         : type == Type::fp16 ? rms_norm_kernel_fp16(ranks, kernel)
                              : rms_norm_kernel_fp32(ranks, kernel);
}

void load_rms_norm_kernels() {
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (const std::uint32_t ranks : {4u, max_comm_ranks})
      for (const ExactKernel kernel : {ExactKernel::one_shot, ExactKernel::two_shot}) {
        cudaFuncAttributes attributes{};
        IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, rms_norm_kernel(type, ranks, kernel)));
      }
}

namespace {

struct Launch {
  RmsNormArgs args{};
  std::uint32_t clusters = 0;
};

/// Spreads rows over blocks; few rows each over several, many over the groups of a block.
void spread(Launch& launch, std::uint64_t rows, const RmsNormKnobs& knobs, std::uint32_t blocks) {
  RmsNormArgs& a = launch.args;
  const std::uint32_t warps = a.row.threads / 32;
  // A block of fewer threads than these sends no faster.
  constexpr std::uint32_t least_warps = 4;
  a.cluster = knobs.cluster;
  if (knobs.cluster == 0)
    for (a.cluster = 1; 2 * a.cluster <= most_row_blocks && rows * 2 * a.cluster <= blocks &&
                        warps % (2 * a.cluster) == 0 && warps / (2 * a.cluster) >= least_warps;)
      a.cluster *= 2;
  IMBREX_EXPECTS(
      std::has_single_bit(a.cluster) && a.cluster <= most_row_blocks && warps % a.cluster == 0 && a.cluster <= blocks,
      "clusters of {} blocks: 1, 2, 4 or {}, at most {}, for rows of {} warps", a.cluster, most_row_blocks, blocks,
      warps);
  const std::uint32_t most = a.cluster > 1 ? 1 : collectives::most_row_threads / a.row.threads,
                      clusters = blocks / a.cluster;
  a.groups = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ceil_div(rows, clusters), 1, most));
  launch.clusters = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ceil_div(rows, a.groups), 1, clusters));
}

void plan_one_shot(Launch& launch) {
  RmsNormArgs& a = launch.args;
  a.source_stride = ceil_div(a.rows * a.row.packets * packet_size, 256) * 256;
  IMBREX_EXPECTS(a.source_stride * a.comm.ranks <= a.comm.copy_bytes,
                 "all_reduce_rms_norm: {} rows of {} elements: one_shot takes at most {} rows with this workspace",
                 a.rows, a.hidden, a.comm.copy_bytes / a.comm.ranks / (a.row.packets * packet_size));
}

void plan_two_shot(Launch& launch) {
  RmsNormArgs& a = launch.args;
  a.source_stride = a.comm.copy_bytes / 2 / a.comm.ranks / 256 * 256;
  std::uint64_t chunks = 0, slots = 0;
  // As in the exact two-shot, fewer than three slots could wait for each other.
  const auto fits = [&] {
    const std::uint64_t rows = std::uint64_t{launch.clusters} * a.groups;
    chunks = ceil_div(a.piece, rows);
    slots = a.source_stride / (rows * a.row.packets * packet_size);
    return slots >= std::min<std::uint64_t>(chunks, 3);
  };
  while (!fits() && a.groups > 1) a.groups /= 2;
  while (!fits() && launch.clusters > 1) launch.clusters /= 2;
  IMBREX_EXPECTS(fits(),
                 "all_reduce_rms_norm: rows of {} elements: the workspace holds {} of them, at least 3 are needed",
                 a.hidden, slots);
  IMBREX_EXPECTS(chunks < std::uint64_t{1} << 30, "all_reduce_rms_norm: {} rows are too many for {} blocks", a.rows,
                 launch.clusters * a.cluster);
  a.chunks = static_cast<std::uint32_t>(chunks);
  a.slots = slots >= chunks ? a.chunks : static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, most_exact_slots));
}

}  // namespace

void CudaCollectives::all_reduce_rms_norm(const collectives::RmsNormOperands& operands, std::int64_t rows,
                                          std::int64_t hidden, float eps, Type type, cudaStream_t stream,
                                          const RmsNormKnobs& knobs) {
  expect_alive();
  validate(AllReduceRmsNormOptions{.eps = eps}, rows, hidden);
  collectives::expect_weight_type(operands.weight_type, type);
  collectives::expect_operands(operands, rows, rows, hidden, type);
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  if (rows == 0) return;
  Launch l;
  RmsNormArgs& a = l.args;
  a.comm = comm_;
  a.in = operands.in;
  a.residual = operands.residual;
  a.weight = operands.weight;
  a.residual_out = operands.residual_out;
  a.out = operands.out;
  a.rows = static_cast<std::uint64_t>(rows);
  a.row_bytes = static_cast<std::uint64_t>(hidden) * size_of(type);
  a.row = collectives::row_shape(hidden, type);
  a.hidden = static_cast<float>(hidden);
  a.eps = eps;
  a.fp32_weight = type != Type::fp32 && operands.weight_type == Type::fp32;
  a.piece = ceil_div(a.rows, comm_.ranks);
  const bool one_shot =
      knobs.algorithm == ExactAlgorithm::one_shot ||
      (knobs.algorithm == ExactAlgorithm::automatic &&
       static_cast<std::int64_t>(a.rows * a.row_bytes) <= one_shot_bytes(type, static_cast<std::int64_t>(a.row_bytes)));
  spread(l, one_shot ? a.rows : a.piece, knobs, own_blocks(knobs.blocks, usual_blocks_));
  one_shot ? plan_one_shot(l) : plan_two_shot(l);
  launch(rms_norm_kernel(type, comm_.ranks, one_shot ? ExactKernel::one_shot : ExactKernel::two_shot),
         l.clusters * a.cluster, a.groups * a.row.threads / a.cluster, &a, stream, 0, a.cluster);
}

}  // namespace imbrex::cuda
