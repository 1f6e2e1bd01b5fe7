// What the operators share: choose device and plan, execute it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "choose/choose.hpp"
#include "choose/choose_gpu.hpp"
#include "execute/cpu/pooled_plans.hpp"
#include "execute/operands.hpp"
#include "execute/terms.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/ops.hpp"
#include "ops/gemm_request.hpp"
#include "ops/plans_by_size.hpp"
#include "ops/trim.hpp"
#include "ops/world_gpus.hpp"
#include "plan/problem.hpp"
#include "plan/strategies/strategies.hpp"
#include "runtime/agreement.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/heap.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {
namespace {

// An operand's place on the GPU, where the caller's is in host memory.
class Staged {
 public:
  /// `info`: the call's; `most`: of the largest M.
  void* place(void* p, const OperandInfo& info, const OperandInfo& most, int gpu) {
    used_.reset();
    if (runtime::on_gpu(p, gpu)) return p;
    if (!memory_ || bytes_ < most.bytes()) memory_ = std::make_shared<runtime::DeviceMemory>(bytes_ = most.bytes());
    used_ = std::make_unique<runtime::DeviceMemory>(info.bytes(), std::shared_ptr<void>(memory_, memory_->get()));
    return used_->get();
  }

  void bring(const void* p) {
    if (used_) used_->upload(p);
  }

  void bring_back(void* p, const OperandInfo& info) const {
    if (!used_) return;
    if (info.pitch == 0) return used_->download(p);
    const std::size_t size = size_of(info.type);
    used_->download_rows(p, static_cast<std::size_t>(info.lines()), static_cast<std::size_t>(info.length()) * size,
                         static_cast<std::size_t>(info.pitch) * size);
  }

 private:
  std::shared_ptr<runtime::DeviceMemory> memory_;
  std::size_t bytes_ = 0;
  std::unique_ptr<runtime::DeviceMemory> used_;  // the call's part of it
};

// The ranks' reports as one.
CodecReport merged(World& world, const CodecReport& own) {
  static_assert(std::is_trivially_copyable_v<CodecReport>);
  std::vector<CodecReport> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  CodecReport sum;
  for (const CodecReport& report : all) {
    sum.largest_error = std::max(sum.largest_error, report.largest_error);
    sum.non_finite += report.non_finite;
    sum.groups += report.groups;
  }
  return sum;
}

}  // namespace

struct GemmOperator::State {
  World& world;
  Device device = Device::cpu;
  Problem problem;
  OperatorOptions options;
  std::shared_ptr<const Plan> plan;  // on GPUs, made when somebody asks for it
  std::shared_ptr<ops::WorldGpus> gpus;
  std::unique_ptr<Executor> host;
  std::optional<execute::PooledPlans> pooled;  // with any M on the CPU, in place of `host`
  std::optional<ops::PlansBySize> by_size;     // with any M on GPUs: all but the largest M's
  std::unique_ptr<Execution> on_host;          // with any M: the largest's
  std::shared_ptr<ops::GpuOperation> on_gpus;
  std::string why_cpu;
  std::int64_t called = 0;  // M of the last call
  CodecReport last_codes;   // on the CPU: of the last call
  GemmShape shape;          // as it was given, and the options
  OperatorOptions given;
  execute::OperandRules rules;
  runtime::Calls& calls;
  runtime::CallMember member;
  std::vector<std::int32_t> first_rows;                      // of a packed output's blocks
  std::unique_ptr<runtime::DeviceMemory> first_rows_on_gpu;  // the same
  std::vector<Staged> staged;                                // by place in the call
  std::vector<const void*> known;  // operands of the last call, which were found to be on the GPU
  std::shared_ptr<void> aside;     // on the CPU: for a copy of "a", once a call had it in an output

  State(World& w, const Problem& p, const GemmShape& s, const OperatorOptions& chosen, const OperatorOptions& asked)
      : world(w),
        problem(p),
        options(chosen),
        shape(s),
        given(asked),
        rules(p, s.any_m),
        calls(runtime::calls_of(w)),
        member(calls, [this](const runtime::CallNote& call) { stand_in(call.size); }) {}

