// The digest tells plans that run differently apart, and no others.
#include "plan/digest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using plan::digest_of;

// Every field has a value other than its default somewhere. The plan need not be sound.
Plan full_plan() {
  Plan plan;
  plan.problem = {Operator::gemm_all_reduce, 64, 32, 16, 2, Type::e4m3, true, Scales::row};
  plan.strategy = Strategy::fused;
  plan.signal_copies = 1;
  plan.buffers = {{"a", BufferRole::input, Layout::row_major, Type::e4m3, 64, 16, 1},
                  {"slots", BufferRole::workspace, Layout::fragment, Type::fp32, 3, 4096, 2}};
  Region region{1, 2, 3, 4, 5, 6};
  const auto next = [&] {
    ++region.row;
    return region;
  };
  const Task tile{Tile{next(), next(), {next(), next()}, 1, {{next(), 7, 8}, {next(), 9, 10}}, next()},
                  {{5, 2, WaitPoint::epilogue, 0}, {6, 3, WaitPoint::load, 128}},
                  {{1, 3}, {0, 4}}};
  const Task transfer{Transfer{next(), next()}, {{7, 4}}, {{1, 5}}};
  const Task reduction{Reduction{{next(), next()}, {next(), next()}}, {{8, 5}}, {{0, 6}}};
  const Task collective{Collective{CollectiveKind::all_reduce, 3, next(), next(), {0, 1}}, {}, {}};
  plan.ranks = {{9, {{Engine::compute, 4, {tile, reduction}}, {Engine::copy, 0, {transfer, transfer}}}},
                {10, {{Engine::library, 1, {collective}}, {}}}};
  return plan;
}

struct Change {
  std::string name;
  std::function<void(Plan&)> apply;
};

Task& task_of(Plan& plan, std::size_t rank, std::size_t queue, std::size_t task) {
  return plan.ranks[rank].queues[queue].tasks[task];
}
template <typename T>
T& work_of(Plan& plan, std::size_t rank, std::size_t queue, std::size_t task) {
  return std::get<T>(task_of(plan, rank, queue, task).work);
}
Tile& tile_of(Plan& plan) { return work_of<Tile>(plan, 0, 0, 0); }
Reduction& reduction_of(Plan& plan) { return work_of<Reduction>(plan, 0, 0, 1); }
Transfer& transfer_of(Plan& plan) { return work_of<Transfer>(plan, 0, 1, 0); }
Collective& collective_of(Plan& plan) { return work_of<Collective>(plan, 1, 0, 0); }

// Changes of a list: another item, one less, one more, the other order.
template <typename T>
void change_list(std::vector<Change>& changes, const std::string& name, std::function<std::vector<T>&(Plan&)> list) {
  changes.push_back({name + ": one less", [=](Plan& p) { list(p).pop_back(); }});
  changes.push_back({name + ": one more", [=](Plan& p) { list(p).push_back(list(p).front()); }});
  changes.push_back({name + ": an empty one more", [=](Plan& p) { list(p).push_back(T{}); }});
  changes.push_back({name + ": the other order", [=](Plan& p) {
                       if (list(p).size() > 1) std::reverse(list(p).begin(), list(p).end());
                     }});
}

void change_region(std::vector<Change>& changes, const std::string& name, std::function<Region&(Plan&)> region) {
  changes.push_back({name + " rank", [=](Plan& p) { region(p).rank = 0; }});
  changes.push_back({name + " buffer", [=](Plan& p) { region(p).buffer = -1; }});
  changes.push_back({name + " row", [=](Plan& p) { region(p).row += std::int64_t{1} << 33; }});
  changes.push_back({name + " col", [=](Plan& p) { region(p).col = 300; }});
  changes.push_back({name + " rows", [=](Plan& p) { region(p).rows = 0; }});
  changes.push_back({name + " cols", [=](Plan& p) { region(p).cols = 127; }});
  changes.push_back({name + ": none", [=](Plan& p) { region(p) = {}; }});
}

