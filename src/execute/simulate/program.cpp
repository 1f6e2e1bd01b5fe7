#include "execute/simulate/program.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "execute/simulate/tile_model.hpp"

namespace imbrex::simulate {
namespace {

// Sizes far above any real matrix, yet small enough that sums of products stay exact in a double.
constexpr std::int64_t max_extent = std::int64_t{1} << 40;

class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan) {}

  void check(int rank, int queue, std::size_t index) {
    rank_ = rank;
    queue_ = queue;
    index_ = index;
    const RankPlan& own = plan_.ranks[static_cast<std::size_t>(rank)];
    const Task& task = own.queues[static_cast<std::size_t>(queue)].tasks[index];
    for (const Wait& wait : task.waits)
      IMBREX_EXPECTS(wait.signal >= 0 && wait.signal < own.signals, "{} waits for signal {}; its rank has {}", name(),
                     wait.signal, own.signals);
    for (const Post& post : task.posts) {
      IMBREX_EXPECTS(post.rank >= 0 && post.rank < std::ssize(plan_.ranks), "{} posts to rank {}; there are {}", name(),
                     post.rank, plan_.ranks.size());
      const int signals = plan_.ranks[static_cast<std::size_t>(post.rank)].signals;
      IMBREX_EXPECTS(post.signal >= 0 && post.signal < signals, "{} posts to signal {} of rank {}, which has {}",
                     name(), post.signal, post.rank, signals);
    }
    std::visit([&](const auto& work) { regions(work); }, task.work);
  }

 private:
  std::string name() const { return task_name(plan_, rank_, queue_, index_); }

  void region(const Region& region) {
    IMBREX_EXPECTS(region.rank >= 0 && region.rank < std::ssize(plan_.ranks), "{} names rank {}; there are {}", name(),
                   region.rank, plan_.ranks.size());
    IMBREX_EXPECTS(region.buffer >= 0 && region.buffer < std::ssize(plan_.buffers), "{} names buffer {}; there are {}",
                   name(), region.buffer, plan_.buffers.size());
    for (std::int64_t extent : {region.rows, region.cols})
      IMBREX_EXPECTS(extent >= 0 && extent <= max_extent, "{} has a region of {} x {}; sizes must be 0 to 2^40", name(),
                     region.rows, region.cols);
  }
  void all(const std::vector<Region>& list) {
    for (const Region& item : list) region(item);
  }
  void regions(const Tile& tile) {
    region(tile.a);
    region(tile.b);
    all(tile.adds);
    for (const Store& store : tile.stores) region(store.to);
  }
  void regions(const Transfer& transfer) {
    if (transfer.from.empty() && transfer.to.empty()) return;
    region(transfer.from);
    region(transfer.to);
  }
  void regions(const Reduction& reduction) {
    all(reduction.from);
    all(reduction.to);
  }
  void regions(const Collective& collective) {
    region(collective.from);
    region(collective.to);
    const auto& ranks = collective.ranks;
    IMBREX_EXPECTS(ranks.empty() || std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(),
                   "{} joins ranks, but not its own", name());
  }

  const Plan& plan_;
  int rank_ = 0, queue_ = 0;
  std::size_t index_ = 0;
};

bool same_kernel(const Task& a, const Task& b) {
  return a.work.index() == b.work.index() && a.waits == b.waits && a.posts == b.posts;
}

// Among how many of `sms` SMs a tile's depth is best split: each takes its part of the time, and then its turn to add.
std::uint32_t best_split(const Plan& plan, const Tile& tile, const TileModel& model, const Machine& machine,
                         std::uint32_t sms) {
  const double products = model.compute_seconds(tile.a.rows, tile.b.cols, tile.a.cols),
               load = (bytes_of(plan, tile.a) + bytes_of(plan, tile.b)) / machine.sm_memory_bandwidth,
               parts = std::sqrt(std::max(products, load) / std::max(model.epilogue(), 1e-9));
  return static_cast<std::uint32_t>(std::clamp(std::round(parts), 1.0, static_cast<double>(std::max(1u, sms))));
}

