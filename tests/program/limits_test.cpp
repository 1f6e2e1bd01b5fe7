// docs/reference/limits.md is what the code says.
#include "program/limits/limits.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace imbrex {
namespace {

TEST(Limits, ThePageIsWhatTheCodeSays) {
  std::ifstream file(LIMITS_PAGE);
  ASSERT_TRUE(file) << LIMITS_PAGE;
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(page, program::limits_page()) << "write it anew: imbrex doctor --limits > docs/reference/limits.md";
}

// A few cells that must not fall silent: what runs, and what is refused with which reason.
TEST(Limits, CellsFollowTheChecks) {
  const auto why = [](Operator op, Strategy strategy, Transport transport, std::string_view feature, Device device) {
    for (const program::Feature& each : program::features())
      if (each.name == feature) return program::refusal_of(op, strategy, transport, each, device);
    return std::string("no such feature");
  };
  using enum Operator;
  EXPECT_EQ(why(all_gather_gemm, Strategy::fused, Transport::store, "any M", Device::cuda), "");
  EXPECT_EQ(why(gemm_all_reduce, Strategy::sequential, Transport::push, "codec", Device::cuda), "");
  EXPECT_EQ(why(all_gather_gemm, Strategy::fused, Transport::push, "any M", Device::cpu), "");
  EXPECT_NE(why(all_gather_gemm, Strategy::fused, Transport::push, "any M", Device::cuda).find("copy engine"),
            std::string::npos);
  EXPECT_NE(why(gemm_all_reduce, Strategy::signaled, Transport::push, "any M", Device::cuda).find("any_m"),
            std::string::npos);
  EXPECT_NE(why(gemm_all_to_all, Strategy::fused, Transport::store, "several B", Device::cpu).find("more_n"),
            std::string::npos);
  EXPECT_NE(why(gemm_reduce_scatter, Strategy::fused, Transport::pull, "K x N", Device::cuda), "");
}

}  // namespace
}  // namespace imbrex
