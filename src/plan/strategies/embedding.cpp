#include "plan/strategies/embedding.hpp"

#include <algorithm>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/bags.hpp"
#include "plan/builder.hpp"
#include "plan/strategies/library_collectives.hpp"
#include "problem/embedding.hpp"

namespace imbrex::plan {
namespace {

constexpr int buffer_output = 0;

class EmbeddingPlan {
 public:
  EmbeddingPlan(const Problem& problem, Strategy strategy, const Knobs& knobs)
      : b_(problem, strategy, knobs), rows_(problem.m / problem.ranks) {
    for (int rank = 0; rank < problem.ranks; ++rank) {
      own_.emplace_back(problem.tables, rank);
      runs_.push_back(own(rank).runs(0, own(rank).count()));
      all_runs_ += std::ssize(runs_.back());
      most_runs_ = std::max(most_runs_, std::ssize(runs_.back()));
    }
  }

  // Strategies sequential and decomposed.
  Plan through_library(int chunks) {
    for (int rank = 0; rank < b_.ranks(); ++rank)
      IMBREX_EXPECTS(
          own(rank).count() > 0,
          "rank {} has no table: strategies sequential and decomposed exchange what every rank has looked up, "
          "and fused does not",
          rank);
    using base::counted_product, base::counted_sum;
    const std::int64_t count = std::min<std::int64_t>(chunks, rows_), stages = most_stages(b_.knobs().nodes),
                       tasks = counted_product(count, b_.ranks() + stages + all_runs_);
    b_.expect_kept(Counts{tasks, counted_sum(counted_product(6, tasks), counted_product(count, stages, b_.ranks())),
                          counted_product(2, count)}
                       .times(b_.ranks()));
    const std::int64_t cols = most_cols(), batch = b_.problem().m, ranks = b_.ranks();
    const Type type = b_.problem().type;
    const int looked_up = b_.workspace("looked_up", Layout::row_major, type, batch, cols, 1),
              received = ranks == 1 ? looked_up : b_.workspace("received", Layout::row_major, type, batch, cols, 1);
    const int bags = b_.queue(Engine::library), exchange = chunks > 1 ? b_.queue(Engine::library) : bags;
    std::vector<std::int64_t> slices;
    for (int i = 0; i < count; ++i) slices.push_back(part_of(rows_, count, i).size);
    LibraryCollectives all_to_all(b_, exchange, CollectiveKind::all_to_all, looked_up, slices, "staged");
    // Slice i of every rank's part, part after part, is slice i of the workspaces.
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t first = 0;
      for (int i = 0; i < count; ++i) {
        const Range slice = part_of(rows_, count, i);
        const int ready = chunks > 1 ? b_.signals(rank) : 0;
        for (int to = 0; to < ranks; ++to) {
          Task task = look_up(rank, to * rows_ + slice.begin, slice.size);
          std::get<Block>(task.work).stores = {
              {b_.region(rank, looked_up, first + to * slice.size, slice.size, 0, own(rank).cols()), 0, 0}};
          if (chunks > 1 && to + 1 == ranks) task.posts = {{rank, ready}};
          b_.add(rank, bags, std::move(task));
        }
        std::vector<Wait> waits;
        if (chunks > 1) waits.push_back({ready});
        if (ranks > 1)
          all_to_all.add(rank, static_cast<std::size_t>(i), b_.rows_of(rank, looked_up, first, ranks * slice.size),
                         b_.rows_of(rank, received, first, ranks * slice.size), std::exchange(waits, {}), {});
        for (int from = 0; from < ranks; ++from)
          for (const problem::Run& run : runs(from))
            b_.add(rank, exchange,
                   {Transfer{b_.region(rank, received, first + from * slice.size, slice.size, run.from, run.cols),
                             b_.region(rank, buffer_output, slice.begin, slice.size, run.to, run.cols)},
                    std::exchange(waits, {}),
                    {}});
        first += ranks * slice.size;
      }
    }
    return b_.take();
  }

