#include "gpu/harness/gpu_case.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>

#include "base/convert.hpp"
#include "base/fixed_text.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "execute/cuda/lanes/stream_execution.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/skips.hpp"
#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "plan/problem.hpp"
#include "program/operand_memory.hpp"
#include "program/operands.hpp"
#include "program/reference.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {
namespace {

using cuda::raw_memory, cuda::RawMemory;

template <typename T>
RawMemory to_device(const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  RawMemory memory = raw_memory(bytes);
  cuda::upload(memory.get(), values.data(), bytes);
  return memory;
}

// Integers, whose sums over 128 of K take less than 14 bits, and powers of two as scales: what Hopper loses of
// sums of e4m3 is nothing, and one product too many or too few shows.
class WholeNumbers final : public program::SeededOperands {
 public:
  explicit WholeNumbers(const Problem& problem) : program::SeededOperands(problem, 3) {}

 private:
  float value_of(float uniform, bool scale) const override {
    return scale ? (uniform < 0 ? 0.5f : 2.0f) : std::round(4 * uniform);
  }
};

// What one rank tells of its runs of one plan, from its process.
struct RankOutcome {
  int code = 0, differing = 0;
  double worst = 0;
  char kernel[96] = {}, message[2048] = {};  // end with a zero byte

  void say(std::string_view text) {
    std::fill(std::begin(message), std::end(message), '\0');
    base::put_text(text, message);
  }
};

// The first of all ranks that failed, and the worst element.
Outcome together(const RankOutcome* ranks, std::size_t count) {
  Outcome all;
  for (const RankOutcome* rank = ranks; rank != ranks + count; ++rank) {
    if (all.kernel.empty()) all.kernel = rank->kernel;
    all.differing += rank->differing;
    const bool worse = all.code == 0 && (rank->code != 0 || rank->worst > all.worst);
    all.worst = std::max(all.worst, rank->worst);
    if (!worse) continue;
    all.code = rank->code;
    all.message = rank->message;
  }
  return all;
}

// One rank's runs of one plan.
class RankCase {
 public:
  RankCase(World& world, Executor& executor, const Plan& plan, const program::OperandSource& operands, const GpuCase& c,
           RankOutcome& outcome)
      : world_(world),
        executor_(executor),
        c_(c),
        outcome_(outcome),
        execution_(executor.prepare(plan)),
        stream_(dynamic_cast<cuda::StreamExecution&>(*execution_)),
        a_(to_device(spread(plan, "a", operands.part(true, world.rank())))),
        b_(to_device(spread(plan, "b", operands.part(false, world.rank())))),
        bias_(to_device(operands.bias(world.rank()))),
        a_scale_(to_device(operands.scales(true, world.rank()))),
        b_scale_(to_device(operands.scales(false, world.rank()))) {
    base::put_text(stream_.kernel_name(), outcome_.kernel);
    const int products = plan::count_products(plan.problem);
    for (int product = 1; product < products; ++product)
      more_.push_back({to_device(spread(plan, plan::name_of_b(product), operands.part(false, world.rank(), product))),
                       to_device(operands.bias(world.rank(), product))});
    const Device device = c.whole_numbers ? Device::cpu : Device::cuda;
    for (const OperandInfo& info : program::outputs_of(plan.problem)) {
      const int place = static_cast<int>(outputs_.size());
      outputs_.push_back({info,
                          place < products ? program::reference_of(plan, operands, world.rank(), device, place)
                                           : program::gathered_reference(plan.problem, operands),
                          {}});
    }
  }

  void run() {
    std::vector<Outs> outs;
    for (int q = 0; q < c_.queued; ++q) {
      outs.emplace_back();
      for (const Output& o : outputs_)
        outs.back().push_back(c_.shared_out && outs.back().empty() ? executor_.allocate_output(o.bytes())
                                                                   : std::shared_ptr<void>(raw_memory(o.bytes())));
    }
    for (int i = 0; i < c_.repeats; ++i) {
      for (const Outs& each : outs) clear(each);
      for (const Outs& each : outs) enqueue(each);
      stream_.finish();
      for (const Outs& each : outs) compare_with_first(each, "repeat " + std::to_string(i));
    }
    if (c_.replays == 0) return;
    // Two epochs: workspaces alternate.
    const cuda::Graph graph(stream_.stream(), 2, [&] { enqueue(outs.front()); });
    const int rounds = std::min(c_.replays, 20);
    for (int round = 0; round < rounds; ++round) {
      clear(outs.front());
      for (int i = 0; i < c_.replays / rounds; ++i) graph.launch(stream_.stream());
      stream_.finish();
      compare_with_first(outs.front(), "replays " + std::to_string(round));
    }
  }

 private:
  struct Further {
    RawMemory b, bias;
  };

  static std::vector<std::byte> spread(const Plan& plan, std::string_view name, std::vector<std::byte> values) {
    for (const OperandInfo& info : operands_of(plan.problem))
      if (info.name == name) return program::with_gaps(info, std::move(values));
    return values;
  }

