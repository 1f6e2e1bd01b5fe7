// Joints between the kernel and library lanes, in threads: their protocol compiles for the host.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/narrow.hpp"
#include "execute/cuda/lanes/joint_protocol.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/layout.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;

using base::index;

/// One rank's GPU: blocks of the kernel and lanes are threads, steps only check and post.
class Gpu {
 public:
  Gpu(const Plan& plan, int rank, std::uint32_t blocks, std::uint64_t first_epoch)
      : rank_(plan.ranks[index(rank)]),
        lanes_(lane_plan(plan, rank)),
        copies_(static_cast<std::uint64_t>(plan.signal_copies)),
        blocks_(blocks),
        counters_(copies_ * index(rank_.signals)),
        posts_(index(rank_.signals)),
        ended_(lanes_.program.steps.size()) {
    const execute::HeapLayout layout(plan);
    for (int s = 0; s < rank_.signals; ++s) per_epoch_.push_back(layout.posts(rank, s));
    for (std::uint64_t e = first_epoch; e < first_epoch + copies_; ++e)
      for (int s = 0; s < rank_.signals; ++s) *counter(s, e) = layout.base(rank, s, e);
    state_.epoch = first_epoch;
    protocol_.own = &state_;
    protocol_.states = reinterpret_cast<std::byte*>(&state_);
    protocol_.stride = 0;
    protocol_.ranks = 1;
    protocol_.limit = device::ticks_of(20'000'000'000);
    protocol_.fault = &fault_;
    protocol_.readers = blocks + static_cast<std::uint32_t>(lanes_.joints.size());
    protocol_.counters = reinterpret_cast<std::byte*>(counters_.data());
    protocol_.set_stride = index(rank_.signals) * sizeof(std::uint32_t);
    protocol_.counter_stride = sizeof(std::uint32_t);
    protocol_.copies = static_cast<std::uint32_t>(copies_);
    make_joints();
  }

  void delay(std::uint32_t seed) {
    protocol_.pause_seed = seed;
    protocol_.max_pause_ns = 20000;
    for (JointArgs& args : joints_) args.protocol = protocol_;
  }

  void run_epoch(std::uint64_t epoch) {
    for (auto& count : posts_) count = 0;
    for (auto& flag : ended_) flag = false;
    std::vector<std::thread> threads;
    for (std::size_t s = 0; s < lanes_.lanes(); ++s) threads.emplace_back([this, s] { run_lane(s); });
    for (std::uint32_t b = 0; b < blocks_; ++b) threads.emplace_back([this, b, epoch] { run_block(b, epoch); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(state_.epoch, epoch + 1);
    EXPECT_EQ(state_.readers, 0u);
    EXPECT_EQ(late_, 0) << "tasks began before what they wait for";
    EXPECT_EQ(given_up_, 0) << "waits passed their limit";
  }

  bool sound() const { return late_ == 0 && given_up_ == 0; }
  const LanePlan& lanes() const { return lanes_; }
  JointArgs& joint(std::size_t j) { return joints_[j]; }
  device::Fault& fault() { return fault_; }

 private:
  std::uint32_t* counter(int signal, std::uint64_t epoch) {
    return &counters_[epoch % copies_ * index(rank_.signals) + index(signal)];
  }

  void make_joints() {
    for (const Joint& joint : lanes_.joints) {
      std::vector<WaitEntry>& waits = waits_.emplace_back();
      std::vector<PostEntry>& posts = post_entries_.emplace_back();
      for (const Gate& gate : joint.gates)
        waits.push_back({static_cast<std::uint32_t>(gate.signal), per_epoch_[index(gate.signal)], gate.count, 0});
      for (const int signal : joint.posts) posts.push_back({reinterpret_cast<std::uint64_t>(counter(signal, 0))});
      JointArgs args{};
      args.protocol = protocol_;
      args.waits = waits.data();
      args.posts = posts.data();
      args.record = &record_;
      args.tells = lanes_.lanes() == 1 ? 1 : 0;
      args.wait_count = static_cast<std::uint32_t>(waits.size());
      args.post_count = static_cast<std::uint32_t>(posts.size());
      args.arrivals = joint.first ? blocks_ : 0;
      args.queue = 7;
      args.task = static_cast<std::uint32_t>(joint.step);
      joints_.push_back(args);
    }
  }

  void begin(const Task& task) {
    for (const Wait& wait : task.waits)
      if (posts_[index(wait.signal)] < wait.count) ++late_;
  }

  void run_lane(std::size_t stream) {
    const auto& steps = lanes_.program.steps;
    std::size_t j = 0;
    const auto joints = [&](std::size_t step, bool early) {
      bool met = true;
      for (; j < joints_.size() && lanes_.joints[j].step == step && lanes_.joints[j].early == early; ++j)
        if (lanes_.joints[j].stream == stream) met = run_joint(joints_[j]) && met;
      if (!met) ++given_up_;
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
      joints(i, true);
      for (const std::size_t before : steps[i].waits)
        while (steps[i].stream == stream && !ended_[before]) std::this_thread::yield();
      joints(i, false);
      if (steps[i].stream != stream) continue;
      const Task& task = rank_.queues[index(steps[i].queue)].tasks[steps[i].task];
      begin(task);
      for (const Post& post : task.posts) ++posts_[index(post.signal)];
      ended_[i] = true;
    }
    joints(steps.size(), false);
  }

  void run_block(std::uint32_t block, std::uint64_t expected) {
    const std::uint64_t epoch = device::read_epoch(protocol_);
    EXPECT_EQ(epoch, expected);
    device::pause_for_tests(protocol_, epoch, 1000, block);
    device::advance_epoch(protocol_, epoch);
    for (const Queue& queue : rank_.queues)
      for (std::size_t t = block; queue.engine == Engine::compute && t < queue.tasks.size(); t += blocks_) {
        const Task& task = queue.tasks[t];
        for (const Wait& wait : task.waits) {
          const auto before = static_cast<std::uint32_t>(epoch / copies_) * per_epoch_[index(wait.signal)];
          if (!device::wait_for(protocol_, counter(wait.signal, epoch), before + wait.count,
                                [](device::Fault&, std::uint32_t) {}))
            ++given_up_;
        }
        begin(task);
        for (const Post& post : task.posts) {
          ++posts_[index(post.signal)];
          device::add_relaxed(counter(post.signal, epoch), 1);
        }
      }
  }

  const RankPlan& rank_;
  LanePlan lanes_;
  std::uint64_t copies_;
  std::uint32_t blocks_;
  std::vector<std::uint32_t> counters_, per_epoch_;
  std::vector<std::atomic<std::uint32_t>> posts_;  // by signal, of this epoch: as the plan's tasks have ended
  std::vector<std::atomic<bool>> ended_;           // by step
  std::atomic<int> late_ = 0, given_up_ = 0;
  device::State state_{};
  device::Fault fault_{};
  LaneRecord record_{};
  Protocol protocol_{};
  std::vector<std::vector<WaitEntry>> waits_;
  std::vector<std::vector<PostEntry>> post_entries_;
  std::vector<JointArgs> joints_;
};

Plan random_plan(test::Random& random) {
  for (;;) {
    test::RandomCase c = test::random_case(random, {4, 90, true, true});
    if (c.strategy != Strategy::signaled || c.problem.ranks == 1) continue;
    c.knobs.kept_free = 2;
    c.knobs.transport = Transport::push;
    return make_plan(c.problem, c.strategy, c.knobs);
  }
}

TEST(Joint, EpochsFollowEachOtherWithDelays) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 25; ++i) {
    const Plan plan = random_plan(random);
    SCOPED_TRACE(test::describe({plan.problem, plan.strategy, plan.knobs}));
    // Turns wrap in the second or third epoch.
    const std::uint64_t first =
        i % 3 == 0 ? 0 : (std::uint64_t{1} << 32) * static_cast<std::uint64_t>(plan.signal_copies) - 2;
    Gpu gpu(plan, 0, static_cast<std::uint32_t>(random.between(1, 5)), first);
    gpu.delay(static_cast<std::uint32_t>(i) + 1);
    for (std::uint64_t e = first; e < first + 6 && gpu.sound(); ++e) gpu.run_epoch(e);
    if (HasFailure()) return;
  }
}

TEST(Joint, AGateThatPassesItsLimitSaysWhatItWaitedFor) {
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::bf16}, Strategy::signaled,
                              {.tile_m = 32, .tile_n = 64, .groups = {1, 3}, .kept_free = 2});
  Gpu gpu(plan, 0, 1, 5);
  JointArgs& gate = gpu.joint(0);
  gate.arrivals = 0;
  gate.protocol.limit = device::ticks_of(1'000'000);
  EXPECT_FALSE(run_joint(gate));
  const device::Fault& fault = gpu.fault();
  EXPECT_EQ(fault.state, device::Fault::timed_out);
  EXPECT_EQ(fault.kind, static_cast<std::uint32_t>(FaultKind::task));
  EXPECT_EQ(fault.place[0], 7u);
  EXPECT_EQ(fault.place[1], 0u);
  EXPECT_EQ(fault.place[2], static_cast<std::uint32_t>(gpu.lanes().joints[0].gates[0].signal));
  EXPECT_EQ(fault.expected, gpu.lanes().joints[0].gates[0].count);
  EXPECT_EQ(fault.seen, 0u);
  EXPECT_EQ(fault.epoch, 5u);
  // What comes after it gives up at once.
  EXPECT_FALSE(run_joint(gpu.joint(1)));
}

TEST(Joint, AKernelThatDoesNotBeginIsSaid) {
  const Plan plan = make_plan({Operator::all_gather_gemm, 256, 128, 64, 2, Type::bf16}, Strategy::signaled,
                              {.tile_m = 32, .tile_n = 64, .groups = {1, 3}, .kept_free = 2});
  Gpu gpu(plan, 1, 3, 0);
  gpu.joint(0).protocol.limit = device::ticks_of(1'000'000);
  EXPECT_FALSE(run_joint(gpu.joint(0)));
  EXPECT_EQ(gpu.fault().kind, static_cast<std::uint32_t>(FaultKind::arrival));
  EXPECT_EQ(gpu.fault().expected, 3u);
  EXPECT_EQ(gpu.fault().seen, 0u);
}

}  // namespace
}  // namespace imbrex
