#include "execute/peer_access.hpp"

#include <fmt/format.h>

#include "base/environment.hpp"
#include "plan/strategies/registry.hpp"

namespace imbrex::execute {

bool has_peer_access() { return base::environment().peer_access(); }

std::string reach_of(const Task& task, int rank) {
  const auto away = [&](const Region& region) { return !region.empty() && region.rank != rank; };
  const auto any = [&](const std::vector<Region>& regions) -> const Region* {
    for (const Region& region : regions)
      if (away(region)) return &region;
    return nullptr;
  };
  if (const auto* tile = std::get_if<Tile>(&task.work)) {
    if (away(tile->a)) return fmt::format("reads A of rank {}", tile->a.rank);
    if (const Region* slot = any(tile->adds)) return fmt::format("adds a slot of rank {}", slot->rank);
    for (const Store& store : tile->stores)
      if (away(store.to)) return fmt::format("stores to rank {}", store.to.rank);
  } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
    if (away(transfer->from)) return fmt::format("copies from rank {}", transfer->from.rank);
    if (away(transfer->to)) return fmt::format("copies to rank {}", transfer->to.rank);
  } else if (const auto* reduction = std::get_if<Reduction>(&task.work)) {
    if (const Region* from = any(reduction->from)) return fmt::format("adds what lies on rank {}", from->rank);
    if (const Region* to = any(reduction->to)) return fmt::format("stores to rank {}", to->rank);
  } else if (const auto* block = std::get_if<Block>(&task.work)) {
    if (const Region* read = any(block->reads)) return fmt::format("reads what lies on rank {}", read->rank);
    for (const Store& store : block->stores)
      if (away(store.to)) return fmt::format("stores to rank {}", store.to.rank);
  } else if (const auto* collective = std::get_if<Collective>(&task.work)) {
    if (collective->backend == Backend::imbrex) return "is a collective of backend imbrex, which stores to peers";
  }
  for (const Post& post : task.posts)
    if (post.rank != rank) return fmt::format("posts to rank {}", post.rank);
  return "";
}

std::string refusal_without_peer_access(const Plan& plan) {
  for (int rank = 0; rank < std::ssize(plan.ranks); ++rank) {
    const auto& queues = plan.ranks[static_cast<std::size_t>(rank)].queues;
    for (int q = 0; q < std::ssize(queues); ++q) {
      const auto& tasks = queues[static_cast<std::size_t>(q)].tasks;
      for (std::size_t t = 0; t < tasks.size(); ++t)
        if (const std::string reach = reach_of(tasks[t], rank); !reach.empty())
          return fmt::format(
              "{} {}, and IMBREX_PEER_ACCESS=0 says that ranks do not reach each other's memory: {} plans, with "
              "collectives of backend nccl, do not",
              task_name(rank, q, t, tasks[t]), reach, plan::names_without_peers());
    }
  }
  return "";
}

}  // namespace imbrex::execute
