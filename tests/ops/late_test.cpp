// Ranks whose hosts come late to a call: the others wait for them, and say so once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"

namespace imbrex {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int ranks = 3;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

OperatorOptions on_cpu() {
  OperatorOptions cpu;
  cpu.device = Device::cpu;
  return cpu;
}

class Late : public testing::TestWithParam<bool> {
 protected:
  // Runs the body on every rank, and keeps what was printed.
  int run(const WorldOptions& options, const std::function<int(World&)>& body) {
    testing::internal::CaptureStderr();
    const int code = GetParam() ? run_processes(ranks, options, body) : run_threads(ranks, options, body);
    said = testing::internal::GetCapturedStderr();
    return code;
  }

  std::string said;
};

INSTANTIATE_TEST_SUITE_P(Ranks, Late, testing::Bool(),
                         [](const auto& one) { return one.param ? "Processes" : "Threads"; });

bool product(GemmAllReduce& op) {
  std::vector<float> a(16, 1), b(32, 1), out(32);
  op.run({op.operand("a", a.data()), op.operand("b", b.data()), op.operand("out", out.data())});
  return out == std::vector<float>(32, 4 * ranks);
}

void be_late(const World& world, double seconds) {
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST_P(Late, ARankIsWaitedForAndNamedOnceACall) {
  const int code = run({.heap_bytes = 1 << 24, .wait_limit = 1, .entry_limit = 60}, [](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 8, .k = 4 * ranks, .type = Type::fp32}, on_cpu());
    AllReduce sum(world, 64, Type::fp32, {}, Device::cpu);
    bool right = product(op);
    be_late(world, 3);
    right = product(op) && right;
    be_late(world, 3);
    std::vector<float> x(64, 1), y(64);
    sum.run({{"in", View::vector(x.data(), Type::fp32, 64)}, {"out", View::vector(y.data(), Type::fp32, 64)}});
    right = y == std::vector<float>(64, ranks) && right;
    be_late(world, 3);
    const GemmAllReduce other(world, {.m = 8, .n = 8, .k = 4 * ranks, .type = Type::fp32}, on_cpu());
    return right && product(op) ? 0 : 1;
  });
  EXPECT_EQ(code, 0) << said;
  for (const int rank : {0, 2}) {
    const std::string late = fmt::format("imbrex: rank {}: rank 1 has not come to ", rank);
    EXPECT_EQ(count(said, late + "call 2, gemm_all_reduce M=4 N=8 K=12 fp32 over 3 ranks; waiting up to 60 s\n"), 1)
        << said;
    EXPECT_EQ(count(said, late + "call 3, which waits for "), 1) << said;
    EXPECT_GE(count(said, late + "barrier "), 1) << said;
  }
}

TEST_P(Late, ARankThatDoesNotComeEndsTheCallAtTheEntryLimit) {
  const auto begin = Clock::now();
  const int code = run({.heap_bytes = 1 << 24, .wait_limit = 0.5, .entry_limit = 2}, [&](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 8, .k = 4 * ranks, .type = Type::fp32}, on_cpu());
    be_late(world, 5);
    product(op);
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_GE(count(said, "waited longer than 2 s for "), 1) << said;
  EXPECT_GE(count(said, "; rank 1 has not come to this call"), 1) << said;
}

// So do scripts that want an answer soon.
TEST_P(Late, ALimitThatIsSetHoldsForLateRanksToo) {
  const int code = run({.heap_bytes = 1 << 24, .wait_limit = 0.5}, [](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 8, .k = 4 * ranks, .type = Type::fp32}, on_cpu());
    be_late(world, 3);
    product(op);
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_GE(count(said, "waited longer than 0.5 s for "), 1) << said;
  EXPECT_EQ(count(said, "waiting up to"), 0) << said;
}

// Who has died is not late.
TEST_P(Late, ARankThatDiesEndsTheCallAtOnce) {
  if (!GetParam()) GTEST_SKIP() << "ranks of one process end together";
  const auto begin = Clock::now();
  const int code = run({.heap_bytes = 1 << 24, .wait_limit = 0.5, .entry_limit = 300}, [](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 8, .k = 4 * ranks, .type = Type::fp32}, on_cpu());
    be_late(world, 2);
    if (world.rank() == 1) _exit(9);
    product(op);
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(count(said, "call 1, gemm_all_reduce"), 2) << said;
  EXPECT_GE(count(said, ") was lost: "), 2) << said;
}

}  // namespace
}  // namespace imbrex
