#include "program/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/blas.hpp"
#include "base/check.hpp"
#include "base/convert.hpp"
#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/layout.hpp"
#include "execute/terms.hpp"
#include "imbrex/npy.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "ops/gemm_request.hpp"
#include "ops/span_bytes.hpp"
#include "ops/world_gpus.hpp"
#include "plan/digest.hpp"
#include "plan/problem.hpp"
#include "problem/descriptor.hpp"
#include "program/memory_need.hpp"
#include "program/nccl_environment.hpp"
#include "program/operand_memory.hpp"
#include "program/operands.hpp"
#include "program/reference.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::program {
namespace {

// The first element that is still as poison() left it; -1: none is.
std::int64_t first_unwritten(const std::vector<std::byte>& values, std::size_t element) {
  for (std::size_t at = 0; at < values.size(); at += element)
    if (std::all_of(&values[at], &values[at] + element, [](std::byte b) { return b == std::byte{0xff}; }))
      return static_cast<std::int64_t>(at / element);
  return -1;
}

// What one rank tells rank 0 about its result.
struct Verdict {
  Comparison worst;
  int output = 0;      // where that is
  int differs = -1;    // repeat whose bits differ from the first one's
  int gaps = -1;       // output that something was written to between the rows of
  int unwritten = -1;  // output with an element that nothing was written to, and where
  std::int64_t unwritten_at = 0;
  std::int64_t compared = 0, rows = 0;
  double codec_bound = 0;
};

class Job {
 public:
  Job(const RunRequest& request, const Choice& choice, const OperandSource& operands,
      const std::function<void(const RunResult&)>& report)
      : request_(request),
        device_(choice.device),
        plan_(choice.plan),
        reason_(choice.reason),
        operands_(operands),
        report_(report) {}

  int run(World& world) const {
    RunResult result;
    result.problem = plan_.problem, result.strategy = plan_.strategy, result.knobs = plan_.knobs;
    result.device = device_, result.reason = reason_;
    const OperatorOptions options = operator_options();
    // Where the ranks can have their GPUs: else the operator says why not.
    if (device_ == Device::cuda && ops::gpus_of(world, options.cuda)->refusal.empty()) expect_gpu_memory(world);
    if (request_.verify) base::reserve_blas(1);  // for the reference
    const auto op = make_operator(world, plan_.problem.op, ops::shape_of(plan_.problem), options);
    const std::vector<OperandInfo> outputs = outputs_of(plan_.problem);
    const auto memory = load_operands(world.rank(), *op);
    const std::vector<Operand> operands = memory->named();
    std::vector<std::vector<std::byte>> first;
    Verdict verdict;
    std::vector<Span> spans;
    for (int i = 0; i < request_.repeat; ++i) {
      memory->poison();
      world.barrier();
      Report report = op->run_and_wait(operands);
      result.seconds.push_back(slowest(world, report.seconds));
      spans = std::move(report.timeline.spans);
      for (std::size_t o = 0; o < outputs.size(); ++o) {
        const std::vector<std::byte>& out = memory->output(o);
        if (i == 0)
          first.push_back(out);
        else if (verdict.differs < 0 && first[o] != out)
          verdict.differs = i;
        if (o == 0) part_done();
        if (verdict.gaps < 0 && !gaps_are_poison(outputs[o], out)) verdict.gaps = static_cast<int>(o);
      }
    }
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const std::vector<std::byte> bytes = without_gaps(outputs[o], memory->output(o));
      const std::vector<float> values = base::floats_of(outputs[o].type, bytes);
      if (!request_.out_prefix.empty())
        write_npy(path_of(outputs, o, world.rank()), outputs[o].rows, outputs[o].cols, values);
      if (!request_.verify) continue;
      verify(world.rank(), outputs[o], static_cast<int>(o), values, verdict);
      // A NaN may be right. Where every row is compared, it is only where the reference has one.
      if (verdict.compared == verdict.rows) continue;
      const std::int64_t at = first_unwritten(bytes, size_of(outputs[o].type));
      if (at >= 0 && verdict.unwritten < 0) verdict.unwritten = static_cast<int>(o), verdict.unwritten_at = at;
    }
    const bool right = judge(world, verdict, result);
    if (request_.timeline) {
      const char* ranks = request_.threads ? "threads" : "processes";
      result.timeline = {title(),
                         device_ == Device::cuda ? fmt::format("measured on this host's GPUs, ranks are {}", ranks)
                                                 : fmt::format("measured on this host, {} of one CPU executor", ranks),
                         {}};
      result.timeline.spans = gather_spans(world, spans);
    }
    if (world.rank() == 0) {
      result.digest = digest_text(plan_);
      report_(result);
    }
    return right ? 0 : static_cast<int>(ErrorCode::unsound);
  }

