// What `imbrex doctor` says of strategies, for machines of all kinds.
#include "program/limits/strategies_here.hpp"

#include <gtest/gtest.h>

#include "choose/strategies.hpp"
#include "imbrex/plan.hpp"
#include "plan/strategies/registry.hpp"

namespace imbrex {
namespace {

GpuSurvey two_gpus(GpuLink link) {
  GpuSurvey survey;
  survey.gpus.assign(2, {"NVIDIA H200", "GPU-0", std::size_t{1} << 37, 132, 9, 0, true, true});
  survey.links = {GpuLink::nvlink, link, link, GpuLink::nvlink};
  return survey;
}

TEST(StrategiesHere, AllRunOnTheCpuAndOverNvlink) {
  for (const GpuSurvey& survey : {GpuSurvey{}, two_gpus(GpuLink::nvlink)})
    for (const program::StrategyHere& strategy : program::strategies_here(survey))
      EXPECT_TRUE(strategy.runs) << strategy.why;
  const auto list = program::strategies_here(two_gpus(GpuLink::nvlink));
  ASSERT_EQ(list.size(), plan::strategy_entries.size());
  for (const auto& [name, runs, why] : list)
    EXPECT_EQ(why, std::string("on 2 GPUs, by ") + (name == "fused"      ? "Imbrex' kernels"
                                                    : name == "signaled" ? "Imbrex' kernels and NCCL"
                                                                         : "cuBLASLt and NCCL"));
}

TEST(StrategiesHere, WithoutNvlinkTheWayOutIsNamed) {
  for (const program::StrategyHere& strategy : program::strategies_here(two_gpus(GpuLink::pcie))) {
    EXPECT_FALSE(strategy.runs);
    EXPECT_NE(strategy.why.find("GPU 0 has no peer access"), std::string::npos) << strategy.why;
    EXPECT_EQ(strategy.why.find("IMBREX_PEER_ACCESS=0") == std::string::npos, strategy.name == "fused");
  }
}

TEST(StrategiesHere, EachIsRegisteredOnce) {
  for (const plan::StrategyEntry& entry : plan::strategy_entries) {
    EXPECT_EQ(name_of(entry.strategy), entry.name);
    EXPECT_EQ(parse_strategy(entry.name), entry.strategy);
    EXPECT_NE(entry.make == nullptr, entry.stream == nullptr) << entry.name;
    EXPECT_EQ(choose::choice_of(entry.strategy).strategy, entry.strategy);
  }
  EXPECT_EQ(plan::names_without_peers(), "sequential, decomposed and signaled");
}

}  // namespace
}  // namespace imbrex