  struct Output {
    OperandInfo info;
    program::Reference reference;
    std::vector<std::byte> first;  // result

    std::size_t count() const { return static_cast<std::size_t>(info.rows * info.cols); }
    std::size_t bytes() const { return info.bytes(); }
  };
  using Outs = std::vector<std::shared_ptr<void>>;  // one epoch's, by place

  // Nothing else is waited for: other ranks on this GPU may wait for this one.
  void clear(const Outs& outs) {
    for (std::size_t i = 0; i < outs.size(); ++i) cuda::fill(outs[i].get(), 0xff, outputs_[i].bytes());
  }

  void enqueue(const Outs& outs) {
    Addresses operands{a_.get(), b_.get(), outs.front().get(), bias_.get(), scales(a_scale_), scales(b_scale_)};
    for (std::size_t i = 0; i < more_.size(); ++i)
      operands.more[i] = {more_[i].b.get(), more_[i].bias.get(), outs[i + 1].get()};
    if (outs.size() > more_.size() + 1) operands.gathered = outs.back().get();
    stream_.enqueue(operands);
  }
  static const float* scales(const RawMemory& memory) { return static_cast<const float*>(memory.get()); }

  void compare_with_first(const Outs& outs, const std::string& what) {
    for (std::size_t i = 0; i < outs.size(); ++i) compare_with_first(outputs_[i], outs[i].get(), what);
  }

  void compare_with_first(Output& output, const void* out, const std::string& what) {
    std::vector<std::byte> got(output.bytes());
    std::vector<float> values(output.count());
    const Type type = output.info.type;
    IMBREX_CUDA_TRY(cudaMemcpy(got.data(), out, got.size(), cudaMemcpyDeviceToHost));
    base::to_float(type, program::without_gaps(output.info, got).data(), values.data(),
                   static_cast<std::int64_t>(values.size()));
    program::Comparison worst = program::compare(output.reference, values, type, output.info.cols);
    if (c_.exact) expect_exact(output, values, worst);
    // Infinitely wrong, too, is a write between the rows; it is told at no element's place.
    if (!program::gaps_are_poison(output.info, got)) worst = {std::numeric_limits<double>::infinity(), -1, -1, 0, 0};
    if (!output.first.empty() && got != output.first) ++outcome_.differing;
    if (output.first.empty()) output.first = got;
    if (worst.worst <= outcome_.worst) return;
    outcome_.worst = worst.worst;
    outcome_.say("rank " + std::to_string(world_.rank()) + " " + what + " " + std::string(output.info.name) + " (" +
                 std::to_string(worst.row) + ", " + std::to_string(worst.col) + "): " + std::to_string(worst.result) +
                 ", reference " + std::to_string(worst.value));
  }

  // The first element that is not the reference's, rounded to the output's type, is infinitely wrong.
  static void expect_exact(const Output& output, const std::vector<float>& values, program::Comparison& worst) {
    const std::vector<double>& exact = output.reference.value;
    std::vector<float> wanted(exact.begin(), exact.end());  // integers below 2^24
    std::vector<std::byte> rounded(output.count() * size_of(output.info.type));
    const std::int64_t count = std::ssize(wanted), cols = output.info.cols;
    base::from_float(output.info.type, wanted.data(), rounded.data(), count);
    base::to_float(output.info.type, rounded.data(), wanted.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (values[at] == wanted[at]) continue;
      worst = {std::numeric_limits<double>::infinity(), i / cols, i % cols, values[at], wanted[at]};
      return;
    }
  }

  World& world_;
  Executor& executor_;
  const GpuCase& c_;
  RankOutcome& outcome_;
  std::unique_ptr<Execution> execution_;
  cuda::StreamExecution& stream_;
  RawMemory a_, b_, bias_, a_scale_, b_scale_;
  std::vector<Further> more_;
  std::vector<Output> outputs_;
};

bool is_refused(const Plan& plan) {
  return !cuda::refusal_of_sharing(plan, ranks_per_gpu(), ranks_are_processes()).empty();
}

std::unique_ptr<program::OperandSource> operands_of_case(const Plan& plan, const GpuCase& c) {
  program::RunRequest request;
  Problem problem = request.problem = plan.problem;
  request.seed = c.seed;
  if (c.whole_numbers) return std::make_unique<WholeNumbers>(problem);
  return program::open_operands(request, problem);
}

std::vector<Outcome> expect_within(double most, const std::vector<Plan>& plans, const std::vector<GpuCase>& cases) {
  for (const Plan& plan : plans) EXPECT_FALSE(check(plan).has_value());
  const std::vector<Outcome> outcomes = run_each_on_gpus(plans, cases);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(describe({plans[i].problem, plans[i].strategy, plans[i].knobs}));
    EXPECT_EQ(outcomes[i].code, 0) << outcomes[i].message;
    EXPECT_LE(outcomes[i].worst, most) << outcomes[i].kernel << ": " << outcomes[i].message;
    EXPECT_EQ(outcomes[i].differing, 0) << outcomes[i].kernel;
    if (outcomes[i].code != 0) break;  // later plans did not run
    EXPECT_NE(outcomes[i].kernel.empty(), !is_refused(plans[i]));
  }
  return outcomes;
}

}  // namespace

