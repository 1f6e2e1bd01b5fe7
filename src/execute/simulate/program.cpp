#include "execute/simulate/program.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/limits.hpp"
#include "plan/product_blocks.hpp"

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
  void regions(const Product& product) {
    for (const Region& r : {product.a, product.b, product.to, product.bias, product.a_scale}) region(r);
    IMBREX_EXPECTS(product.batch >= 1 && product.batch <= plan::most_batch, "{} is a batch of {}; it must be 1 to {}",
                   name(), product.batch, plan::most_batch);
  }
  void regions(const Block& block) {
    all(block.reads);
    for (const Store& store : block.stores) region(store.to);
    IMBREX_EXPECTS(block.shares >= 1 && block.shares <= plan::most_workers,
                   "{} is one of {} shares; there must be 1 to {}", name(), block.shares, plan::most_workers);
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

// Blocks that one plan's products may have, over all ranks.
constexpr std::int64_t most_blocks = 1 << 24;

}  // namespace

double bytes_of(const Plan& plan, const Region& region) {
  if (region.empty()) return 0;
  const Type type = plan.buffers[static_cast<std::size_t>(region.buffer)].type;
  return static_cast<double>(region.rows) * static_cast<double>(region.cols) * static_cast<double>(size_of(type));
}

namespace {

// SMs of a rank that its compute queues' clusters count as one worker.
std::uint32_t sms_per_worker(const RankPlan& rank) {
  const bool shared = std::any_of(rank.queues.begin(), rank.queues.end(),
                                  [](const Queue& q) { return q.cluster == ClusterMode::share_k; });
  return shared ? 2 : 1;
}

class Layer {
 public:
  Layer(const Plan& plan, const Machine& machine) : plan_(plan), machine_(machine), checker_(plan) {}

  Program run() {
    program_.streams = true;
    for (const RankPlan& rank : plan_.ranks)
      for (const Queue& queue : rank.queues)
        if (queue.engine == Engine::compute && !queue.tasks.empty()) program_.streams = false;
    std::uint32_t signals = 0;
    for (std::uint32_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      const RankPlan& own = plan_.ranks[rank];
      IMBREX_EXPECTS(own.signals >= 0 && own.signals <= (1 << 28), "rank {} has {} signals; it must have 0 to 2^28",
                     rank, own.signals);
      program_.first_signal.push_back(signals);
      signals += static_cast<std::uint32_t>(own.signals);
      IMBREX_EXPECTS(signals <= (1u << 28), "the plan has more than 2^28 signals");
      add_rank(rank);
    }
    program_.first_signal.push_back(signals);
    return std::move(program_);
  }

 private:
  void add_rank(std::uint32_t rank) {
    const RankPlan& own = plan_.ranks[rank];
    // What shares tiles counts as one worker.
    share_ = sms_per_worker(own);
    std::uint32_t reserved = 0, kept = 0;
    for (const Queue& queue : own.queues) {
      IMBREX_EXPECTS(queue.workers >= 0 && queue.workers <= plan::most_workers,
                     "rank {} reserves {} workers; it must be 0 to {}", rank, queue.workers, plan::most_workers);
      IMBREX_EXPECTS(queue.kept_free >= 0 && queue.kept_free <= plan::most_workers,
                     "rank {} keeps {} SMs free; it must be 0 to {}", rank, queue.kept_free, plan::most_workers);
      if (queue.engine == Engine::compute) reserved += static_cast<std::uint32_t>(queue.workers);
      kept += static_cast<std::uint32_t>(queue.kept_free);
    }
    const auto all = static_cast<std::uint32_t>(machine_.sms.value);
    const std::uint32_t sms = std::max(1u, (all > kept ? all - kept : 1u) / share_);
    // Every queue runs with one worker at least, whatever others reserve.
    const auto shared = static_cast<std::uint32_t>(program_.pools.size());
    program_.pools.push_back({rank, 0, reserved < sms ? sms - reserved : 1, true, std::min(kept, all)});
    std::uint32_t next_sm = program_.pools.back().workers;
    for (std::uint32_t q = 0; q < own.queues.size(); ++q) {
      const Queue& queue = own.queues[q];
      FlatQueue flat{queue.engine, rank, q, static_cast<std::uint32_t>(program_.tasks.size()), 0, none};
      if (queue.engine != Engine::copy) flat.pool = shared;
      if (queue.engine == Engine::compute && queue.workers > 0) {
        flat.pool = static_cast<std::uint32_t>(program_.pools.size());
        program_.pools.push_back({rank, next_sm, static_cast<std::uint32_t>(queue.workers), false});
        next_sm += static_cast<std::uint32_t>(queue.workers);
      }
      for (std::uint32_t t = 0; t < queue.tasks.size(); ++t) {
        queue_ = q;
        checker_.check(static_cast<int>(rank), static_cast<int>(q), t);
        add_task(rank, queue, t);
      }
      flat.end = static_cast<std::uint32_t>(program_.tasks.size());
      if (std::any_of(queue.tasks.begin(), queue.tasks.end(),
                      [](const Task& task) { return std::holds_alternative<Product>(task.work); }))
        ++program_.pools[shared].products;
      program_.queues.push_back(flat);
    }
  }

