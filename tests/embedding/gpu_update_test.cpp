// Updates on a GPU: the CPU's bits.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "embedding/cuda/cuda_update.hpp"
#include "embedding/on_device.hpp"
#include "embedding/random_step.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

using test::OnDevice, test::RandomStep;

#define NEEDS_A_GPU() \
  if (test::devices() == 0) GTEST_SKIP() << "a GPU wanted, none found"

/// A step's memory on the GPU, whose gradients are what `on` holds as output.
struct StepOnDevice {
  explicit StepOnDevice(const RandomStep& s) : on(s.bags), step(s.step) {
    for (const auto& table : s.states) {
      states.push_back(test::to_device(table));
      state.push_back(static_cast<float*>(states.back().get()));
    }
    step.states = state.data();
  }

  OnDevice on;
  Step step;
  std::vector<cuda::RawMemory> states;
  std::vector<float*> state;
};

void expect_the_same(const RandomStep& s, const StepOnDevice& there) {
  for (std::size_t t = 0; t < s.bags.table.size(); ++t) {
    auto rows = s.bags.rows[t];
    auto states = s.states[t];
    test::from_device(rows, there.on.rows[t].get());
    test::from_device(states, there.states[t].get());
    ASSERT_EQ(rows, s.bags.rows[t]) << "table " << t;
    ASSERT_EQ(states, s.states[t]) << "table " << t;
  }
}

TEST(GpuUpdate, FiveStepsGiveTheCpusBits) {
  NEEDS_A_GPU();
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < test::gpu_cases(200); ++i) {
    std::mt19937_64 random(seed + i);
    // Few rows, whose uses fill several tiles, and many.
    RandomStep s = test::random_step(random, {.rows = i % 2 == 0 ? 4 : 300, .part_rows = 20, .misfits = i % 3 == 0});
    SCOPED_TRACE(fmt::format("case {}: {}, {}", i, s.bags.text(), name_of(s.step.optimizer)));
    StepOnDevice there(s), again(s);
    const std::int64_t most = s.bags.bags.count + 1;
    CudaUpdate update_there(there.on.tables(), there.step, s.bags.bags.batch, most),
        update_again(again.on.tables(), again.step, s.bags.bags.batch, most);
    for (int k = 0; k < 5; ++k) {
      update(s.bags.tables(), s.bags.bags, s.bags.output(), s.step);
      for (auto* one : {&there, &again}) {
        one->on.clear_output(s.bags);
        const Output gradients{one->on.parts.data(), s.bags.ranks, s.bags.out, s.bags.pitch};
        CudaUpdate& there_or_again = one == &there ? update_there : update_again;
        there_or_again.launch(one->on.bags, gradients, s.step.rate, nullptr);
        ASSERT_EQ(there_or_again.findings(nullptr, Misfits::ignored), s.bags.misfits);
        expect_the_same(s, *one);
        if (testing::Test::HasFatalFailure()) return;
      }
      test::draw_gradients(random, s.bags);
    }
  }
}

TEST(GpuUpdate, NoNumberFaults) {
  NEEDS_A_GPU();
  for (std::uint64_t i = 0; i < test::gpu_cases(100); ++i) {
    std::mt19937_64 random(i);
    RandomStep s = test::random_step(random);
    SCOPED_TRACE(fmt::format("case {}: {}", i, s.bags.text()));
    const std::int64_t all = s.bags.tables().count * s.bags.bags.batch;
    for (std::int64_t k = 0; k < s.bags.bags.count; ++k)
      if (random() % 5 == 0) test::put_number(s.bags.indices, s.bags.bags.type, k, static_cast<std::int64_t>(random()));
    for (std::int64_t k = 0; k <= all; ++k)
      if (i % 4 != 0 && random() % 5 == 0)
        test::put_number(s.bags.offsets, s.bags.bags.type, k, static_cast<std::int64_t>(random()) >> (random() % 60));
    StepOnDevice there(s);
    CudaUpdate update_there(there.on.tables(), there.step, s.bags.bags.batch, s.bags.bags.count + 1);
    update_there.launch(there.on.bags, {there.on.parts.data(), s.bags.ranks, s.bags.out, s.bags.pitch}, 1, nullptr);
    std::string told = "no error", wanted = "no error";
    try {
      update_there.findings(nullptr, Misfits::refused);
    } catch (const Error& error) {
      told = error.what();
    }
    try {
      check_bags(s.bags.tables(), s.bags.bags, Misfits::refused);
    } catch (const Error& error) {
      wanted = error.what();
    }
    ASSERT_EQ(told, wanted);
  }
}

}  // namespace
}  // namespace imbrex::embedding
