// What joins the kernel and the library lanes of one rank's GPU, and library lanes alone, without a GPU: plans run on a
// model of streams, events, counters and in-order workers, in random schedules and with one hardware queue for all
// streams.
#include "execute/cuda/lanes/lane_plan.hpp"
#include "base/narrow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "plan/builder.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;

constexpr Operator lane_operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                       Operator::gemm_all_reduce, Operator::gemm_all_to_all};

using base::index;

// What a GPU is given for one epoch, in the order of the launch, and what becomes of it.
class Model {
 public:
  using Kind = Launch::Kind;

  Model(const Plan& plan, int rank, const LanePlan& lanes)
      : rank_(plan.ranks[index(rank)]),
        lanes_(lanes),
        launches_(lanes.launches),
        over_(launches_.size()),
        ended_(lanes.program.steps.size()),
        counters_(index(rank_.signals)),
        posts_(index(rank_.signals)),
        heads_(rank_.queues.size()) {
    expect_all(Kind::step, lanes.program.steps.size());
    expect_all(Kind::joint, lanes.joints.size());
    for (const Launch& launch : launches_)
      EXPECT_TRUE(launch.kind != Kind::await || lanes.program.steps[launch.number].awaited);
  }

  // One thing at a time, in an order that `random` chooses; what is wrong, or nothing. With one hardware queue no
  // launch begins before all before it have begun, and no stream's before its last one has ended; one that waits for a
  // counter has begun, but where a stream has to wait for an event, all after it do. The launch `delayed` ends only
  // where nothing else can go on.
  std::string run(test::Random& random, bool one_queue, std::size_t delayed) {
    delayed_ = delayed;
    for (;;) {
      std::vector<std::function<void()>> ready;
      delayed_is_ready_ = false;
      add_launches(one_queue, ready);
      for (std::size_t q = 0; kernel_begun_ && q < heads_.size(); ++q) add_kernel(q, ready);
      if (!wrong_.empty()) return wrong_;
      if (ready.empty()) break;
      if (delayed_is_ready_ && ready.size() > 1) ready.erase(ready.begin());
      ready[static_cast<std::size_t>(random.between(0, std::ssize(ready) - 1))]();
    }
    if (!kernel_over()) return "the kernel never ends";
    for (std::size_t l = 0; l < launches_.size(); ++l)
      if (!over_[l]) return "launch " + std::to_string(l) + " never ends";
    // What was waited for by counters has come as often as the plan says: the next epoch counts on.
    for (std::size_t s = 0; s < posts_.size(); ++s)
      if (counted_[s] && counters_[s] != posts_[s]) return "signal " + std::to_string(s) + " lost posts";
    return "";
  }

 private:
  // Each is launched once, in its turn.
  void expect_all(Kind kind, std::size_t count) {
    std::size_t next = 0;
    for (const Launch& launch : launches_) {
      EXPECT_TRUE(launch.kind != kind || launch.number == next);
      next += launch.kind == kind ? 1 : 0;
    }
    EXPECT_EQ(next, count);
  }

  const Task& task_of(std::size_t step) const {
    const LibraryStep& s = lanes_.program.steps[step];
    return rank_.queues[index(s.queue)].tasks[s.task];
  }
  bool kernel_over() const {
    for (std::size_t q = 0; q < heads_.size(); ++q)
      if (rank_.queues[q].engine == Engine::compute && heads_[q] < rank_.queues[q].tasks.size()) return false;
    return true;
  }

  // What the plan says has to hold when a task begins.
  void expect_met(const Task& task, const std::string& what) {
    for (const Wait& wait : task.waits)
      if (posts_[index(wait.signal)] < wait.count) wrong_ = what + " begins too early";
  }

