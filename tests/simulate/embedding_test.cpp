// What the simulator says of embedding exchanges on four H200s follows from the machine's constants: nothing is faster
// than the longest of what it must do, and nothing is slower than one thing after another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "simulator/embedding_cases.hpp"

namespace imbrex::bench {
namespace {

struct Speedup {
  double of = 0, bound = 0;
};

// Fused plans over sequential ones.
Speedup speedup_of(const Problem& problem, const Machine& machine) {
  const Parts parts = parts_of(problem, machine);
  const double sequential = seconds_of(problem, Strategy::sequential, machine),
               fused = seconds_of(problem, Strategy::fused, machine);
  fmt::print(
      "{}: lookup {:.0f} us, wire {:.0f}, exchange {:.0f}, bound {:.2f}; sequential {:.0f}, fused {:.0f}: {:.2f}x\n",
      name_of(problem.type), parts.lookup * 1e6, parts.wire * 1e6, parts.exchange * 1e6, parts.bound(),
      sequential * 1e6, fused * 1e6, sequential / fused);
  EXPECT_GE(fused, parts.longest());
  // The last stores may still be on their way to memory while the exchange begins.
  EXPECT_GE(sequential, parts.serial() - parts.stored - parts.launches);
  EXPECT_LE(sequential, parts.serial());
  EXPECT_LE(sequential / fused, parts.bound());
  return {sequential / fused, parts.bound()};
}

TEST(EmbeddingTimes, FusedHidesWhatItMayAndNoMore) {
  const Machine machine = load_machine("4xh200");
  for (const Type type : {Type::fp16, Type::fp32}) {
    const Problem problem = embedding_problem(dlrm_tables(), 65536, 4, type, machine);
    EXPECT_GE(speedup_of(problem, with_exchange(machine, Exchange::nccl_of_four)).of, 1.8) << name_of(type);
    const Speedup ideal = speedup_of(problem, with_exchange(machine, Exchange::at_370));
    EXPECT_GE(ideal.of, 1.7) << name_of(type);
    EXPECT_LE(ideal.bound, 2.3) << name_of(type);
  }
}

TEST(EmbeddingTimes, LongBagsLoseNothing) {
  const Machine machine = with_exchange(load_machine("4xh200"), Exchange::at_370);
  for (const Type type : {Type::fp16, Type::fp32})
    EXPECT_GE(speedup_of(embedding_problem(equal_tables(32, 256, 64), 8192, 4, type, machine), machine).of, 1)
        << name_of(type);
}

}  // namespace
}  // namespace imbrex::bench
