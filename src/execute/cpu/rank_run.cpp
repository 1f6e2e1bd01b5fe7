#include "execute/cpu/rank_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "execute/cpu/worker.hpp"
#include "execute/peer_access.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::execute {
namespace {

std::shared_ptr<const Plan> expected(const World& world, std::shared_ptr<const Plan> plan) {
  IMBREX_EXPECTS(plan->problem.ranks == world.size(), "the plan is for {} ranks, the world has {}", plan->problem.ranks,
                 world.size());
  if (const auto finding = check_format(*plan))
    throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(finding->fault), finding->message));
  if (!has_peer_access())
    if (const std::string refusal = refusal_without_peer_access(*plan); !refusal.empty())
      throw Error(ErrorCode::invalid_input, refusal);
  return plan;
}

// Where A lies in an output: copies it, and returns the operands with the copy as A.
Addresses with_a_aside(Addresses operands) {
  const auto& [memory, rows, bytes, pitch] = operands.aside;
  if (memory == nullptr) return operands;
  for (std::size_t i = 0; i < rows; ++i)
    std::memcpy(static_cast<std::byte*>(memory) + i * pitch, static_cast<const std::byte*>(operands.a) + i * pitch,
                bytes);
  operands.a = memory;
  return operands;
}

void run_all(std::vector<std::unique_ptr<Worker>>& workers, std::atomic<bool>& stop) {
  std::vector<std::exception_ptr> failures(workers.size());
  const auto run_one = [&](std::size_t i) {
    try {
      workers[i]->run();
    } catch (...) {
      failures[i] = std::current_exception();
      stop.store(true, std::memory_order_relaxed);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < workers.size(); ++i) threads.emplace_back(run_one, i);
    run_one(0);
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace

const CpuOptions& validated(const CpuOptions& options) {
  IMBREX_EXPECTS(options.workers >= 1 && options.workers <= 1024, "workers = {}: it must be from 1 to 1024",
                 options.workers);
  IMBREX_EXPECTS(options.testing.max_delay >= 0 && options.testing.max_delay <= 60,
                 "max_delay = {} s: it must be from 0 to 60", options.testing.max_delay);
  return options;
}

RankRun::RankRun(World& world, std::shared_ptr<const Plan> plan, const CpuOptions& options)
    : world_(world),
      plan_(expected(world, std::move(plan))),
      options_(options),
      layout_(*plan_),
      collectives_(collective_groups(*plan_)) {}

void RankRun::lie_at(std::size_t heap_offset) {
  memory_ = std::make_unique<RankMemory>(*plan_, layout_, world_.heap().handle(), heap_offset);
}

Report RankRun::run(const Addresses& operands, std::uint64_t epoch, std::span<const std::uint32_t> counts) {
  expect_given(operands, plan_->problem);
  world_.throw_if_failed();
  runtime::enter(world_, runtime::Counted::cpu);
  const double begin = base::monotonic_seconds();
  memory_->enter(with_a_aside(operands), epoch, counts);
  memory_->stage_inputs();
  hold_back(epoch);
  std::vector<std::atomic<std::size_t>> heads(plan_->ranks[static_cast<std::size_t>(world_.rank())].queues.size());
  std::vector<OpenProduct> products(heads.size());
  std::atomic<bool> stop = false;
  RankEpoch shared{*plan_, layout_, *memory_, world_, options_, collectives_, heads, products, stop, epoch};
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < std::max(1, options_.workers); ++i) workers.push_back(std::make_unique<Worker>(shared, i));
  run_all(workers, stop);
  memory_->unstage_outputs();
  // Collectives are worker 0's.
  quantized_ = workers.front()->quantized();
  Report report{base::monotonic_seconds() - begin, {}};
  for (const auto& worker : workers)
    report.timeline.spans.insert(report.timeline.spans.end(), worker->spans.begin(), worker->spans.end());
  return report;
}

// With injected delays, one rank in turn falls behind by far, so that the others run into the next epochs.
void RankRun::hold_back(std::uint64_t epoch) const {
  if (options_.testing.delays == 0 ||
      std::cmp_not_equal((options_.testing.delays + epoch) % static_cast<std::uint64_t>(world_.size()), world_.rank()))
    return;
  std::this_thread::sleep_for(std::chrono::duration<double>(4 * options_.testing.max_delay));
}

}  // namespace imbrex::execute