  void add_kernel(std::size_t q, std::vector<std::function<void()>>& ready) {
    const Queue& queue = rank_.queues[q];
    if (queue.engine != Engine::compute || heads_[q] == queue.tasks.size()) return;
    const Task& task = queue.tasks[heads_[q]];
    for (const Wait& wait : task.waits) {
      counted_[index(wait.signal)] = true;
      if (counters_[index(wait.signal)] < wait.count) return;
    }
    ready.push_back([this, q, &task] {
      expect_met(task, "a kernel task");
      for (const Post& post : task.posts) ++posts_[index(post.signal)], ++counters_[index(post.signal)];
      ++heads_[q];
    });
  }

  bool can_end(std::size_t l) {
    const Launch& launch = launches_[l];
    switch (launch.kind) {
      case Kind::begin:
      case Kind::step: return true;
      case Kind::kernel: kernel_begun_ = true; return kernel_over();
      case Kind::fork: return is_over(l, [](const Launch& other) { return other.kind == Kind::begin; });
      case Kind::join: return is_over(l, [&](const Launch& other) { return other.stream == launch.stream; });
      case Kind::await: return ended_[launch.number];
      case Kind::joint: break;
    }
    for (const Gate& gate : lanes_.joints[launch.number].gates) {
      counted_[index(gate.signal)] = true;
      if (counters_[index(gate.signal)] < gate.count) return false;
    }
    return true;
  }

  // Whether all launches of some kind before that one have ended.
  template <typename Those>
  bool is_over(std::size_t end, Those&& those) const {
    for (std::size_t l = 0; l < end; ++l)
      if (those(launches_[l]) && !over_[l]) return false;
    return true;
  }

  void add_launches(bool one_queue, std::vector<std::function<void()>>& ready) {
    std::map<std::size_t, bool> blocked;  // by stream
    for (std::size_t l = 0; l < launches_.size(); ++l) {
      const Launch& launch = launches_[l];
      if (over_[l]) continue;
      const std::size_t stream = launch.kind == Kind::join ? Launch::callers : launch.stream;
      if (blocked[stream]) {
        if (one_queue) return;  // it stands at the queue's head until its stream's last one has ended
        continue;
      }
      blocked[stream] = true;
      expect_begun(l);
      const bool can = can_end(l);
      if (can) ready.insert(l == delayed_ ? ready.begin() : ready.end(), [this, l] { end(l); });
      delayed_is_ready_ = delayed_is_ready_ || (can && l == delayed_);
      const bool event = launch.kind == Kind::fork || launch.kind == Kind::join || launch.kind == Kind::await;
      if (one_queue && event && !can) return;
    }
  }

  bool begun() const {
    return is_over(launches_.size(), [](const Launch& other) { return other.kind == Kind::begin; });
  }

  // Lanes' work lies between their epoch's begin and its end, both on the caller's stream.
  void expect_begun(std::size_t l) {
    const Launch& launch = launches_[l];
    const bool works = launch.kind == Kind::joint || launch.kind == Kind::step;
    if (works && launch.stream != Launch::callers && !begun())
      wrong_ = "launch " + std::to_string(l) + " comes before the epoch";
  }
  void expect_ended(std::size_t l) {
    const auto callers = [](const Launch& launch) {
      return launch.stream == Launch::callers || launch.kind == Kind::join;
    };
    const auto behind = launches_.begin() + static_cast<std::ptrdiff_t>(l) + 1;
    if (!callers(launches_[l]) || std::any_of(behind, launches_.end(), callers)) return;
    if (!is_over(launches_.size(), [](const Launch&) { return true; })) wrong_ = "the epoch ends too early";
  }

  void end(std::size_t l) {
    const Launch& launch = launches_[l];
    over_[l] = true;
    expect_ended(l);
    if (launch.kind == Kind::joint) {
      for (const int signal : lanes_.joints[launch.number].posts) ++counters_[index(signal)];
    } else if (launch.kind == Kind::step) {
      expect_met(task_of(launch.number), "step " + std::to_string(launch.number));
      for (const Post& post : task_of(launch.number).posts) ++posts_[index(post.signal)];
      ended_[launch.number] = true;
    }
  }

