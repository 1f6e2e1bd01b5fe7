#include "execute/cuda/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/ceil_div.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/steps/one_queue.hpp"
#include "execute/cuda/steps/step_list.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "execute/peer_access.hpp"
#include "imbrex/error.hpp"
#include "plan/problem.hpp"

namespace imbrex::cuda {
namespace {

// The plain kernel takes tiles of any size; what a tensor-core kernel cannot take, it does.
TileShape any_shape(const Plan& plan) {
  const Extent tile = largest_tile(plan);
  return {tile.rows, tile.cols, 1, false};
}

bool has_copies(const Plan& plan) {
  const auto copies = [](const Queue& q) { return q.engine == Engine::copy && !q.tasks.empty(); };
  return std::any_of(plan.ranks.begin(), plan.ranks.end(),
                     [&](const RankPlan& rank) { return std::any_of(rank.queues.begin(), rank.queues.end(), copies); });
}

std::string refusal_of_gpu(const Gpu& gpu, std::size_t number, bool processes, bool others) {
  // As IMBREX_CUDA_FLAGS and IMBREX_PTX_FLAGS compile the kernels.
  if (!others && (gpu.major != 9 || gpu.minor != 0))
    return fmt::format("GPU {} ({}) has compute capability {}.{}, and the kernels are for 9.0 (Hopper)", number,
                       gpu.name, gpu.major, gpu.minor);
  if (gpu.major < 8)
    return fmt::format("GPU {} ({}) has compute capability {}.{}, and the kernels are for 8.0 and later", number,
                       gpu.name, gpu.major, gpu.minor);
  if (!gpu.maps_memory) return fmt::format("GPU {} ({}) has no virtual memory management", number, gpu.name);
  if (processes && !gpu.exports_memory && execute::has_peer_access())
    return fmt::format("GPU {} ({}) does not pass memory between processes as file descriptors; ranks can be threads",
                       number, gpu.name);
  return {};
}

}  // namespace

std::string refusal_of_plan(const Plan& plan) {
  try {
    const execute::HeapLayout layout(plan);
    if (runs_in_steps(plan)) {
      expect_steps(plan);
      const OneQueue ordered = in_one_queue({std::shared_ptr<const Plan>(), &plan}, 0);
      for (int rank = 0; rank < plan.problem.ranks; ++rank) translate(*ordered.plan, layout, rank, {}, 0, no_tiles);
      return {};
    }
    const bool library = runs_by_libraries(plan), lanes = runs_in_lanes(plan);
    for (int rank = 0; rank < plan.problem.ranks; ++rank) {
      if (lanes)
        lane_plan(plan, rank);
      else if (library)
        library_program(plan, rank);
      if (lanes || !library) translate(plan, layout, rank, {}, 0, any_shape(plan));
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string refusal_of_library_bias(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const auto odd = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(problem.type)) % 16 != 0;
  };
  // Elsewhere a sum adds it.
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  const bool last = problem.ranks == 1 || !op.sums, into_out = problem.ranks == 1 || (!op.sums && !op.stacked);
  std::int64_t cols = shapes.b.cols;
  for (int product = 1; product < plan::count_products(problem); ++product)
    if (!odd(cols)) cols = plan::cols_of(problem, product);
  if (!problem.bias || !last || size_of(problem.type) != 2) return {};
  for (const OperandInfo& info : operands_of(problem))
    if ((info.role == OperandRole::input || into_out) && odd(info.pitch))
      return fmt::format(
          "cuBLASLt rounds products to {} before it adds a bias where rows, here of {}, lie {} elements apart, no "
          "multiple of 16 bytes",
          name_of(problem.type), info.name, info.pitch);
  if (!odd(cols) && !odd(shapes.depth)) return {};
  return fmt::format(
      "cuBLASLt rounds products to {} before it adds a bias where rows of A or B, here of {} and {} elements, are no "
      "multiples of 16 bytes",
      name_of(problem.type), shapes.depth, cols);
}

std::string refusal_of_turns(const Plan& plan) {
  if (runs_in_lanes(plan))
    return "any_m = true: plans of strategy signaled run tiles with library collectives, which on GPUs serve no "
           "operator of any M; leave the strategy out";
  return !runs_by_libraries(plan) && has_copies(plan) ? std::string(refusal_of_copies_in_turns()) : std::string();
}

std::string_view refusal_of_copies_in_turns() {
  return "any_m = true: on GPUs no copy engine brings the operands of operators of any M; transport store needs none";
}

std::string refusal_of_shared_copies(int ranks_per_gpu) {
  return fmt::format(
      "{} ranks to a GPU: operands that copy engines bring need a GPU for each rank; transport store does not",
      ranks_per_gpu);
}

std::string refusal_of_shared_libraries(int ranks_per_gpu) {
  return fmt::format(
      "{} ranks to a GPU: library collectives need a GPU for each rank that is a thread; processes may share one",
      ranks_per_gpu);
}

std::string refusal_of_sharing(const Plan& plan, int ranks_per_gpu, bool processes) {
  if (ranks_per_gpu == 1 || plan.problem.ranks == 1) return {};
  if (runs_by_libraries(plan)) return processes ? std::string() : refusal_of_shared_libraries(ranks_per_gpu);
  return has_copies(plan) ? refusal_of_shared_copies(ranks_per_gpu) : std::string();
}

std::string refusal_of_gpus(const GpuSurvey& survey, int ranks, bool processes, bool own, bool others,
                            int ranks_per_gpu) {
  const std::size_t count = survey.gpus.size();
  if (count == 0) return survey.reason;
  const auto wanted = static_cast<std::size_t>(base::ceil_div(ranks, ranks_per_gpu));
  const bool alone = own && count == 1;
  const std::string_view verb = count == 1 ? "is" : "are";
  if (count < wanted && !alone && ranks_per_gpu > 1)
    return fmt::format("{} ranks, {} to a GPU, need {} GPUs, and there {} {}", ranks, ranks_per_gpu, wanted, verb,
                       count);
  if (count < wanted && !alone) return fmt::format("{} ranks need a GPU each, and there {} {}", ranks, verb, count);
  for (std::size_t i = 0; i < (alone ? 1 : wanted); ++i) {
    if (std::string reason = refusal_of_gpu(survey.gpus[i], i, processes, others); !reason.empty()) return reason;
    for (std::size_t j = 0; !alone && j < wanted; ++j)
      if (survey.link(i, j) != GpuLink::nvlink && execute::has_peer_access())
        return fmt::format("GPU {} has no peer access with native atomics to GPU {}, which takes NVLink", i, j);
  }
  return {};
}

std::string refusal_of_given_gpu(const GpuSurvey& survey, int gpu, bool processes) {
  if (gpu < 0 || gpu >= std::ssize(survey.gpus))
    return fmt::format("gpu = {}: this process sees {}, numbered from 0", gpu, survey.gpus.size());
  const auto number = static_cast<std::size_t>(gpu);
  return refusal_of_gpu(survey.gpus[number], number, processes, true);
}

}  // namespace imbrex::cuda
