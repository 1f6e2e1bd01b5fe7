#include "execute/peer_access.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "machine/rates.hpp"
#include "plan/strategies/registry.hpp"

namespace imbrex::execute {

bool has_peer_access() { return base::environment().peer_access(); }

std::string reach_of(const Task& task, int rank, const std::function<bool(int peer)>& may) {
  const auto beyond = [&](int peer) { return peer != rank && !(may && may(peer)); };
  const auto away = [&](const Region& region) { return !region.empty() && beyond(region.rank); };
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
    const bool reaches =
        !may || collective->ranks.empty() || std::any_of(collective->ranks.begin(), collective->ranks.end(), beyond);
    if (collective->backend == Backend::imbrex && reaches)
      return "is a collective of backend imbrex, which stores to peers";
  }
  for (const Post& post : task.posts)
    if (beyond(post.rank)) return fmt::format("posts to rank {}", post.rank);
  return "";
}

namespace {

std::string first_reach(const Plan& plan, const std::string& why, const std::function<bool(int rank, int peer)>& may) {
  for (int rank = 0; rank < std::ssize(plan.ranks); ++rank) {
    const auto& queues = plan.ranks[static_cast<std::size_t>(rank)].queues;
    for (int q = 0; q < std::ssize(queues); ++q) {
      const auto& tasks = queues[static_cast<std::size_t>(q)].tasks;
      for (std::size_t t = 0; t < tasks.size(); ++t)
        if (const std::string reach = reach_of(tasks[t], rank, [&](int peer) { return may(rank, peer); });
            !reach.empty())
          return fmt::format("{} {}, and {}: {} plans, with collectives of backend nccl, do not",
                             task_name(rank, q, t, tasks[t]), reach, why, plan::names_without_peers());
    }
  }
  return "";
}

}  // namespace

std::string refusal_without_peer_access(const Plan& plan) {
  return first_reach(plan, "IMBREX_PEER_ACCESS=0 says that ranks do not reach each other's memory",
                     [](int, int) { return false; });
}

std::string refusal_without_peer_access(const Plan& plan, const Machine& machine) {
  if (machine::all_reach(machine, std::ssize(plan.ranks))) return "";
  const double devices = machine.peer_access;
  return first_reach(
      plan,
      devices == 1
          ? fmt::format("no device of machine {} reaches another's memory (links.peer_access is 1)", machine.name)
          : fmt::format("only {} devices that follow each other reach each other's memory on machine {} "
                        "(links.peer_access)",
                        devices, machine.name),
      [&](int rank, int peer) { return machine::reaches(machine, rank, peer); });
}

}  // namespace imbrex::execute