  const RankPlan& rank_;
  const LanePlan& lanes_;
  const std::vector<Launch>& launches_;
  std::vector<bool> over_, ended_;               // by launch; by step
  std::vector<std::uint32_t> counters_, posts_;  // by signal: as seen by waits, as the plan's tasks have posted
  std::map<std::size_t, bool> counted_;          // signals that somebody waits for by their counter
  std::vector<std::size_t> heads_;               // by compute queue
  bool kernel_begun_ = false, delayed_is_ready_ = false;
  std::size_t delayed_ = 0;
  std::string wrong_;
};

std::string run(const Plan& plan, int rank, const LanePlan& lanes, test::Random& random, bool one_queue) {
  const auto delayed = static_cast<std::size_t>(random.between(0, std::ssize(lanes.launches) - 1));
  return Model(plan, rank, lanes).run(random, one_queue, delayed);
}

test::RandomCase signaled_case(test::Random& random) {
  for (;;) {
    test::RandomCase c = test::random_case(random, {6, 90, true, true});
    if (c.strategy == Strategy::signaled && c.problem.ranks > 1) return c;
  }
}

TEST(LanePlan, RandomSignaledPlansRunInEverySchedule) {
  test::Random random(test::seed_from_environment());
  int gathers = 0, behind = 0;
  for (int i = 0; i < 120; ++i) {
    test::RandomCase c = signaled_case(random);
    if (i % 8 == 0) c.knobs.kept_free = 0;
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    ASSERT_TRUE(runs_in_lanes(plan));
    if (const std::string refused = cuda::refusal_of_plan(plan); !refused.empty()) {
      EXPECT_TRUE(c.knobs.kept_free == 0 || c.knobs.transport == Transport::store || c.knobs.codec) << refused;
      continue;
    }
    for (int rank = 0; rank < c.problem.ranks; ++rank) {
      const LanePlan lanes = lane_plan(plan, rank);
      EXPECT_EQ(lanes.kept_free, c.knobs.kept_free);
      EXPECT_EQ(lanes.lanes(), 1u);
      EXPECT_EQ(lanes.behind, c.knobs.kept_free == 0);
      for (const bool one_queue : {false, true})
        EXPECT_EQ(run(plan, rank, lanes, random, one_queue), "") << "rank " << rank << ' ' << one_queue;
      behind += lanes.behind ? 1 : 0;
      gathers += c.problem.op == Operator::all_gather_gemm ? 1 : 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(gathers, 0);
  EXPECT_GT(behind, 0);
}

// Imbrex' own collectives would take the SMs that a concurrent kernel leaves to others.
TEST(LanePlan, LanesThatTakeWhatIsForOthersAreRefused) {
  const auto lane_refusal = [](Backend backend, bool kernel, bool behind, int sms_for_others) {
    LanePlan lanes;
    Collective work;
    work.backend = backend;
    lanes.program.steps.emplace_back().work = work;
    lanes.kernel = kernel;
    lanes.behind = behind;
    return cuda::refusal_beside_others(lanes, sms_for_others);
  };
  EXPECT_EQ(lane_refusal(Backend::imbrex, true, false, 16).find("sms_for_others = 16: Imbrex' own collectives"), 0u);
  EXPECT_EQ(lane_refusal(Backend::nccl, true, false, 16), "");
  EXPECT_EQ(lane_refusal(Backend::imbrex, true, false, 0), "");
  EXPECT_EQ(lane_refusal(Backend::imbrex, true, true, 16), "");
  EXPECT_EQ(lane_refusal(Backend::imbrex, false, false, 16), "");
}

// Sequential and decomposed plans run in the same model, by events alone.
TEST(LanePlan, RandomLibraryPlansRunInEverySchedule) {
  test::Random random(test::seed_from_environment());
  int several = 0;
  for (int i = 0; i < 120;) {
    const test::RandomCase c = test::random_case(random, {6, 90, true, true});
    if (c.strategy != Strategy::sequential && c.strategy != Strategy::decomposed) continue;
    ++i;
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    if (!runs_by_libraries(plan) || !cuda::refusal_of_plan(plan).empty()) continue;
    for (int rank = 0; rank < c.problem.ranks; ++rank) {
      const LanePlan lanes = lane_plan(plan, rank);
      EXPECT_FALSE(lanes.kernel);
      EXPECT_TRUE(lanes.joints.empty());
      for (const bool one_queue : {false, true})
        EXPECT_EQ(run(plan, rank, lanes, random, one_queue), "") << "rank " << rank << ' ' << one_queue;
      several += lanes.lanes() > 1 ? 1 : 0;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(several, 0);
}

bool notices(const Plan& plan, const LanePlan& lanes, test::Random& random) {
  for (std::size_t attempt = 0; attempt < 200 + lanes.launches.size(); ++attempt)
    if (!Model(plan, 0, lanes).run(random, false, attempt % lanes.launches.size()).empty()) return true;
  return false;
}

// Whatever is left out of what joins the lanes, the model notices: the tests above can fail.
TEST(LanePlan, NothingThatJoinsLanesCanBeLeftOut) {
  test::Random random(test::seed_from_environment());
  int joints = 0, events = 0;
  for (int i = 0; i < 200; ++i) {
    test::RandomCase c = test::random_case(random, {6, 90, true, true});
    if (c.strategy == Strategy::fused || c.problem.ranks == 1) continue;
    c.knobs.kept_free = 4;
    c.knobs.transport = Transport::push;
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    if (!runs_by_libraries(plan) || !cuda::refusal_of_plan(plan).empty()) continue;
    const LanePlan lanes = lane_plan(plan, 0);
    for (std::size_t j = 0; j < lanes.joints.size(); ++j) {
      LanePlan less = lanes;
      Joint& joint = less.joints[j];
      if (joint.posts.empty() && joint.gates.empty()) continue;
      joint.posts.empty() ? joint.gates.pop_back() : joint.posts.pop_back();
      EXPECT_TRUE(notices(plan, less, random)) << test::describe(c) << ", joint " << j;
      ++joints;
    }
    for (std::size_t l = 0; l < lanes.launches.size(); ++l) {
      const Launch::Kind kind = lanes.launches[l].kind;
      // Where the kernel waits for lanes, it ends after them.
      const bool joins = kind == Launch::Kind::join && !lanes.kernel_waits;
      if (kind != Launch::Kind::fork && kind != Launch::Kind::await && !joins) continue;
      LanePlan less = lanes;
      less.launches.erase(less.launches.begin() + static_cast<std::ptrdiff_t>(l));
      EXPECT_TRUE(notices(plan, less, random)) << test::describe(c) << ", launch " << l;
      ++events;
    }
  }
  EXPECT_GT(joints, 40);
  EXPECT_GT(events, 40);
}

Plan signaled(Operator op, const Knobs& knobs) {
  return make_plan({op, 256, 128, 64, 2, Type::bf16}, Strategy::signaled, knobs);
}

TEST(LanePlan, CollectivesWaitByGatesAndTilesForPosts) {
  const Knobs knobs{.tile_m = 32, .tile_n = 64, .groups = {1, 3}, .kept_free = 2};
  const LanePlan scatter = lane_plan(signaled(Operator::gemm_reduce_scatter, knobs), 1);
  ASSERT_EQ(scatter.program.steps.size(), 2u);
  ASSERT_EQ(scatter.joints.size(), 3u);
  EXPECT_FALSE(scatter.kernel_waits);
  EXPECT_TRUE(scatter.joints[0].first);
  // Two owners' rows of tiles, two tiles each.
  EXPECT_EQ(scatter.joints[0].gates, (std::vector<Gate>{{0, 4}}));
  EXPECT_EQ(scatter.joints[1].gates, (std::vector<Gate>{{1, 12}}));
  for (const Joint& joint : scatter.joints) EXPECT_TRUE(joint.posts.empty());
  const LanePlan gather = lane_plan(signaled(Operator::all_gather_gemm, knobs), 1);
  EXPECT_TRUE(gather.kernel_waits);
  ASSERT_EQ(gather.joints.size(), 3u);
  for (const Joint& joint : gather.joints) EXPECT_TRUE(joint.gates.empty());
  EXPECT_TRUE(gather.joints[0].posts.empty());
  EXPECT_EQ(gather.joints[1].posts, std::vector<int>{0});
  EXPECT_EQ(gather.joints[2].posts, std::vector<int>{1});
  EXPECT_EQ(gather.joints[2].step, 2u);
}

std::string lane_refusal(const Plan& plan) {
  try {
    lane_plan(plan, 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

#define EXPECT_LANE_REFUSAL(plan, text)                          \
  do {                                                           \
    const std::string message = lane_refusal(plan);              \
    EXPECT_NE(message.find(text), std::string::npos) << message; \
  } while (false)

// The first queue of rank 0 with such tasks.
Queue& queue_of(Plan& plan, Engine engine) {
  for (Queue& queue : plan.ranks[0].queues)
    if (queue.engine == engine && !queue.tasks.empty()) return queue;
  throw std::logic_error("no such queue");
}

TEST(LanePlan, RefusalsNameTheTaskAndTheReason) {
  const Knobs knobs{.tile_m = 32, .tile_n = 64, .groups = {1, 3}, .kept_free = 2};
  const Plan scatter = signaled(Operator::gemm_reduce_scatter, knobs);
  const Plan gather = signaled(Operator::all_gather_gemm, knobs);
  EXPECT_EQ(lane_refusal(scatter), "");
  EXPECT_EQ(lane_refusal(gather), "");

  // Tiles that wait for collectives need SMs beside the kernel; collectives that wait for tiles do not.
  Knobs none = knobs;
  none.kept_free = 0;
  EXPECT_TRUE(lane_plan(signaled(Operator::gemm_reduce_scatter, none), 0).behind);
  EXPECT_LANE_REFUSAL(signaled(Operator::all_gather_gemm, none),
                      "waits for library tasks, and the plan keeps 0 SMs free");
  EXPECT_NE(cuda::refusal_of_plan(signaled(Operator::all_gather_gemm, none)).find("(tile)"), std::string::npos);

  Plan plan = gather;
  for (Task& task : queue_of(plan, Engine::library).tasks) std::get<Collective>(task.work).backend = Backend::imbrex;
  EXPECT_LANE_REFUSAL(plan, "whose backend must be nccl");

  plan = scatter;
  queue_of(plan, Engine::library).tasks.push_back({Product{}, {}, {}});
  EXPECT_LANE_REFUSAL(plan, "library queues run no products");

  plan = scatter;
  plan.ranks[0].queues.push_back({Engine::copy, 0, {{Transfer{}, {}, {}}}});
  EXPECT_LANE_REFUSAL(plan, "runs no copy queues");

  plan = scatter;
  queue_of(plan, Engine::compute).tasks.front().posts = {{1, 0}};
  EXPECT_LANE_REFUSAL(plan, "posts to rank 1");

  plan = scatter;
  std::get<Tile>(queue_of(plan, Engine::compute).tasks.front().work).stores.front().to.rank = 1;
  EXPECT_LANE_REFUSAL(plan, "stores to rank 1; with library queues, tasks stay on their rank");

  plan = scatter;
  for (Buffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::workspace) buffer.copies = 2;
  EXPECT_LANE_REFUSAL(plan, "has 2 copies");

  plan = scatter;
  queue_of(plan, Engine::library).tasks.front().waits.front().count = 99;
  EXPECT_LANE_REFUSAL(plan, "waits for posts of tasks that come after it");
}

// What such plans have launched since there are any: steps, and the events between streams.
TEST(LanePlan, LibraryPlansLaunchStepsAndEvents) {
  using enum Launch::Kind;
  const Problem p{Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::bf16};
  EXPECT_EQ(lane_plan(make_plan(p, Strategy::sequential, {}), 1).launches,
            (std::vector<Launch>{{begin}, {step, 0}, {step, 1}}));
  // A product a chunk on the caller's stream, and after each, on another one, its collective.
  EXPECT_EQ(lane_plan(make_plan(p, Strategy::decomposed, {.chunks = 2}), 1).launches,
            (std::vector<Launch>{
                {begin}, {step, 0}, {await, 0, 1}, {step, 1, 1}, {step, 2}, {await, 2, 1}, {step, 3, 1}, {await, 3}}));
  // The first exchange goes ahead of the own rows' product; after each exchange comes that of the rows it brings.
  const Problem gather{Operator::all_gather_gemm, 384, 192, 64, 3, Type::bf16};
  EXPECT_EQ(
      lane_plan(make_plan(gather, Strategy::decomposed, {.chunks = 1}), 1).launches,
      (std::vector<Launch>{
          {begin}, {fork, 0, 1}, {step, 0, 1}, {step, 1}, {step, 2, 1}, {await, 0}, {step, 3}, {await, 2}, {step, 4}}));
  const LanePlan signaled_plan = lane_plan(
      signaled(Operator::gemm_reduce_scatter, {.tile_m = 32, .tile_n = 64, .groups = {4}, .kept_free = 2}), 1);
  EXPECT_EQ(
      signaled_plan.launches,
      (std::vector<Launch>{{begin}, {kernel}, {fork, 0, 0}, {joint, 0, 0}, {step, 0, 0}, {joint, 1, 0}, {join, 0, 0}}));
}

// A lane that waits for tiles which wait for another lane's: the steps are launched in an order that runs in one
// hardware queue, not lane by lane in turn.
TEST(LanePlan, SeveralLanesAreLaunchedInAnOrderThatRuns) {
  const auto nothing = [](std::vector<Wait> waits, std::vector<Post> posts) {
    return Task{Transfer{}, std::move(waits), std::move(posts)};
  };
  Plan plan = signaled(Operator::gemm_reduce_scatter, {.tile_m = 32, .tile_n = 64, .groups = {4}, .kept_free = 3});
  for (RankPlan& rank : plan.ranks) rank = {4, {}};
  // Signal 0: lane 2 to the kernel; 1: kernel to lane 1; 2: lane 1 to lane 2, an event; 3: both sides to lane 2.
  plan.ranks[0].queues = {
      {Engine::compute, 0, {nothing({{0}}, {{0, 1}, {0, 3}})}},
      {Engine::library, 0, {nothing({{1}}, {{0, 2}})}, {}, ClusterMode::any, 3},
      {Engine::library, 0, {nothing({}, {{0, 0}, {0, 3}}), nothing({{2}, {3, 2}}, {})}},
  };
  const LanePlan lanes = lane_plan(plan, 0);
  EXPECT_EQ(lanes.lanes(), 2u);
  ASSERT_EQ(lanes.program.steps.size(), 3u);
  EXPECT_EQ(lanes.program.steps[0].queue, 2);
  EXPECT_EQ(lanes.program.steps[1].queue, 1);
  EXPECT_EQ(lanes.program.steps[2].waits, std::vector<std::size_t>{1});
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 50; ++i)
    for (const bool one_queue : {false, true}) EXPECT_EQ(run(plan, 0, lanes, random, one_queue), "") << one_queue;
  // Without room for both lanes' gates:
  plan.ranks[0].queues[1].kept_free = 1;
  EXPECT_LANE_REFUSAL(plan, "keeps 1 SMs free (kept_free); the kernel takes all others, and each of the 2 streams");
  // Each waits for the other.
  plan.ranks[0].queues[1].kept_free = 3;
  plan.ranks[0].queues[2].tasks.front().waits = {{1}};
  EXPECT_LANE_REFUSAL(plan, "queue 1 task 0");
}

}  // namespace
}  // namespace imbrex