std::vector<Change> changes_that_run() {
  std::vector<Change> c;
  c.push_back({"signal_copies", [](Plan& p) { p.signal_copies = 2; }});
  c.push_back({"buffer role", [](Plan& p) { p.buffers[0].role = BufferRole::output; }});
  c.push_back({"buffer layout", [](Plan& p) { p.buffers[0].layout = Layout::column_major; }});
  c.push_back({"buffer type", [](Plan& p) { p.buffers[0].type = Type::bf16; }});
  c.push_back({"buffer rows", [](Plan& p) { p.buffers[0].rows = 65; }});
  c.push_back({"buffer cols", [](Plan& p) { p.buffers[0].cols = 17; }});
  c.push_back({"buffer copies", [](Plan& p) { p.buffers[0].copies = 2; }});
  change_list<Buffer>(
      c, "buffers", [](Plan & p) -> auto& { return p.buffers; });
  change_list<RankPlan>(
      c, "ranks", [](Plan & p) -> auto& { return p.ranks; });
  c.push_back({"signals", [](Plan& p) { p.ranks[0].signals = 10; }});
  change_list<Queue>(
      c, "queues", [](Plan & p) -> auto& { return p.ranks[0].queues; });
  c.push_back({"engine", [](Plan& p) { p.ranks[0].queues[0].engine = Engine::library; }});
  c.push_back({"workers", [](Plan& p) { p.ranks[0].queues[0].workers = 0; }});
  change_list<Task>(
      c, "tasks", [](Plan & p) -> auto& { return p.ranks[0].queues[0].tasks; });
  c.push_back({"a task in another queue", [](Plan& p) {
                 auto& queues = p.ranks[0].queues;
                 queues[1].tasks.insert(queues[1].tasks.begin(), queues[0].tasks.back());
                 queues[0].tasks.pop_back();
               }});
  c.push_back({"a task on another rank", [](Plan& p) {
                 p.ranks[1].queues[1].tasks.push_back(p.ranks[0].queues[0].tasks.back());
                 p.ranks[0].queues[0].tasks.pop_back();
               }});
  c.push_back({"a queue of no tasks moved", [](Plan& p) { std::swap(p.ranks[1].queues[0], p.ranks[1].queues[1]); }});
  change_list<Wait>(
      c, "waits", [](Plan & p) -> auto& { return task_of(p, 0, 0, 0).waits; });
  c.push_back({"wait signal", [](Plan& p) { task_of(p, 0, 0, 0).waits[0].signal = 0; }});
  c.push_back({"wait count", [](Plan& p) { task_of(p, 0, 0, 0).waits[0].count = 1; }});
  c.push_back({"wait point", [](Plan& p) { task_of(p, 0, 0, 0).waits[0].point = WaitPoint::load; }});
  c.push_back({"wait k_begin", [](Plan& p) { task_of(p, 0, 0, 0).waits[1].k_begin = 256; }});
  change_list<Post>(
      c, "posts", [](Plan & p) -> auto& { return task_of(p, 0, 0, 0).posts; });
  c.push_back({"post rank", [](Plan& p) { task_of(p, 0, 0, 0).posts[0].rank = 0; }});
  c.push_back({"post signal", [](Plan& p) { task_of(p, 0, 0, 0).posts[0].signal = 2; }});
  c.push_back({"mate", [](Plan& p) { task_of(p, 0, 0, 1).mate = 1; }});
  c.push_back({"another mate", [](Plan& p) { task_of(p, 0, 0, 1).mate = 95; }});
  c.push_back({"the mate of another task", [](Plan& p) { task_of(p, 0, 1, 1).mate = 1; }});
  c.push_back({"waits and posts of the same numbers", [](Plan& p) {
                 Task& task = task_of(p, 0, 1, 0);
                 task.waits = {{1, 1}};
                 task.posts = {};
               }});
  c.push_back({"posts for waits", [](Plan& p) {
                 Task& task = task_of(p, 0, 1, 0);
                 task.waits = {};
                 task.posts = {{1, 0}};
               }});
  change_region(
      c, "tile a", [](Plan & p) -> auto& { return tile_of(p).a; });
  change_region(
      c, "tile b", [](Plan & p) -> auto& { return tile_of(p).b; });
  change_region(
      c, "tile a_scale", [](Plan & p) -> auto& { return tile_of(p).a_scale; });
  change_region(
      c, "tile add", [](Plan & p) -> auto& { return tile_of(p).adds[0]; });
  change_list<Region>(
      c, "tile adds", [](Plan & p) -> auto& { return tile_of(p).adds; });
  c.push_back({"tile own", [](Plan& p) { tile_of(p).own = 2; }});
  change_region(
      c, "store", [](Plan & p) -> auto& { return tile_of(p).stores[0].to; });
  c.push_back({"store row", [](Plan& p) { tile_of(p).stores[0].row = 0; }});
  c.push_back({"store col", [](Plan& p) { tile_of(p).stores[0].col = 0; }});
  change_list<Store>(
      c, "stores", [](Plan & p) -> auto& { return tile_of(p).stores; });
  c.push_back({"an add for a store", [](Plan& p) {
                 tile_of(p).adds.push_back(tile_of(p).stores.front().to);
                 tile_of(p).stores.erase(tile_of(p).stores.begin());
               }});
  c.push_back({"a and b changed over", [](Plan& p) { std::swap(tile_of(p).a, tile_of(p).b); }});
  change_region(
      c, "transfer from", [](Plan & p) -> auto& { return transfer_of(p).from; });
  change_region(
      c, "transfer to", [](Plan & p) -> auto& { return transfer_of(p).to; });
  change_region(
      c, "reduction from", [](Plan & p) -> auto& { return reduction_of(p).from[0]; });
  change_region(
      c, "reduction to", [](Plan & p) -> auto& { return reduction_of(p).to[0]; });
  change_list<Region>(
      c, "reduction sources", [](Plan & p) -> auto& { return reduction_of(p).from; });
  change_list<Region>(
      c, "reduction destinations", [](Plan & p) -> auto& { return reduction_of(p).to; });
  c.push_back({"a destination for a source", [](Plan& p) {
                 reduction_of(p).from.push_back(reduction_of(p).to.front());
                 reduction_of(p).to.erase(reduction_of(p).to.begin());
               }});
  c.push_back({"collective kind", [](Plan& p) { collective_of(p).kind = CollectiveKind::reduce_scatter; }});
  c.push_back({"collective group", [](Plan& p) { collective_of(p).group = 0; }});
  change_region(
      c, "collective from", [](Plan & p) -> auto& { return collective_of(p).from; });
  change_region(
      c, "collective to", [](Plan & p) -> auto& { return collective_of(p).to; });
  c.push_back({"where a collective sends", [](Plan& p) { collective_of(p).send_to = 0; }});
  c.push_back({"where a collective receives from", [](Plan& p) { collective_of(p).receive_from = 0; }});
  change_list<int>(
      c, "collective ranks", [](Plan & p) -> auto& { return collective_of(p).ranks; });
  // A transfer's regions in another kind of task.
  c.push_back({"a reduction for a transfer", [](Plan& p) {
                 const Transfer transfer = transfer_of(p);
                 task_of(p, 0, 1, 0).work = Reduction{{transfer.from}, {transfer.to}};
               }});
  c.push_back({"a collective for a transfer", [](Plan& p) {
                 const Transfer transfer = transfer_of(p);
                 task_of(p, 0, 1, 0).work = Collective{{}, 0, transfer.from, transfer.to};
               }});
  return c;
}