 private:
  OperatorOptions operator_options() const {
    OperatorOptions options;
    options.plan = {std::shared_ptr<const Plan>(), &plan_};  // it outlives the ranks
    options.device = device_;
    options.cpu = request_.cpu;
    options.cpu.timeline = request_.timeline;
    options.cuda.heap_bytes =
        execute::HeapLayout(plan_).bytes() + outputs_of(plan_.problem).front().bytes() + (1 << 20);
    options.cuda.testing.delays = request_.cpu.testing.delays;
    options.cuda.kernel = request_.kernel;
    options.cuda.ranks_per_gpu = request_.ranks_per_gpu;
    options.cuda.timeline = request_.timeline;
    return options;
  }

  // Before a page of them is touched. Ranks that share a GPU need theirs together.
  void expect_gpu_memory(World& world) const {
    runtime::agree(world, [&] {
      std::size_t needed = 0;
      for (const OperandInfo& info : operands_of(plan_.problem)) needed += info.bytes();
      needed *= static_cast<std::size_t>(std::min(request_.ranks_per_gpu, world.size()));
      const std::size_t left = runtime::DeviceMemory::left();
      IMBREX_EXPECTS(needed <= left, "{} {} over {} ranks: its operands need {} bytes of each GPU, and {} are left",
                     name_of(plan_.problem.op), problem::sizes_text(plan_.problem), world.size(), needed, left);
      return runtime::Terms("memory of GPUs");
    });
  }

  std::unique_ptr<OperandMemory> load_operands(int rank, GemmOperator& op) const {
    HostValues values{operands_.part(true, rank), operands_.part(false, rank), operands_.bias(rank),
                      operands_.scales(true, rank), operands_.scales(false, rank)};
    for (int product = 1; product < plan::count_products(plan_.problem); ++product)
      values.more[static_cast<std::size_t>(product) - 1] = {operands_.part(false, rank, product),
                                                            operands_.bias(rank, product)};
    return device_ == Device::cuda ? device_operands(values, plan_.problem, op.allocate_output())
                                   : host_operands(std::move(values), plan_.problem);
  }

  // The first output has the shortest name.
  std::string path_of(const std::vector<OperandInfo>& outputs, std::size_t o, int rank) const {
    return fmt::format("{}{}.rank{}.npy", request_.out_prefix, o == 0 ? "" : fmt::format(".{}", outputs[o].name), rank);
  }

  void part_done() const {
    if (request_.part_done) request_.part_done();
  }

