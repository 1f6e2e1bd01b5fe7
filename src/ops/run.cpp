#include "imbrex/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "execute/layout.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/npy.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "ops/operands.hpp"
#include "ops/reference.hpp"
#include "ops/span_bytes.hpp"

namespace imbrex {
namespace {

// What one rank tells rank 0 about its result.
struct Verdict {
  Comparison worst;
  int differs = -1;  // repeat whose bits differ from the first one's
};

class Job {
 public:
  Job(const RunRequest& request, const Plan& plan, const OperandSource& operands,
      const std::function<void(const RunResult&)>& report)
      : request_(request), plan_(plan), operands_(operands), report_(report) {}

  int run(World& world) const {
    RunResult result{plan_.problem, plan_.strategy, plan_.knobs, {}, false, 0, {}, {}};
    CpuOptions options = request_.cpu;
    options.timeline = request_.timeline;
    const auto executor = make_cpu_executor(world, options);
    const auto execution = executor->prepare(plan_);
    const std::vector<std::byte> a = operands_.part(true, world.rank()), b = operands_.part(false, world.rank());
    const Extent extent = shapes_of(plan_.problem).out;
    std::vector<std::byte> out(static_cast<std::size_t>(extent.rows * extent.cols) * size_of(plan_.problem.type)),
        first;
    Verdict verdict;
    std::vector<Span> spans;
    for (int i = 0; i < request_.repeat; ++i) {
      // An element that no task writes must not pass for the previous repeat's.
      std::memset(out.data(), 0xff, out.size());
      world.barrier();
      Report report = execution->run({a.data(), b.data(), out.data()});
      result.seconds.push_back(slowest(world, report.seconds));
      spans = std::move(report.timeline.spans);
      if (i == 0)
        first = out;
      else if (verdict.differs < 0 && first != out)
        verdict.differs = i;
    }
    const std::vector<float> values = as_float(out, extent);
    if (!request_.out_prefix.empty())
      write_npy(fmt::format("{}.rank{}.npy", request_.out_prefix, world.rank()), extent.rows, extent.cols, values);
    if (request_.verify)
      verdict.worst = compare(reference_of(plan_, operands_, world.rank()), values, plan_.problem.type, extent.cols);
    const bool right = judge(world, verdict, result);
    if (request_.timeline) {
      result.timeline = {
          title(),
          fmt::format("measured on this host, {} of one CPU executor", request_.threads ? "threads" : "processes"),
          {}};
      result.timeline.spans = gather_spans(world, spans);
    }
    if (world.rank() == 0) report_(result);
    return right ? 0 : static_cast<int>(ErrorCode::unsound);
  }

 private:
  std::vector<float> as_float(const std::vector<std::byte>& out, const Extent& extent) const {
    std::vector<float> values(static_cast<std::size_t>(extent.rows * extent.cols));
    to_float(plan_.problem.type, out.data(), values.data(), std::ssize(values));
    return values;
  }

  static double slowest(World& world, double seconds) {
    std::vector<double> all(static_cast<std::size_t>(world.size()));
    world.all_gather(&seconds, all.data(), sizeof seconds);
    return *std::max_element(all.begin(), all.end());
  }

  // The same on every rank; returns whether this rank's result is right.
  bool judge(World& world, const Verdict& own, RunResult& result) const {
    if (!request_.verify) return true;
    std::vector<Verdict> all(static_cast<std::size_t>(world.size()));
    world.all_gather(&own, all.data(), sizeof own);
    result.verified = true;
    for (int rank = 0; rank < world.size(); ++rank) {
      const Verdict& v = all[static_cast<std::size_t>(rank)];
      const bool inside = v.worst.worst <= 1;
      result.max_error_over_bound = std::max(result.max_error_over_bound, v.worst.worst);
      result.verified = result.verified && inside && v.differs < 0;
      if (!result.message.empty()) continue;
      if (!inside)
        result.message = fmt::format("rank {}: element ({}, {}) is {}, the reference {}: {:.3g} times its bound", rank,
                                     v.worst.row, v.worst.col, v.worst.result, v.worst.value, v.worst.worst);
      else if (v.differs >= 0)
        result.message = fmt::format("rank {}: the bits of repeat {} differ from those of the first", rank, v.differs);
    }
    return own.worst.worst <= 1 && own.differs < 0;
  }

  std::string title() const {
    const Problem& p = plan_.problem;
    return fmt::format("{} {} x {} x {} {}, {} ranks, {}", name_of(p.op), p.m, p.n, p.k, name_of(p.type), p.ranks,
                       name_of(plan_.strategy));
  }

  const RunRequest& request_;
  const Plan& plan_;
  const OperandSource& operands_;
  const std::function<void(const RunResult&)>& report_;
};

}  // namespace

int run(const RunRequest& request, const std::function<void(const RunResult&)>& report) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  Problem problem = request.plan ? request.plan->problem : request.problem;
  if (request.plan)
    if (const auto finding = check_format(*request.plan))
      throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(finding->fault), finding->message));
  const auto operands = open_operands(request, problem);
  const Plan plan = request.plan
                        ? *request.plan
                        : choose_plan(problem, nominal_host_machine(), {request.strategy, request.knobs, request.cpu});
  if (request.plan && !request.unchecked)
    if (const auto finding = check(plan))
      throw Error(ErrorCode::unsound, fmt::format("{}: {}", name_of(finding->fault), finding->message));
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = HeapLayout(plan).bytes() + span_bytes(count_tasks(plan)) + (1 << 20);
  const Job job(request, plan, *operands, report);
  const auto body = [&](World& world) { return job.run(world); };
  if (!World::launched()) return (request.threads ? run_threads : run_processes)(problem.ranks, options, body);
  const auto world = World::from_environment(options);
  IMBREX_EXPECTS(world->size() == problem.ranks, "{} ranks are asked for, but the launcher started {}", problem.ranks,
                 world->size());
  return body(*world);
}

}  // namespace imbrex
