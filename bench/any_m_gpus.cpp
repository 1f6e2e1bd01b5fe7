// What it costs the host that calls of one operator have any M, on one GPU, beside operators made for each M: the same
// M call after call, and thirty in turn, all met before, by fused plans and by cuBLASLt. Prints microseconds a call
// that is queued, medians of rounds in turn, and writes them as JSON.
//
//   any_m_gpus [OUT.json]
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/ops.hpp"
#include "program/measure/turns.hpp"
#include "program/nccl_environment.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace {

using namespace imbrex;

constexpr std::int64_t side = 256, step = 16, sizes = 30;
constexpr int rounds = 60;

struct Memory {
  runtime::DeviceMemory a{side * step * sizes * 2}, b{side * side * 2}, out{side * step * sizes * 2};

  void call(GemmOperator& op, std::int64_t m) {
    op.run({op.operand("a", a.get(), m), op.operand("b", b.get(), m), op.operand("out", out.get(), m)});
  }
};

// Operators of one strategy: made for each M, and one for any.
class Ways {
 public:
  Ways(World& world, Strategy strategy) : name_(name_of(strategy)) {
    OperatorOptions options;
    options.device = Device::cuda;
    options.strategy = strategy;
    options.cuda.heap_bytes = std::size_t{1} << 28;
    if (strategy == Strategy::fused) options.knobs = Knobs{.transport = Transport::store};
    const auto make = [&](std::int64_t m, bool any_m) {
      return std::make_unique<GemmReduceScatter>(
          world, GemmShape{.m = m, .n = side, .k = side, .type = Type::bf16, .any_m = any_m}, options);
    };
    for (std::int64_t i = 1; i <= sizes; ++i) fixed_.push_back(make(i * step, false));
    any_ = make(sizes * step, true);
    for (std::int64_t i = 1; i <= sizes; ++i) memory_.call(*any_, i * step);
    any_->synchronize();
  }

  // Seconds a call of `sizes`, by the way's number: made for it or any M, the same or in turn. What is queued is over
  // before the clock runs.
  double sample(std::size_t way) {
    const bool any = way % 2 == 1, in_turn = way >= 2;
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 1; i <= sizes; ++i) {
      const std::int64_t number = in_turn ? i : sizes;
      memory_.call(any ? *any_ : *fixed_[static_cast<std::size_t>(number - 1)], number * step);
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    any_->synchronize();
    return passed.count() / sizes;
  }

  std::string measure() {
    const std::vector<double> times = program::timed_in_turn(4, rounds, [&](std::size_t way) { return sample(way); });
    std::string json;
    for (const bool in_turn : {false, true}) {
      const double fixed = times[in_turn ? 2 : 0] * 1e6, any = times[in_turn ? 3 : 1] * 1e6;
      const std::string_view what = in_turn ? "30 M in turn" : "one M";
      fmt::print("{:10} {:13} {:7.3f} us made for it, {:7.3f} us of any M, ratio {:.3f}\n", name_, what, fixed, any,
                 any / fixed);
      json += fmt::format(
          "{}\n  {{\"strategy\": \"{}\", \"what\": \"{}\", \"fixed_us\": {}, \"any_us\": {}, \"ratio\": {}}}",
          json.empty() ? "" : ",", name_, what, fixed, any, any / fixed);
    }
    return json;
  }

 private:
  std::string_view name_;
  Memory memory_;
  std::vector<std::unique_ptr<GemmOperator>> fixed_;
  std::unique_ptr<GemmOperator> any_;
};

}  // namespace

int main(int argc, char** argv) {
  program::set_nccl_environment();
  try {
    return run_threads(1, {.heap_bytes = 1 << 20, .wait_limit = 60}, [&](World& world) {
      std::string json;
      for (const Strategy strategy : {Strategy::fused, Strategy::sequential}) {
        if (!json.empty()) json += ",";
        json += Ways(world, strategy).measure();
      }
      if (argc > 1) write_file(argv[1], "[" + json + "\n]\n");
      return 0;
    });
  } catch (const Error& error) {
    fmt::print(stderr, "any_m_gpus: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