  // Outputs of products come first.
  void verify(int rank, const OperandInfo& output, int place, const std::vector<float>& values,
              Verdict& verdict) const {
    Comparison worst;
    if (place == plan::count_products(plan_.problem)) {
      worst = compare(gathered_reference(plan_.problem, operands_), values, output.type, output.cols);
      part_done();
    } else {
      const std::vector<std::int64_t> rows =
          compared_rows(output.rows, request_.verify_all ? 1 : compared_stride(plan_), request_.verify_seed, rank);
      const bool all = std::ssize(rows) == output.rows;
      const Reference reference =
          reference_of(plan_, operands_, rank, device_, place, all ? nullptr : &rows, [this] { part_done(); });
      worst = all ? compare(reference, values, output.type, output.cols)
                  : compare(reference, values, output.type, output.cols, rows);
      verdict.codec_bound = std::max(verdict.codec_bound, reference.codec_bound);
      verdict.compared += std::ssize(rows);
      verdict.rows += output.rows;
    }
    if (place == 0 || !(worst.worst <= verdict.worst.worst)) verdict.worst = worst, verdict.output = place;
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
    result.compared_stride = request_.verify_all ? 1 : compared_stride(plan_);
    for (int rank = 0; rank < world.size(); ++rank) {
      const Verdict& v = all[static_cast<std::size_t>(rank)];
      const bool inside = v.worst.worst <= 1;
      result.max_error_over_bound = std::max(result.max_error_over_bound, v.worst.worst);
      result.codec_bound = std::max(result.codec_bound, v.codec_bound);
      result.compared_rows += v.compared;
      result.all_rows += v.rows;
      result.verified = result.verified && is_right(v);
      if (!result.message.empty()) continue;
      if (!inside)
        result.message = fmt::format("rank {}: element ({}, {}){} is {}, the reference {}: {:.3g} times its bound",
                                     rank, v.worst.row, v.worst.col, text_of_output(v.output), v.worst.result,
                                     v.worst.value, v.worst.worst);
      else if (v.unwritten >= 0)
        result.message = fmt::format("rank {}: nothing was written to element ({}, {}){}", rank,
                                     v.unwritten_at / cols_of_output(v.unwritten),
                                     v.unwritten_at % cols_of_output(v.unwritten), text_of_output(v.unwritten));
      else if (v.gaps >= 0)
        result.message = fmt::format("rank {}: what lies between the rows of {} was written to", rank,
                                     outputs_of(plan_.problem)[static_cast<std::size_t>(v.gaps)].name);
      else if (v.differs >= 0)
        result.message = fmt::format("rank {}: the bits of repeat {} differ from those of the first", rank, v.differs);
    }
    return is_right(own);
  }

  static bool is_right(const Verdict& v) {
    return v.worst.worst <= 1 && v.unwritten < 0 && v.differs < 0 && v.gaps < 0;
  }

  std::int64_t cols_of_output(int output) const {
    return outputs_of(plan_.problem)[static_cast<std::size_t>(output)].cols;
  }

  std::string text_of_output(int output) const {
    if (output == 0) return {};
    return fmt::format(" of {}", outputs_of(plan_.problem)[static_cast<std::size_t>(output)].name);
  }

  std::string title() const {
    const Problem& p = plan_.problem;
    return fmt::format("{} {} x {} x {} {}, {} ranks, {}", name_of(p.op), p.m, p.n, p.k, name_of(p.type), p.ranks,
                       name_of(plan_.strategy));
  }

  const RunRequest& request_;
  Device device_;
  const Plan& plan_;
  const choose::Reason& reason_;
  const OperandSource& operands_;
  const std::function<void(const RunResult&)>& report_;
};

// What has to be known before ranks start, and is the same for all of them.
struct Setup {
  std::unique_ptr<OperandSource> operands;
  Choice choice;
};

