// Several worlds in one process on GPUs, each with a heap of its own, whose operators are called in turn on one stream:
// one of all ranks, one of half of them, and all once more. NCCL's variables stay what they are.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/operators/operator_subject.hpp"
#include "support/groups.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::on_ranks;
using test::Random;
using test::Stream;
using test::Subject;

std::map<std::string, std::string> nccl_variables() {
  std::map<std::string, std::string> found;
  for (char** each = environ; *each != nullptr; ++each)
    if (const std::string_view text = *each; text.starts_with("NCCL_"))
      found.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  return found;
}

// Strategies that these ranks run: libraries are not for threads that share a GPU.
std::vector<std::pair<Strategy, Transport>> ways() {
  std::vector<std::pair<Strategy, Transport>> all{{Strategy::fused, Transport::store}};
#if defined(IMBREX_HAVE_LIBRARIES)
  if (test::runs_here(Strategy::sequential, Transport::push)) all.emplace_back(Strategy::sequential, Transport::push);
#endif
  return all;
}

struct Called {
  World& world;
  std::unique_ptr<Subject> subject;
};

// Every rank draws the same calls, of which a half has its own operands.
void take_turns(World& all, int calls) {
  const int half = all.size() / 2;
  WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = all.options().wait_limit};
  options.gpu = all.rank() / test::ranks_per_gpu();
  const auto part = test::group_of(all, half, options), again = test::group_of(all, all.size(), options);
  std::vector<Called> subjects;
  for (World* world : {&all, part.get(), again.get()})
    for (const auto& [strategy, transport] : ways())
      for (const Operator op : {Operator::gemm_all_reduce, Operator::all_gather_gemm, Operator::gemm_reduce_scatter}) {
        subjects.push_back({*world, std::make_unique<Subject>(*world, op, GemmShape{384, 512, 384, Type::bf16},
                                                              test::options_of(strategy, transport, 0), false,
                                                              world == part.get() ? 7 + all.rank() / half : 3)});
        all.barrier();
      }
  const Stream stream(all);
  Random random(test::seed_from_environment());
  std::vector<Subject*> called;
  for (int call = 0; call < calls; ++call) {
    Subject& subject = *subjects[static_cast<std::size_t>(random.between(0, std::ssize(subjects) - 1))].subject;
    if (std::find(called.begin(), called.end(), &subject) == called.end()) {
      subject.poison(stream);
      called.push_back(&subject);
    }
    subject.call(stream);
    if (call % 16 != 15 && call + 1 != calls) continue;
    for (const Called& each : subjects) each.subject->op().synchronize(stream);
    for (Subject* each : called) each->judge("call " + std::to_string(call));
    called.clear();
  }
  all.barrier();
  // In the order of the worlds, so that no rank frees memory while a kernel of another rank waits.
  while (!subjects.empty()) {
    subjects.pop_back();
    all.barrier();
  }
}

TEST(GpuWorlds, TakeTurnsInAThousandCalls) {
  NEEDS_GPUS(2);
  const int ranks = test::most_ranks() >= 4 ? 4 : 2;
  EXPECT_EQ(on_ranks(ranks, 30,
                     [](World& world) {
                       const auto before = nccl_variables();
                       take_turns(world, 1000);
                       EXPECT_EQ(nccl_variables(), before);
                     }),
            0);
}

// Worlds come and go while an operator of another one lives.
TEST(GpuWorlds, ComeAndGo) {
  NEEDS_GPUS(2);
  EXPECT_EQ(on_ranks(2, 30,
                     [](World& all) {
                       const GemmShape shape{256, 256, 256, Type::bf16};
                       const OperatorOptions with = test::options_of(Strategy::fused, Transport::store, 0);
                       Subject lives(all, Operator::gemm_all_reduce, shape, with, false);
                       for (int round = 0; round < 6; ++round) {
                         WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = 30};
                         options.gpu = all.rank() / test::ranks_per_gpu();
                         const auto world = test::group_of(all, 2, options);
                         Subject goes(*world, Operator::gemm_reduce_scatter, shape, with, false, 5);
                         for (Subject* each : {&goes, &lives, &goes}) {
                           all.barrier();
                           each->call();
                           each->judge("round " + std::to_string(round));
                         }
                         all.barrier();
                       }
                     }),
            0);
}

}  // namespace
}  // namespace imbrex