TEST(Digest, ChangesWithWhateverRuns) {
  const Plan plan = full_plan();
  std::map<std::uint64_t, std::pair<std::string, Plan>> seen{{digest_of(plan), {"nothing", plan}}};
  for (const Change& change : changes_that_run()) {
    Plan changed = plan;
    change.apply(changed);
    ASSERT_FALSE(changed == plan) << change.name << " changes nothing";
    const auto [place, fresh] = seen.try_emplace(digest_of(changed), change.name, changed);
    EXPECT_TRUE(fresh || place->second.second == changed) << change.name << " looks like " << place->second.first;
  }
}

TEST(Digest, StaysWhereNothingElseRuns) {
  const Plan plan = full_plan();
  const std::vector<Change> changes{
      {"strategy", [](Plan& p) { p.strategy = Strategy::sequential; }},
      {"knobs", [](Plan& p) { p.knobs = {.tile_m = 64, .cluster = 2, .transport = Transport::pull, .split_k = 3}; }},
      {"problem", [](Plan& p) { p.problem = {}; }},
      {"names of buffers", [](Plan& p) { p.buffers[0].name = "another"; }},
  };
  for (const Change& change : changes) {
    Plan changed = plan;
    change.apply(changed);
    ASSERT_FALSE(changed == plan) << change.name << " changes nothing";
    EXPECT_EQ(digest_of(changed), digest_of(plan)) << change.name;
  }
}

// Digests are kept in files. A new field with a default leaves them as they are.
TEST(Digest, IsTheSameNumberForEver) {
  EXPECT_EQ(digest_of(Plan{}), 14695981039346656037u);
  EXPECT_EQ(digest_of(full_plan()), 4520988439274017008u);
}

// Every strategy's plans are the same as JSON, and no two that differ have one digest.
TEST(Digest, TellsPlansApart) {
  test::Random random(test::seed_from_environment());
  std::map<std::uint64_t, Plan> seen;
  for (int i = 0; i < 300; ++i) {
    const auto c = test::random_case(random, {.max_ranks = 4, .max_size = 300, .bias = true, .e4m3 = true});
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    ASSERT_EQ(digest_of(parse_plan(to_json(plan))), digest_of(plan));
    const auto [place, fresh] = seen.try_emplace(digest_of(plan), plan);
    ASSERT_TRUE(fresh || (place->second.ranks == plan.ranks && place->second.signal_copies == plan.signal_copies))
        << test::describe(c);
  }
}

// As a rank's own tasks come from a stream, in which compute and copy queues take turns.
TEST(Digest, IsThatOfTasksThatComeOneByOne) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 100; ++i) {
    auto c = test::random_case(random, {.max_ranks = 4, .max_size = 500, .bias = true, .e4m3 = true});
    c = {c.problem, Strategy::fused, test::random_knobs(random, c.problem, Strategy::fused)};
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    plan::Digest digest(plan);
    for (int rank = 0; rank < c.problem.ranks; ++rank)
      plan::make_rank_tasks(c.problem, c.strategy, c.knobs, rank)
          ->for_each([&](const plan::TaskPlace& place, const Task& task) {
            if (place.rank == rank) digest.add(place, task);
          });
    ASSERT_EQ(digest.value(), digest_of(plan)) << test::describe(c);
  }
}

}  // namespace
}  // namespace imbrex