  // Strategy fused on one host. Others may be written to once they have entered the epoch, and leave it once they have
  // all that is theirs.
  Plan straight() {
    const int ranks = b_.ranks(), queue = b_.queue(Engine::compute);
    const std::int64_t tasks = base::counted_product(ranks, base::ceil_div(rows_, b_.knobs().tile_m));
    b_.expect_kept(
        Counts{base::counted_sum(tasks, 2), base::counted_product(most_runs_ + 2, tasks), 2}.times(b_.ranks()));
    const std::vector<Range> slices = cut(rows_, b_.knobs().tile_m);
    const auto blocks = std::ssize(slices);
    int entered = 0, arrived = 0;
    for (int rank = 0; rank < ranks; ++rank) entered = b_.signals(rank), arrived = b_.signals(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Post> to_all;
      for (int other = 0; other < ranks; ++other)
        if (other != rank) to_all.push_back({other, entered});
      std::vector<Wait> peers;
      if (ranks > 1) {
        b_.add(rank, queue, signal_task({}, std::move(to_all)));
        peers = {{entered, base::narrow<std::uint32_t>(ranks - 1, "ranks")}};
      }
      std::uint32_t expected = 0;
      for (int other = 0; other < ranks; ++other)
        if (other != rank && own(other).count() > 0) expected += base::narrow<std::uint32_t>(blocks, "blocks");
      const auto look_up_for = [&](int to, const Range& slice) {
        Task task = look_up(rank, to * rows_ + slice.begin, slice.size);
        auto& block = std::get<Block>(task.work);
        for (const problem::Run& run : runs(rank))
          block.stores.push_back(
              {b_.region(to, buffer_output, slice.begin, slice.size, run.to, run.cols), 0, run.from});
        if (to != rank) {
          task.waits = peers;
          task.posts = {{to, arrived}};
        }
        b_.add(rank, queue, std::move(task));
      };
      if (own(rank).count() > 0) {
        for (const Range& slice : slices)
          for (int i = 1; i < ranks; ++i) look_up_for((rank + i) % ranks, slice);
        for (const Range& slice : slices) look_up_for(rank, slice);
      }
      if (expected > 0) b_.add(rank, queue, signal_task({{arrived, expected}}, {}));
    }
    return b_.take();
  }