// Kernel by kernel.
void split_tiles(const Plan& plan, Program& program, const FlatQueue& queue, const Machine& machine) {
  const TileModel model(machine, plan, 0);
  const auto sms = static_cast<std::uint32_t>(machine.sms.value);
  for (std::uint32_t begin = queue.begin, end = begin; begin < queue.end; begin = end) {
    while (end < queue.end && program.tasks[end].kernel == program.tasks[begin].kernel) ++end;
    for (std::uint32_t t = begin; t < end; ++t)
      if (const Tile* tile = std::get_if<Tile>(&program.tasks[t].task->work))
        program.tasks[t].split = best_split(plan, *tile, model, machine, sms / (end - begin));
  }
}

}  // namespace

double bytes_of(const Plan& plan, const Region& region) {
  if (region.empty()) return 0;
  const Type type = plan.buffers[static_cast<std::size_t>(region.buffer)].type;
  return static_cast<double>(region.rows) * static_cast<double>(region.cols) * static_cast<double>(size_of(type));
}

Program lay_out(const Plan& plan, const Machine& machine) {
  const auto ranks = std::ssize(plan.ranks);
  IMBREX_EXPECTS(ranks >= 1 && ranks <= max_ranks, "the plan has {} ranks; it must have 1 to {}", ranks, max_ranks);
  IMBREX_EXPECTS(ranks == plan.problem.ranks, "the plan has queues for {} ranks, but its problem names {}", ranks,
                 plan.problem.ranks);
  IMBREX_EXPECTS(ranks <= machine.devices, "the plan has {} ranks, but machine '{}' has {} devices", ranks,
                 machine.name, machine.devices);
  Program program;
  program.streams = plan.strategy == Strategy::sequential || plan.strategy == Strategy::decomposed;
  Checker checker(plan);
  std::uint32_t signals = 0;
  // What shares tiles counts as one worker.
  const auto share = static_cast<std::uint32_t>(program.streams ? 1 : std::max(plan.knobs.cluster_k, 1));
  const std::uint32_t sms = std::max(1u, static_cast<std::uint32_t>(machine.sms.value) / share);
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const RankPlan& own = plan.ranks[rank];
    IMBREX_EXPECTS(own.signals >= 0 && own.signals <= (1 << 28), "rank {} has {} signals; it must have 0 to 2^28", rank,
                   own.signals);
    program.first_signal.push_back(signals);
    signals += static_cast<std::uint32_t>(own.signals);
    IMBREX_EXPECTS(signals <= (1u << 28), "the plan has more than 2^28 signals");
    std::uint32_t reserved = 0;
    for (const Queue& queue : own.queues) {
      IMBREX_EXPECTS(queue.workers >= 0 && queue.workers <= 65536, "rank {} reserves {} workers; it must be 0 to 65536",
                     rank, queue.workers);
      if (queue.engine == Engine::compute) reserved += static_cast<std::uint32_t>(queue.workers);
    }
    // Every queue runs with one worker at least, whatever others reserve.
    const auto shared = static_cast<std::uint32_t>(program.pools.size());
    program.pools.push_back({rank, 0, reserved < sms ? sms - reserved : 1, true});
    std::uint32_t next_sm = program.pools.back().workers;
    for (std::uint32_t q = 0; q < own.queues.size(); ++q) {
      const Queue& queue = own.queues[q];
      FlatQueue flat{queue.engine, rank, q, static_cast<std::uint32_t>(program.tasks.size()), 0, none};
      if (queue.engine == Engine::compute) {
        flat.pool = shared;
        if (queue.workers > 0) {
          flat.pool = static_cast<std::uint32_t>(program.pools.size());
          program.pools.push_back({rank, next_sm, static_cast<std::uint32_t>(queue.workers), false});
          next_sm += static_cast<std::uint32_t>(queue.workers);
        }
      }
      std::uint32_t kernel = 0;
      for (std::uint32_t t = 0; t < queue.tasks.size(); ++t) {
        checker.check(static_cast<int>(rank), static_cast<int>(q), t);
        if (t > 0 && program.streams && !same_kernel(queue.tasks[t - 1], queue.tasks[t])) ++kernel;
        program.tasks.push_back({&queue.tasks[t], rank, static_cast<std::uint32_t>(program.queues.size()), kernel, t});
        if (std::holds_alternative<Tile>(queue.tasks[t].work)) program.tasks.back().split = share;
      }
      flat.end = static_cast<std::uint32_t>(program.tasks.size());
      if (program.streams && queue.engine == Engine::compute) split_tiles(plan, program, flat, machine);
      program.queues.push_back(flat);
    }
  }
  program.first_signal.push_back(signals);
  return program;
}

}  // namespace imbrex::simulate
