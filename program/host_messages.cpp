#include "program/host_messages.hpp"

#include <map>

namespace imbrex::program {
namespace {

class Count {
 public:
  Count(const Plan& plan, int nodes) : plan_(plan), places_(plan.problem.ranks / nodes) {}

  HostMessages run() {
    for (int rank = 0; rank < plan_.problem.ranks; ++rank)
      for (const Queue& queue : plan_.ranks[static_cast<std::size_t>(rank)].queues)
        for (const Task& task : queue.tasks) std::visit([&](const auto& work) { add(rank, work); }, task.work);
    return found_;
  }

 private:
  bool apart(int x, int y) const { return x / places_ != y / places_; }

  double bytes_of(const Region& region) const {
    return static_cast<double>(region.rows) * static_cast<double>(region.cols) *
           static_cast<double>(size_of(plan_.buffers[static_cast<std::size_t>(region.buffer)].type));
  }

  void add(int from, int to, double bytes, std::int64_t count = 1) {
    if (bytes == 0 || !apart(from, to)) return;
    found_.count += count;
    found_.bytes += bytes;
  }

  template <typename Stores, typename RegionOf>
  void add_stores(int rank, const Stores& stores, RegionOf&& region_of) {
    std::map<int, double> bytes;  // by target
    for (const auto& store : stores) bytes[region_of(store).rank] += bytes_of(region_of(store));
    for (const auto& [to, sum] : bytes) add(rank, to, sum);
  }

  void add(int rank, const Tile& tile) {
    add(tile.a.rank, rank, bytes_of(tile.a));
    for (const Region& slot : tile.adds) add(slot.rank, rank, bytes_of(slot));
    add_stores(rank, tile.stores, [](const Store& s) { return s.to; });
  }
  void add(int rank, const Block& block) {
    for (const Region& region : block.reads) add(region.rank, rank, bytes_of(region));
    // The first share stands for all of them.
    if (block.share == 0) add_stores(rank, block.stores, [](const Store& s) { return s.to; });
  }
  void add(int rank, const Reduction& reduction) {
    for (const Region& from : reduction.from) add(from.rank, rank, bytes_of(from));
    add_stores(rank, reduction.to, [](const Region& to) { return to; });
  }
  void add(int, const Transfer& transfer) {
    if (!transfer.from.empty()) add(transfer.from.rank, transfer.to.rank, bytes_of(transfer.from));
  }
  void add(int, const Product&) {}

  void add(int rank, const Collective& collective) {
    const std::vector<int> joined = ranks_of(collective, plan_);
    const auto ranks = static_cast<std::int64_t>(joined.size());
    if (collective.kind == CollectiveKind::all_to_all) {
      for (const int other : joined) add(rank, other, bytes_of(collective.from) / static_cast<double>(ranks));
      return;
    }
    const bool gathers = collective.kind == CollectiveKind::all_gather,
               both = collective.kind == CollectiveKind::all_reduce;
    const double whole = bytes_of(gathers ? collective.to : collective.from);
    const std::int64_t steps = (both ? 2 : 1) * (ranks - 1);
    for (std::size_t i = 0; i < joined.size(); ++i)
      if (joined[i] == rank)
        add(rank, joined[(i + 1) % joined.size()], whole * static_cast<double>(steps) / static_cast<double>(ranks),
            steps);
  }

  const Plan& plan_;
  int places_;  // ranks on a host
  HostMessages found_;
};

}  // namespace

HostMessages messages_between_hosts(const Plan& plan, int nodes) { return Count(plan, nodes).run(); }

}  // namespace imbrex::program
