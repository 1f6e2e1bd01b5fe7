// What it costs the host that calls of one operator have any M, on the CPU, beside operators made for each M: the same
// M call after call, and thirty in turn, all met before. Prints microseconds a call, the quickest of many rounds.
//
//   any_m [RANKS]                threads (default 1)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "imbrex/ops.hpp"

namespace {

using namespace imbrex;

constexpr std::int64_t side = 32, sizes = 30;
constexpr int rounds = 100, calls = 20;

struct Memory {
  std::vector<float> a = std::vector<float>(side * side), b = a, out = a;

  void call(GemmOperator& op, std::int64_t m) {
    op.run({op.operand("a", a.data(), m), op.operand("b", b.data()), op.operand("out", out.data(), m)});
  }
};

// Microseconds a call of `count` that f makes.
template <typename F>
void time(double& best, std::int64_t count, F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
  best = std::min(best, passed.count() / static_cast<double>(count));
}

int measure(World& world) {
  OperatorOptions options;
  options.device = Device::cpu;
  const auto make = [&](std::int64_t m, bool any_m) {
    return std::make_unique<GemmAllReduce>(
        world, GemmShape{.m = m, .n = side, .k = side, .type = Type::fp32, .any_m = any_m}, options);
  };
  std::vector<std::unique_ptr<GemmAllReduce>> fixed;
  for (std::int64_t m = 1; m <= sizes; ++m) fixed.push_back(make(m, false));
  const auto any = make(side, true);
  Memory memory;
  double same_fixed = 1e300, same_any = 1e300, turns_fixed = 1e300, turns_any = 1e300;
  for (int round = 0; round < rounds; ++round) {
    time(same_fixed, sizes * calls, [&] {
      for (int i = 0; i < sizes * calls; ++i) memory.call(*fixed.back(), sizes);
    });
    time(same_any, sizes * calls, [&] {
      for (int i = 0; i < sizes * calls; ++i) memory.call(*any, sizes);
    });
    time(turns_fixed, sizes * calls, [&] {
      for (int i = 0; i < calls; ++i)
        for (std::int64_t m = 1; m <= sizes; ++m) memory.call(*fixed[static_cast<std::size_t>(m - 1)], m);
    });
    time(turns_any, sizes * calls, [&] {
      for (int i = 0; i < calls; ++i)
        for (std::int64_t m = 1; m <= sizes; ++m) memory.call(*any, m);
    });
  }
  if (world.rank() == 0) {
    std::printf("one M:           %.3f us made for it, %.3f us of any M, ratio %.3f\n", same_fixed, same_any,
                same_any / same_fixed);
    std::printf("30 M in turn:    %.3f us made for each, %.3f us of any M, ratio %.3f\n", turns_fixed, turns_any,
                turns_any / turns_fixed);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return imbrex::run_threads(argc > 1 ? std::atoi(argv[1]) : 1, {.heap_bytes = std::size_t{1} << 26}, measure);
}
