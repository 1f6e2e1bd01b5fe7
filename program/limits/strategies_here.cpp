#include "program/limits/strategies_here.hpp"

#include <fmt/format.h>

#include "execute/cuda/refusal.hpp"
#include "execute/peer_access.hpp"
#include "plan/strategies/registry.hpp"

namespace imbrex::program {
namespace {

// What a plan of two ranks launches, as words.
std::string means_of(Strategy strategy) {
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 256, 256, 256, 2, Type::bf16}, strategy, {});
  bool tiles = false, libraries = false;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) {
        tiles = tiles || std::holds_alternative<Tile>(task.work);
        libraries = libraries || std::holds_alternative<Collective>(task.work);
      }
  return tiles && libraries ? "Imbrex' kernels and NCCL" : tiles ? "Imbrex' kernels" : "cuBLASLt and NCCL";
}

}  // namespace

std::vector<StrategyHere> strategies_here(const GpuSurvey& survey) {
  const int gpus = static_cast<int>(survey.gpus.size());
  std::vector<StrategyHere> list;
  for (const plan::StrategyEntry& entry : plan::strategy_entries) {
    if (entry.reaches_peers && !execute::has_peer_access()) {
      list.push_back({entry.name, false, "IMBREX_PEER_ACCESS=0 says that ranks do not reach each other's memory"});
      continue;
    }
    if (gpus == 0) {
      list.push_back({entry.name, true, "on the CPU"});
      continue;
    }
    std::string why = cuda::refusal_of_gpus(survey, gpus, true, false, true);
    const bool runs = why.empty();
    if (runs) {
      why = fmt::format("on {} GPU{}, by {}", gpus, gpus == 1 ? "" : "s", means_of(entry.strategy));
    } else if (!entry.reaches_peers && execute::has_peer_access()) {
      why += "; IMBREX_PEER_ACCESS=0 leaves the wire to NCCL";
    }
    list.push_back({entry.name, runs, std::move(why)});
  }
  return list;
}

}  // namespace imbrex::program