  Plan plan_of(std::int64_t m) const {
    Problem of_m = problem;
    of_m.m = m;
    return choose_plan(of_m, nominal_host_machine(), options);
  }

  // Which plans run is the same on every rank: they follow from what the ranks have agreed on, and from M.
  void prepare_any_m() {
    pooled.emplace(world, options.cpu, [&](const auto& too) {
      auto largest = std::make_shared<const Plan>(plan_of(problem.m));
      // Other plans serve fewer rows, and may take more memory.
      const std::int64_t unit = plan::splits_m(problem.op) ? problem.ranks : 1;
      for (std::int64_t units = problem.m / unit / 2; units > 0; units /= 2) too(plan_of(units * unit));
      return largest;
    });
    plan = pooled->first();
    on_host = pooled->prepare(plan);
    by_size.emplace([this](std::int64_t m) {
      try {
        return pooled->prepare(std::make_shared<const Plan>(plan_of(m)));
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("M = {}: {}", m, error.what()));
      }
    });
  }

  // Whether the operator runs on GPUs; if not, `refusal` says why. `own_memory`: see operation_of_any_m.
  bool prepare_on_gpus(bool own_memory, std::string& refusal) {
    gpus = ops::gpus_of(world, options.cuda);
    refusal = gpus->refusal;
    if (!refusal.empty()) return false;
    const ops::PlanRequest request{options.strategy, ops::given_of(options), options.codec, options.plan};
    try {
      on_gpus = shape.any_m ? gpus->operation_of_any_m(world, problem, request, own_memory)
                            : gpus->operation(world, problem, request);
    } catch (const runtime::HeapLimit&) {
      throw;  // no reason to work on the CPU
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      refusal = error.what();
      return false;
    }
    device = Device::cuda;
    if (!first_rows.empty()) {
      first_rows_on_gpu = std::make_unique<runtime::DeviceMemory>(first_rows.size() * sizeof first_rows[0]);
      first_rows_on_gpu->upload(first_rows.data());
    }
    return true;
  }

  // Where the blocks of a packed output begin.
  void list_blocks() {
    for (std::int64_t row = 0; row < problem.m; row += problem.packed.rows)
      for (std::int64_t col = 0; col < problem.n; col += problem.packed.cols)
        first_rows.push_back(base::narrow<std::int32_t>(plan::packed_row(problem, row, col), "a packed output's rows"));
  }

  // What the ranks' calls have in common.
  runtime::Terms call_terms() const {
    Problem of_call = problem;
    of_call.m = rules.m();
    plan::Fields fields;
    plan::add_fields(fields, of_call);
    runtime::Terms terms("a call of an operator");
    execute::add(terms, fields);
    return terms;
  }

  Execution& execution() { return on_gpus ? on_gpus->any() : *on_host; }

  // Whether some call of the world was captured.
  bool captured() const { return on_gpus && gpus->executor != nullptr && gpus->executor->has_captures(); }

  // On the CPU. The execution of another M may be gone when somebody asks for the report.
  Report run_here(const Addresses& addresses) {
    Execution& of_m = execution_of(rules.m());
    Report report = of_m.run(addresses);
    if (options.codec) last_codes = of_m.codec_report();
    return report;
  }

  // Made by a call that the ranks take: what a plan takes of the heap, it takes on all of them.
  Execution& execution_of(std::int64_t m) {
    if (on_gpus) return on_gpus->at(m);
    return m == problem.m ? *on_host : by_size->at(m);
  }

  // NOTE: a kernel that meets an address of the host's ends the process's use of the GPU.
  void expect_on_gpu(const Operands& operands) {
    known.resize(operands.size());
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const auto& [name, view] = operands[i];
      if (view.data == known[i]) continue;
      IMBREX_EXPECTS(runtime::on_gpu(view.data, gpus->own_gpu),
                     "operand {} at {} is not in a GPU's memory: run takes what is; run_and_wait takes host memory",
                     name, view.data);
      IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0,
                     "operand {} at {}: on GPUs it must be aligned to 16 bytes", name, view.data);
      known[i] = view.data;
    }
  }

  runtime::CallNote note() const { return {member.number(), rules.m(), 0, device == Device::cuda, "M"}; }

  // Takes this rank's part in a call of that M that it refused. Its operands are NaN: what comes of them is no result.
  void stand_in(std::int64_t m) {
    const bool there = device == Device::cuda;
    if (there) runtime::select_gpu(gpus->own_gpu);
    std::vector<std::vector<std::byte>> here;
    std::vector<std::unique_ptr<runtime::DeviceMemory>> memory;
    std::vector<Operand> operands;
    for (const OperandInfo& of : rules.infos()) {
      const OperandInfo info = m == problem.m ? of : rules.info(of.name, m);
      here.emplace_back(info.bytes(), std::byte{0xff});
      if (there) memory.emplace_back(std::make_unique<runtime::DeviceMemory>(info.bytes()))->upload(here.back());
      operands.push_back({of.name, info.at(there ? memory.back()->get() : here.back().data())});
    }
    if (!there) return static_cast<void>(run_here(rules.resolve(operands)));
    // Where peers store into the heap, what lies there comes back.
    const ops::LentOutput lent(*gpus, calls.place(), rules.info("out", m).bytes());
    for (Operand& operand : operands)
      if (lent && operand.name == "out") operand.view.data = lent.get();
    execution_of(m).run(rules.resolve(operands));
  }

  // Returns the addresses of the call resolved last, where "a" lies in an output with memory for a copy of it.
  Addresses with_aside(Addresses addresses, CudaStream stream) {
    if (!rules.in_place()) return addresses;
    const std::size_t bytes = rules.info("a").bytes();
    if (on_gpus) {
      addresses.aside.memory = on_gpus->memory_aside(bytes, stream, gpus->own_gpu);
    } else {
      if (aside == nullptr) aside = {::operator new(bytes), [](void* p) { ::operator delete(p); }};
      addresses.aside.memory = aside.get();
    }
    return addresses;
  }

  OperandInfo info_of_call(std::string_view name) const {
    return rules.m() == problem.m ? rules.info(name) : rules.info(name, rules.m());
  }

  Report run_staged(const Operands& operands) {
    const int gpu = gpus->own_gpu;
    std::vector<Operand> there(operands.begin(), operands.end());
    const auto each = [&](OperandRole role, auto&& f) {
      for (std::size_t i = 0; i < there.size(); ++i)
        if (rules.info(there[i].name).role == role) f(i);
    };
    return calls.make(
        [&] {
          rules.resolve(operands);
          runtime::select_gpu(gpu);
          staged.resize(there.size());
          for (std::size_t i = 0; i < there.size(); ++i) {
            void*& data = there[i].view.data;
            data = staged[i].place(data, info_of_call(there[i].name), rules.info(there[i].name), gpu);
          }
          return with_aside(rules.resolve(there), nullptr);
        },
        [&](const Addresses&) { return note(); }, [&](const Addresses&) { return call_terms(); },
        [&](const Addresses& addresses) {
          called = rules.m();
          each(OperandRole::input, [&](std::size_t i) { staged[i].bring(operands[i].view.data); });
          Report report = execution_of(rules.m()).run(addresses);
          each(OperandRole::output,
               [&](std::size_t i) { staged[i].bring_back(operands[i].view.data, info_of_call(operands[i].name)); });
          return report;
        });
  }
};

