// `auto` never chooses what cannot run: of random problems, on GPUs of any kind, what is chosen passes the checks of
// plans and of the executor, with and without reach of other ranks' memory (IMBREX_PEER_ACCESS).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "execute/peer_access.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "plan/problem.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Random;

Problem random_problem(Random& random) {
  Problem p = test::random_problem(
      random, {.max_ranks = 8, .max_size = random.chance(0.2) ? 5000 : 600, .bias = true, .e4m3 = true, .lists = true});
  // Whole 16 bytes, which most callers have; else what tensor cores do not take.
  if (random.chance(0.7)) {
    const std::int64_t unit = 16 * p.ranks;
    for (std::int64_t* size : {&p.n, &p.k}) *size = (*size + unit - 1) / unit * unit;
    for (std::int64_t& n : p.more_n) n = (n + unit - 1) / unit * unit;
  }
  if (random.chance(0.3)) test::add_pitches(random, p, random.chance(0.7) ? 16 : 1);
  return p;
}

choose::GpuKind random_kind(Random& random) {
  choose::GpuKind kind =
      random.one_of<choose::GpuKind>({{"NVIDIA H200", 9}, {"NVIDIA H100 80GB HBM3", 9}, {"NVIDIA A100-SXM4-80GB", 8}});
  kind.copies = random.chance(0.6);
  kind.libraries = kind.copies || random.chance(0.6);
  kind.nccl = random.chance(0.7);
  kind.lanes = random.chance(0.7);
  kind.fp8 = kind.major == 9;
  return kind;
}

bool calls_nccl(const Plan& plan) {
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const auto* work = std::get_if<Collective>(&task.work); work != nullptr && work->backend == Backend::nccl)
          return plan.problem.ranks > 1;
  return false;
}

// What keeps the plan from running on such GPUs; empty if nothing does.
std::string why_not(const Plan& plan, const choose::GpuKind& kind) {
  if (const auto finding = check(plan)) return finding->message;
  if (std::string why = cuda::refusal_of_plan(plan); !why.empty()) return why;
  if (!kind.copies && !kind.libraries)
    if (std::string why = cuda::refusal_of_sharing(plan, 4, false); !why.empty()) return why;
  if (!kind.copies)
    if (std::string why = cuda::refusal_of_sharing(plan, 4, true); !why.empty()) return why;
  if (!kind.lanes && cuda::runs_in_lanes(plan)) return cuda::refusal_of_turns(plan);
  if (!kind.copies && !kind.lanes)
    if (std::string why = cuda::refusal_of_turns(plan); !why.empty()) return why;
  if (!execute::has_peer_access())
    if (std::string why = execute::refusal_without_peer_access(plan); !why.empty()) return why;
  return kind.nccl || !calls_nccl(plan) ? std::string() : "it calls NCCL";
}

TEST(Auto, ChoosesWhatRunsOnGpus) {
  Random random(test::seed_from_environment());
  int chosen[4] = {};
  for (int i = 0; i < 400; ++i) {
    const Problem p = random_problem(random);
    const choose::GpuKind kind = random_kind(random);
    // Without reach of others' memory, and without NCCL, nothing runs but one rank.
    if (!execute::has_peer_access() && !(kind.nccl && kind.libraries) && p.ranks > 1) continue;
    // Nor where cuBLASLt does not take the product, and tiles do not run beside collectives.
    const bool tiles = kind.lanes && plan::has_one_output(p), fp8 = kind.fp8 && cuda::refusal_of_tma(p).empty();
    const bool library = cuda::refusal_of_library_bias(p).empty() && (p.type != Type::e4m3 || fp8);
    if (!execute::has_peer_access() && p.ranks > 1 && !tiles && !library) continue;
    const plan::Candidate c = choose::choose_gpu_candidate(p, {}, {}, kind);
    const test::RandomCase text{p, c.strategy, c.knobs};
    SCOPED_TRACE(fmt::format("{} on {}, copies {}, libraries {}, NCCL {}, lanes {}", test::describe(text), kind.name,
                             kind.copies, kind.libraries, kind.nccl, kind.lanes));
    ASSERT_EQ(why_not(make_plan(p, c.strategy, c.knobs), kind), "");
    ++chosen[static_cast<int>(c.strategy)];
  }
  EXPECT_GT(chosen[static_cast<int>(Strategy::sequential)], 0);
  if (execute::has_peer_access()) {
    EXPECT_GT(chosen[static_cast<int>(Strategy::fused)], 0);
  }
}

TEST(Auto, ChoosesWhatRunsOnTheCpu) {
  Random random(test::seed_from_environment() + 1);
  for (int i = 0; i < 60; ++i) {
    const Problem p =
        test::random_problem(random, {.max_ranks = 8, .max_size = 300, .bias = true, .e4m3 = true, .lists = true});
    const Plan plan = choose_plan(p, nominal_host_machine(), {});
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    if (!execute::has_peer_access()) {
      ASSERT_EQ(execute::refusal_without_peer_access(plan), "");
    }
  }
}

}  // namespace
}  // namespace imbrex