  // Strategy fused on several hosts: bags for the ranks that have one place in their hosts go to the rank with this
  // place here, which sends them on, slice by slice, in one message to each other host. By bytes it is the same to
  // cross first and then to hand out; this way round each rank sends as many bytes as any other of its host, however
  // wide its tables.
  Plan through_places(int slices) {
    using base::counted_product, base::counted_sum;
    const int nodes = b_.knobs().nodes, places = b_.ranks() / nodes;
    const std::int64_t filled = std::min<std::int64_t>(slices, rows_),
                       blocks_of_all = counted_sum(base::ceil_div(rows_, b_.knobs().tile_m), filled),
                       tasks = counted_sum(counted_product(b_.ranks(), blocks_of_all),
                                           counted_product(filled, all_runs_ + 1), 1);
    b_.expect_kept(Counts{tasks, counted_product(3, tasks), counted_sum(slices, 1)}.times(b_.ranks()));
    std::vector<std::int64_t> first_col;  // a rank's first column among its host's
    std::int64_t most = 0;
    std::vector<std::int64_t> owners(static_cast<std::size_t>(nodes));  // ranks with tables
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      const std::int64_t first = rank % places == 0 ? 0 : first_col.back() + own(rank - 1).cols();
      first_col.push_back(first);
      most = std::max(most, first + own(rank).cols());
      owners[static_cast<std::size_t>(rank / places)] += own(rank).count() > 0;
    }
    for (int node = 0; node < nodes; ++node)
      IMBREX_EXPECTS(owners[static_cast<std::size_t>(node)] > 0,
                     "the ranks of host {} have no table: with nodes = {}, each host exchanges what it has looked up",
                     node, nodes);
    const Type type = b_.problem().type;
    const int staged = b_.workspace("staged", Layout::row_major, type, nodes * rows_, most, 1),
              received = b_.workspace("received", Layout::row_major, type, nodes * rows_, most, 1);
    const int queue = b_.queue(Engine::compute), exchange = b_.queue(Engine::library);
    int entered = 0, ready = 0;
    for (int rank = 0; rank < b_.ranks(); ++rank) entered = b_.signals(rank), ready = b_.signals(rank, slices);
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      const int node = rank / places, place = rank % places;
      std::vector<Post> to_all;
      for (int i = 1; i < places; ++i) to_all.push_back({node * places + (place + i) % places, entered});
      std::vector<Wait> peers;
      if (places > 1) {
        b_.add(rank, queue, signal_task({}, std::move(to_all)));
        peers = {{entered, base::narrow<std::uint32_t>(places - 1, "ranks")}};
      }
      std::vector<int> joined;
      for (int i = 0; i < nodes; ++i) joined.push_back(i * places + place);
      std::vector<Wait> peers_of_first = peers;
      for (int i = 0; i < slices; ++i) {
        const Range slice = part_of(rows_, slices, i);
        if (slice.size == 0) continue;
        const std::vector<Range> blocks = cut(slice.size, b_.knobs().tile_m);
        // Other hosts' rows first, and in them those that other ranks send on.
        for (int n = 1; n <= nodes && own(rank).count() > 0; ++n)
          for (int q = 1; q <= places; ++q) {
            const int of = (node + n) % nodes, to = node * places + (place + q) % places;
            for (const Range& block : blocks) {
              const std::int64_t row = slice.begin + block.begin;
              Task task = look_up(rank, (of * places + to % places) * rows_ + row, block.size);
              std::get<Block>(task.work).stores = {
                  {b_.region(to, staged, nodes * slice.begin + of * slice.size + block.begin, block.size,
                             first_col[static_cast<std::size_t>(rank)], own(rank).cols()),
                   0, 0}};
              if (to != rank) task.waits = peers;
              task.posts = {{to, ready + i}};
              b_.add(rank, queue, std::move(task));
            }
          }
        const auto count =
            base::narrow<std::uint32_t>(owners[static_cast<std::size_t>(node)] * nodes * std::ssize(blocks), "blocks");
        Collective all_to_all{CollectiveKind::all_to_all, i * places + place,
                              b_.rows_of(rank, staged, nodes * slice.begin, nodes * slice.size),
                              b_.rows_of(rank, received, nodes * slice.begin, nodes * slice.size)};
        if (places > 1) all_to_all.ranks = joined;
        // The first message says of all ranks of this host that they have begun: ranks without tables, too.
        std::vector<Wait> waits = std::exchange(peers_of_first, {});
        waits.push_back({ready + i, count});
        b_.add(rank, exchange, {std::move(all_to_all), std::move(waits), {}});
        for (int from = 0; from < b_.ranks(); ++from)
          for (const problem::Run& run : runs(from))
            b_.add(rank, exchange,
                   {Transfer{b_.region(rank, received, nodes * slice.begin + from / places * slice.size, slice.size,
                                       first_col[static_cast<std::size_t>(from)] + run.from, run.cols),
                             b_.region(rank, buffer_output, slice.begin, slice.size, run.to, run.cols)},
                    {},
                    {}});
      }
    }
    return b_.take();
  }

 private:
  const problem::OwnShards& own(int rank) const { return own_[static_cast<std::size_t>(rank)]; }

  const std::vector<problem::Run>& runs(int rank) const { return runs_[static_cast<std::size_t>(rank)]; }

  std::int64_t most_cols() const {
    std::int64_t most = 0;
    for (const problem::OwnShards& shards : own_) most = std::max(most, shards.cols());
    return most;
  }

  Task look_up(int rank, std::int64_t first, std::int64_t count) const {
    Block block;
    block.kind = bags_kind;
    block.args = BagsPart{first, count, 0, static_cast<std::int64_t>(own(rank).count())}.args();
    return {std::move(block), {}, {}};
  }

  Builder b_;
  std::int64_t rows_;  // of the batch, of each rank
  std::vector<problem::OwnShards> own_;
  std::vector<std::vector<problem::Run>> runs_;  // of each rank's columns
  std::int64_t all_runs_ = 0, most_runs_ = 0;
};

}  // namespace

Plan embedding_plan(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  IMBREX_EXPECTS(strategy != Strategy::signaled, "strategy signaled: {} has sequential, decomposed and fused",
                 name_of(problem.op));
  Knobs own = knobs;
  own.cluster = 1;                  // blocks form no pairs
  own.transport = Transport::push;  // a library exchanges
  EmbeddingPlan plan(problem, strategy, own);
  if (strategy == Strategy::fused) return knobs.nodes == 1 ? plan.straight() : plan.through_places(knobs.chunks);
  return plan.through_library(strategy == Strategy::sequential ? 1 : knobs.chunks);
}

}  // namespace imbrex::plan