std::unique_ptr<GemmOperator::State> GemmOperator::make(World& world, Operator op, const GemmShape& shape,
                                                        const OperatorOptions& given, bool own_memory) {
  runtime::expect_one_host(world, "an operator");
  OperatorOptions options = given;
  // Spans of CPU workers are asked for in vain of a GPU.
  const bool wanted = options.device == Device::cuda || (options.device == Device::automatic && !options.cpu.timeline);
  Problem problem = ops::problem_of(op, shape, world.size());
  runtime::agree(world, [&] {
    validate(problem);
    options = ops::with_codec(problem, given);
    if (shape.packed) ops::expect_packable(problem, shape.any_m, options);
    if (shape.packed && options.plan != nullptr) {
      problem.packed = options.plan->problem.packed;
      validate(problem);
    }
    ops::expect_own_plan(problem, shape, options);
    return ops::terms_of(problem, shape.any_m, options, wanted, runtime::calls_of(world).checked())
        .add("packed", shape.packed);
  });
  if (shape.packed && options.plan == nullptr) ops::choose_packed(world, wanted, problem, options);
  if (options.plan != nullptr) options.codec = options.plan->knobs.codec;
  auto made = std::make_unique<State>(world, problem, shape, options, given);
  State& s = *made;
  s.plan = options.plan;
  if (shape.packed) s.list_blocks();
  if (wanted && s.prepare_on_gpus(own_memory, s.why_cpu)) return made;
  if (options.device == Device::cuda) throw Error(ErrorCode::invalid_input, fmt::format("device cuda: {}", s.why_cpu));
  if (shape.any_m) {
    s.prepare_any_m();
    return made;
  }
  if (s.plan == nullptr) s.plan = std::make_shared<const Plan>(s.plan_of(problem.m));
  s.host = make_cpu_executor(world, options.cpu);
  s.on_host = s.host->prepare(s.plan);
  return made;
}