int gpus() {
  static const int count =
      ranks_are_processes() ? static_cast<int>(survey_gpus().gpus.size()) : runtime::device_count();
  return count * ranks_per_gpu();
}

int ranks_per_gpu() {
  const char* text = std::getenv("IMBREX_TEST_RANKS_PER_GPU");
  return text != nullptr ? std::atoi(text) : 1;
}

int select_gpu(World& world) { return runtime::select_device(world, ranks_per_gpu()); }

void meet_if_sharing(World& world) {
  if (ranks_per_gpu() > 1) world.barrier();
}

int most_ranks() { return static_cast<int>(std::min(8u, std::bit_floor(static_cast<unsigned>(gpus())))); }

std::vector<int> rank_counts(int least) {
  std::vector<int> counts;
  for (int ranks : {1, 2, 3, 4, 8})
    if (ranks >= least && ranks <= gpus()) counts.push_back(ranks);
  return counts;
}

std::vector<int> two_and_four() {
  std::vector<int> counts{2};
  if (gpus() >= 4) counts.push_back(4);
  return counts;
}

bool by_time_slices() { return ranks_are_processes() && ranks_per_gpu() > 1 && !mps_runs(); }

int cases(int usual) {
  const char* text = std::getenv("IMBREX_TEST_GPU_CASES");
  return text != nullptr ? std::atoi(text) : usual;
}

GpuCase exact_case() {
  GpuCase c;
  c.options.heap_bytes = std::size_t{1} << 27;
  c.whole_numbers = true;
  c.wait_limit = 30;
  return c;
}

std::vector<Outcome> run_each_on_gpus(const std::vector<Plan>& plans, const std::vector<GpuCase>& cases) {
  if (plans.empty()) return {};
  const int ranks = plans.front().problem.ranks;
  const GpuCase& first = cases.front();
  const SharedArray<RankOutcome> told(plans.size() * static_cast<std::size_t>(ranks));
  const auto of_rank = [&](std::size_t plan, int rank) -> RankOutcome& {
    return told[plan * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)];
  };
  const auto body = [&](World& world) {
    std::size_t i = 0;
    try {
      CudaOptions options = first.options;
      if (options.ranks_per_gpu == 1) options.ranks_per_gpu = ranks_per_gpu();
      const auto executor = make_cuda_executor(world, options);
      for (; i < plans.size(); ++i) {
        if (is_refused(plans[i])) {
          if (world.rank() == 0) std::cout << "skipped: copy engines bring no operands to ranks that share a GPU\n";
          continue;
        }
        const std::unique_ptr<program::OperandSource> operands = operands_of_case(plans[i], cases[i]);
        RankCase rank(world, *executor, plans[i], *operands, cases[i], of_rank(i, world.rank()));
        // References load kernels, which a GPU may not do beside one of another rank that waits for this one.
        if (options.ranks_per_gpu > 1) world.barrier();
        rank.run();
      }
      return 0;
    } catch (const Error& error) {
      RankOutcome& outcome = of_rank(std::min(i, plans.size() - 1), world.rank());
      outcome.code = static_cast<int>(error.code());
      outcome.say(std::string(error.what()) + " [" + outcome.kernel + "]");
      world.fail(error.what());
      return static_cast<int>(error.code());
    }
  };
  const int code = on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = first.wait_limit}, body);
  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < plans.size(); ++i)
    outcomes.push_back(together(&of_rank(i, 0), static_cast<std::size_t>(ranks)));
  auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.code != 0; });
  if (failed == outcomes.end()) --failed;
  failed->code = std::max(failed->code, code);
  return outcomes;
}

std::vector<Outcome> run_on_gpus(const std::vector<Plan>& plans, const GpuCase& c) {
  return run_each_on_gpus(plans, std::vector<GpuCase>(plans.size(), c));
}

Outcome run_on_gpus(const Plan& plan, const GpuCase& c) { return run_on_gpus(std::vector<Plan>{plan}, c).front(); }

std::vector<Outcome> expect_each_right(const std::vector<Plan>& plans, const std::vector<GpuCase>& cases) {
  return expect_within(1, plans, cases);
}

std::vector<Outcome> expect_right(const std::vector<Plan>& plans, const GpuCase& c) {
  return expect_each_right(plans, std::vector<GpuCase>(plans.size(), c));
}

void expect_right(const Plan& plan, const GpuCase& c, const std::string& what) {
  SCOPED_TRACE(what);
  expect_right({plan}, c);
}

void expect_exact(const std::vector<Plan>& plans, const GpuCase& c) {
  expect_within(0, plans, std::vector<GpuCase>(plans.size(), c));
}

}  // namespace imbrex::test