// Throws Error for what is wrong with the request.
Setup set_up(const RunRequest& request) {
  IMBREX_EXPECTS(request.repeat >= 1, "repeat = {}: it must be at least 1", request.repeat);
  IMBREX_EXPECTS(request.ranks_per_gpu >= 1, "ranks_per_gpu = {}: it must be at least 1", request.ranks_per_gpu);
  IMBREX_EXPECTS(request.ranks_per_gpu == 1 || request.device == Device::cuda,
                 "ranks_per_gpu = {}: it is about GPUs, and the device is {}", request.ranks_per_gpu,
                 name_of(request.device));
  Problem problem = request.plan ? request.plan->problem : request.problem;
  IMBREX_EXPECTS(problem::multiplies(problem),
                 "a plan of {} is not run from a file: its operands are no matrices; run the operator by its name",
                 name_of(problem.op));
  if (request.plan)
    if (const auto finding = check_format(*request.plan))
      throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(finding->fault), finding->message));
  IMBREX_EXPECTS(!plan::is_packed(problem), "packed = {} x {}: outputs of a run lie in rows, and this plan's is packed",
                 problem.packed.rows, problem.packed.cols);
  auto operands = open_operands(request, problem);
  IMBREX_EXPECTS(!request.plan || problem == request.plan->problem,
                 "the files hold more B than the plan's problem has");
  // Plans of what does not fit are large, too.
  const double least = least_bytes_of(problem, request.verify);
  const MemoryLeft left = memory_left();
  if (least > left.bytes &&
      device_of_ranks(request.device, problem.ranks, request.threads, request.ranks_per_gpu) == Device::cpu)
    expect_memory(fmt::format("{} {} {} over {} ranks{}", name_of(problem.op), problem::sizes_text(problem),
                              name_of(problem.type), problem.ranks, request.verify ? ", verified," : ""),
                  least, left);
  Choice choice = choose_device(request, problem);
  IMBREX_EXPECTS(request.kernel.empty() || (choice.device == Device::cuda && (!cuda::runs_by_libraries(choice.plan) ||
                                                                              cuda::runs_in_lanes(choice.plan))),
                 "kernel '{}': it is for fused and signaled plans on GPUs, not {} ones on {}", request.kernel,
                 name_of(choice.plan.strategy), name_of(choice.device));
  if (request.plan && !request.unchecked)
    if (const auto finding = check(choice.plan))
      throw Error(ErrorCode::unsound, fmt::format("{}: {}", name_of(finding->fault), finding->message));
  return {std::move(operands), std::move(choice)};
}

// The names of files are left out: one file may have several.
runtime::Terms terms_of(const RunRequest& request, const Choice& choice) {
  runtime::Terms terms("a run of an operator");
  terms.add("device", name_of(choice.device));
  execute::add(terms, plan::fields_of(*plan::stored_tasks(std::make_shared<const Plan>(choice.plan))));
  terms.add("operands", request.a_path.empty() ? fmt::format("random by seed {}", request.seed) : "from files");
  terms.add("verify", request.verify).add("verify_all", request.verify_all);
  terms.add("verify_seed", fmt::format("{}", request.verify_seed))
      .add("repeat", request.repeat)
      .add("timeline", request.timeline);
  return terms.add("kernel", request.kernel).add("ranks_per_gpu", request.ranks_per_gpu);
}

}  // namespace

std::size_t parts_of(const RunRequest& request, const Problem& problem) {
  const auto ranks = static_cast<std::size_t>(problem.ranks);
  std::size_t parts = static_cast<std::size_t>(request.repeat);
  if (request.repeat == 1 && !request.verify) return 0;
  if (request.verify)
    parts += ranks * static_cast<std::size_t>(plan::count_products(problem)) + (problem.gathered_a ? 1 : 0);
  return ranks * parts;
}

std::string digest_text(const Plan& plan) { return fmt::format("{:016x}", plan::digest_of(plan)); }

int run(const RunRequest& request, const std::function<void(const RunResult&)>& report) {
  const int ranks = request.plan ? request.plan->problem.ranks : request.problem.ranks;
  std::optional<Setup> setup;
  agree_on_job(ranks, request.wait_limit, [&] {
    setup.emplace(set_up(request));
    return terms_of(request, setup->choice);
  });
  const Plan& plan = setup->choice.plan;
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = execute::HeapLayout(plan).bytes() + ops::span_bytes(count_tasks(plan)) + (1 << 20);
  const Job job(request, setup->choice, *setup->operands, report);
  const auto body = [&](World& world) {
    if (request.ranks_per_gpu > 1 && !request.threads) take_own_nccl_host(world);
    return job.run(world);
  };
  return run_ranks(ranks, request.threads, options, body);
}

}  // namespace imbrex::program