GemmOperator::GemmOperator(World& world, Operator op, const GemmShape& shape, const OperatorOptions& given)
    : state_(make(world, op, shape, given, true)) {}

// Graphs may hold calls of the plan that has memory of its own; what took turns is kept by what the plans share.
void GemmOperator::grow(std::int64_t m) {
  State& s = *state_;
  const auto captured = runtime::agree(s.world, [&] {
    IMBREX_EXPECTS(s.shape.any_m, "grow: {} was made without any_m", name_of(s.problem.op));
    return runtime::Terms("a larger M").add("operator", s.member.number()).add("m", m).tell(s.captured());
  });
  if (m <= s.problem.m) return;
  GemmShape shape = s.shape;
  shape.m = m;
  auto made = make(s.world, s.problem.op, shape, s.given, false);
  if (std::any_of(captured.begin(), captured.end(), [](std::int64_t one) { return one != 0; }))
    outgrown_.push_back(std::move(state_));
  state_ = std::move(made);
}

GemmOperator::~GemmOperator() = default;

const std::vector<OperandInfo>& GemmOperator::operands() const { return state_->rules.infos(); }

Operand GemmOperator::operand(std::string_view name, void* data) const {
  const OperandInfo& info = state_->rules.info(name);
  return {info.name, info.at(data)};
}

Operand GemmOperator::operand(std::string_view name, const void* data) const {
  return operand(name, const_cast<void*>(data));
}

Operand GemmOperator::operand(std::string_view name, void* data, std::int64_t m) const {
  const OperandInfo info = state_->rules.info(name, m);
  return {info.name, info.at(data)};
}

Operand GemmOperator::operand(std::string_view name, const void* data, std::int64_t m) const {
  return operand(name, const_cast<void*>(data), m);
}

void GemmOperator::run(const Operands& operands, CudaStream stream) {
  State& s = *state_;
  const bool on_gpus = s.device == Device::cuda;
  s.calls.make(
      [&] {
        const Addresses addresses = s.rules.resolve(operands);
        if (on_gpus) {
          s.expect_on_gpu(operands);
          s.on_gpus->expect_stream(stream);
          ops::expect_restored(s.calls, stream, s.gpus->own_gpu);
          s.on_gpus->expect_ready(s.rules.m(), stream);
        } else {
          IMBREX_EXPECTS(stream == nullptr, "a stream of CUDA is given, and this operator works on the CPU");
        }
        return s.with_aside(addresses, stream);
      },
      [&](const Addresses&) { return s.note(); }, [&](const Addresses&) { return s.call_terms(); },
      [&](const Addresses& addresses) {
        s.called = s.rules.m();
        if (on_gpus)
          s.execution_of(s.rules.m()).enqueue(addresses, stream);
        else
          s.run_here(addresses);
      });
}

Report GemmOperator::run_and_wait(const Operands& operands) {
  State& s = *state_;
  if (s.device == Device::cuda) return s.run_staged(operands);
  return s.calls.make([&] { return s.with_aside(s.rules.resolve(operands), nullptr); },
                      [&](const Addresses&) { return s.note(); }, [&](const Addresses&) { return s.call_terms(); },
                      [&](const Addresses& addresses) { return s.run_here(addresses); });
}

