#include "plan/strategies/embedding.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/bags.hpp"
#include "plan/builder.hpp"
#include "problem/embedding.hpp"

namespace imbrex::plan {
namespace {

constexpr int buffer_output = 0;

class EmbeddingPlan {
 public:
  EmbeddingPlan(const Problem& problem, Strategy strategy, const Knobs& knobs)
      : b_(problem, strategy, knobs), rows_(problem.m / problem.ranks) {
    for (int rank = 0; rank < problem.ranks; ++rank) own_.emplace_back(problem.tables, rank);
  }

  Plan through_library(int chunks) {
    for (int rank = 0; rank < b_.ranks(); ++rank)
      IMBREX_EXPECTS(
          own(rank).count() > 0,
          "rank {} has no table: strategies sequential and decomposed exchange what every rank has looked up, "
          "and fused does not",
          rank);
    const std::int64_t cols = most_cols(), batch = b_.problem().m, ranks = b_.ranks();
    const Type type = b_.problem().type;
    const int looked_up = b_.workspace("looked_up", Layout::row_major, type, batch, cols, 1),
              received = ranks == 1 ? looked_up : b_.workspace("received", Layout::row_major, type, batch, cols, 1);
    const int bags = b_.queue(Engine::library), exchange = chunks > 1 ? b_.queue(Engine::library) : bags;
    // Slice i of every rank's part, part after part, is slice i of the workspaces.
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t first = 0;
      for (int i = 0; i < chunks; ++i) {
        const Range slice = part_of(rows_, chunks, i);
        if (slice.size == 0) continue;
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
          b_.add(rank, exchange,
                 {Collective{CollectiveKind::all_to_all, i, b_.rows_of(rank, looked_up, first, ranks * slice.size),
                             b_.rows_of(rank, received, first, ranks * slice.size)},
                  std::exchange(waits, {}),
                  {}});
        for (int from = 0; from < ranks; ++from)
          for (const problem::Run& run : own(from).runs(0, own(from).count()))
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

  // Others may be written to once they have entered the epoch, and leave it once they have all that is theirs.
  Plan straight() {
    const int ranks = b_.ranks(), queue = b_.queue(Engine::compute);
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
        for (const problem::Run& run : own(rank).runs(0, own(rank).count()))
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

 private:
  const problem::OwnShards& own(int rank) const { return own_[static_cast<std::size_t>(rank)]; }

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
};

}  // namespace

Plan embedding_plan(const Problem& problem, Strategy strategy, const Knobs& knobs) {
  IMBREX_EXPECTS(strategy != Strategy::signaled, "strategy signaled: {} has sequential, decomposed and fused",
                 name_of(problem.op));
  Knobs own = knobs;
  own.cluster = 1;  // blocks form no pairs
  EmbeddingPlan plan(problem, strategy, own);
  if (strategy == Strategy::fused) return plan.straight();
  return plan.through_library(strategy == Strategy::sequential ? 1 : knobs.chunks);
}

}  // namespace imbrex::plan