  static std::string name_of(std::uint32_t rank, std::uint32_t queue, std::uint32_t index, const Task& task) {
    return task_name(static_cast<int>(rank), static_cast<int>(queue), index, task);
  }

  void add_task(std::uint32_t rank, const Queue& queue, std::uint32_t index) {
    const Task& task = queue.tasks[index];
    const auto number = static_cast<std::uint32_t>(program_.queues.size());
    FlatTask flat{&task, &task, rank, number, index, index};
    const auto* product = std::get_if<Product>(&task.work);
    if (product == nullptr) {
      if (std::holds_alternative<Tile>(task.work)) flat.split = share_;
      program_.tasks.push_back(flat);
      return;
    }
    IMBREX_EXPECTS(queue.tile.rows > 0 && queue.tile.cols > 0, "{}: its queue's blocks are {} x {}",
                   name_of(rank, queue_, index, task), queue.tile.rows, queue.tile.cols);
    IMBREX_EXPECTS(!product->a.empty() && !product->b.empty(), "{}: a product of {} x {} over {}",
                   name_of(rank, queue_, index, task), product->a.rows, product->b.cols, product->a.cols);
    const std::int64_t count = base::counted_product(base::ceil_div(product->a.rows, queue.tile.rows),
                                                     base::ceil_div(product->b.cols, queue.tile.cols), product->batch);
    IMBREX_EXPECTS(base::counted_sum(count, std::ssize(program_.blocks)) <= most_blocks,
                   "{}: with it the plan's products have more than 2^24 blocks of {} x {}",
                   name_of(rank, queue_, index, task), queue.tile.rows, queue.tile.cols);
    const plan::ProductBlocks blocks(*product, queue.tile, plan_.problem.scales);
    for (std::int64_t i = 0; i < count; ++i) {
      program_.blocks.push_back({blocks.at(i), task.waits, {}});
      flat.task = &program_.blocks.back();
      program_.tasks.push_back(flat);
    }
  }

  const Plan& plan_;
  const Machine& machine_;
  Checker checker_;
  Program program_;
  std::uint32_t share_ = 1, queue_ = 0;  // of the rank; of the task that is being added, in its rank
};

}  // namespace

Program lay_out(const Plan& plan, const Machine& machine) {
  const auto ranks = std::ssize(plan.ranks);
  IMBREX_EXPECTS(ranks >= 1 && ranks <= max_ranks, "the plan has {} ranks; it must have 1 to {}", ranks, max_ranks);
  IMBREX_EXPECTS(ranks == plan.problem.ranks, "the plan has queues for {} ranks, but its problem names {}", ranks,
                 plan.problem.ranks);
  IMBREX_EXPECTS(ranks <= machine.devices, "the plan has {} ranks, but machine '{}' has {} devices", ranks,
                 machine.name, machine.devices);
  return Layer(plan, machine).run();
}

}  // namespace imbrex::simulate