// Ranks that refuse do so before any queues something: no other rank could take their part in a graph of calls.
double GemmOperator::time(const Operands& operands, int runs) {
  State& s = *state_;
  Addresses addresses;
  runtime::agree(s.world, [&] {
    IMBREX_EXPECTS(!s.shape.any_m, "time: an operator of any M takes turns with others; one of one M is timed");
    IMBREX_EXPECTS(runs > 0 && runs % 2 == 0, "runs = {}: it must be an even number, workspaces alternate", runs);
    if (s.on_gpus) s.expect_on_gpu(operands);
    addresses = s.with_aside(s.rules.resolve(operands), nullptr);
    return s.call_terms().add("runs", runs);
  });
  s.calls.run_prelude();
  if (s.on_gpus) runtime::select_gpu(s.gpus->own_gpu);
  return s.execution().time(addresses, runs);
}

void GemmOperator::check() {
  state_->execution().check();
  state_->calls.expect_none_refused();
}

void GemmOperator::synchronize(CudaStream stream) {
  if (state_->device == Device::cpu && stream == nullptr)
    state_->execution().check();
  else
    state_->execution().synchronize(stream);
  state_->calls.expect_none_refused();
}

std::shared_ptr<void> GemmOperator::allocate_output() {
  const State& s = *state_;
  const std::size_t bytes = s.rules.info("out").bytes();
  if (s.device == Device::cpu) return {::operator new(bytes), [](void* p) { ::operator delete(p); }};
  auto memory = s.gpus->executor->allocate_output(bytes);
  void* address = memory.get();
  return {address, [gpus = s.gpus, memory = std::move(memory)](void*) {}};
}

CodecReport GemmOperator::codec_report(CudaStream stream) {
  State& s = *state_;
  IMBREX_EXPECTS(s.options.codec.has_value(), "codec_report: {} was made without a codec", name_of(s.problem.op));
  synchronize(stream);
  if (s.called == 0 || !s.on_gpus) return merged(s.world, s.last_codes);
  IMBREX_EXPECTS(s.on_gpus->keeps(s.called),
                 "codec_report: other operators of this problem have called more sizes than are kept since the call of "
                 "M = {}",
                 s.called);
  return merged(s.world, s.on_gpus->at(s.called).codec_report());
}

PackedLayout GemmOperator::packed_layout() const {
  const State& s = *state_;
  const Problem& p = s.problem;
  IMBREX_EXPECTS(plan::is_packed(p), "packed_layout: {} was made without `packed`", name_of(p.op));
  const auto* array = s.first_rows_on_gpu != nullptr ? static_cast<const std::int32_t*>(s.first_rows_on_gpu->get())
                                                     : s.first_rows.data();
  return {p.m, p.n, p.packed.rows, p.packed.cols, array, s.device};
}

Device GemmOperator::device() const { return state_->device; }

std::string_view GemmOperator::kernel_name() const { return state_->execution().kernel_name(); }

const std::string& GemmOperator::why_cpu() const { return state_->why_cpu; }

const Plan& GemmOperator::plan() const {
  State& s = *state_;
  if (s.plan == nullptr) {
    const plan::Candidate& chosen = s.on_gpus->chosen;
    s.plan = std::make_shared<const Plan>(make_plan(s.problem, chosen.strategy, chosen.knobs));
  }
  return *s.plan;
}

RankShapes GemmOperator::shapes() const { return shapes_of(state_->problem); }

Plan choose_plan(const Problem& problem, const Machine& machine, const OperatorOptions& given) {
  validate(problem);
  const OperatorOptions options = ops::with_codec(problem, given);
  const plan::GivenKnobs knobs = ops::given_of(options);
  if (knobs.all() && options.strategy) return make_plan(problem, *options.strategy, knobs.values());
  return choose::choose(problem, machine, options.strategy, knobs, options.codec, choose::simulated_seconds(machine));
}

}  // namespace imbrex
