#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "execute/peer_access.hpp"
#include "execute/terms.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/integers.hpp"
#include "ops/embedding/embedding_backend.hpp"
#include "ops/gemm_request.hpp"
#include "ops/trim.hpp"
#include "plan/strategies/strategies.hpp"
#include "problem/embedding.hpp"
#include "runtime/agreement.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/heap.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {
namespace {

void expect_choices(const EmbeddingShape& shape, const OperatorOptions& options) {
  IMBREX_EXPECTS(!shape.optimizer || shape.rows != TableRows::int8,
                 "optimizer {} with rows of int8: only tables of fp32, fp16 and bf16 are updated",
                 name_of(*shape.optimizer));
  IMBREX_EXPECTS(std::isfinite(shape.epsilon) && shape.epsilon >= 0, "epsilon = {}: it must be finite and not negative",
                 shape.epsilon);
  IMBREX_EXPECTS(!options.codec && !(options.knobs && options.knobs->codec),
                 "a codec is given: embedding_all_to_all sends no codes");
}

// The plan of the largest batch, and what it was made with.
OperatorOptions with_plan(const Problem& problem, OperatorOptions options) {
  if (options.plan != nullptr) {
    ops::expect_plan_of(problem, options);
    if (const auto finding = check_format(*options.plan))
      throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(finding->fault), finding->message));
    options.strategy = options.plan->strategy, options.knobs = options.plan->knobs;
    return options;
  }
  if (!options.strategy) options.strategy = execute::has_peer_access() ? Strategy::fused : Strategy::sequential;
  // Ranks wait for all slices together, and each further one costs (docs/embedding.md).
  Knobs whole;
  whole.tile_m = problem.m / problem.ranks;
  options.knobs = plan::GivenKnobs(options.knobs, options.fixed_knobs).over(whole);
  options.fixed_knobs.clear();
  plan::validate_knobs(problem, *options.strategy, *options.knobs);
  options.plan = std::make_shared<const Plan>(make_plan(problem, *options.strategy, *options.knobs));
  return options;
}

runtime::Terms terms_of(const EmbeddingShape& shape, const Problem& problem, const OperatorOptions& options,
                        bool given_plan, bool checked) {
  runtime::Terms terms("an operator");
  plan::Fields fields;
  plan::add_fields(fields, problem);
  plan::add_fields(fields, options.strategy, options.knobs);
  execute::add(terms, fields);
  const auto& [tables, shards, rows, batch, pooling, index_type, weighted, out, misfits, optimizer, epsilon] = shape;
  terms.add("pooling", name_of(pooling)).add("index_type", name_of(index_type)).add("weighted", weighted);
  terms.add("misfits", name_of(misfits)).add("optimizer", optimizer ? name_of(*optimizer) : "none");
  terms.add("epsilon", epsilon).add("device", name_of(options.device)).add("IMBREX_CHECK_CALLS", checked);
  terms.add("plan", given_plan ? "given" : "chosen");  // which one, its executor compares
  execute::add(terms, options.cuda);
  return terms;
}

}  // namespace

struct EmbeddingAllToAll::State {
  World& world;
  EmbeddingShape shape;
  std::vector<EmbeddingShard> shards;
  Problem problem;
  Device device = Device::cpu;
  std::string why_cpu;
  std::unique_ptr<ops::EmbeddingBackend> backend;
  ops::EmbeddingRules rules, update_rules;
  std::shared_ptr<const Plan> plan;  // of the largest batch
  bool given_plan;                   // by the caller: it is of one batch
  runtime::Calls& calls;
  runtime::CallMember member;
  std::vector<std::shared_ptr<void>> stood_in{};  // operands of a call that this rank stood in for

  State(World& w, const EmbeddingShape& s, std::vector<EmbeddingShard> all, const Problem& p,
        std::shared_ptr<const Plan> of_largest, bool given)
      : world(w),
        shape(s),
        shards(std::move(all)),
        problem(p),
        rules(s, p, w.rank(), false),
        update_rules(s, p, w.rank(), true),
        plan(std::move(of_largest)),
        given_plan(given),
        calls(runtime::calls_of(w)),
        member(calls, [this](const runtime::CallNote& call) { stand_in(call.size, call.kind == updates); }) {}

  // Where GPUs are refused, `why_cpu` says why, the same on all ranks.
  void prepare_on_gpus(const OperatorOptions& options) {
    auto gpus = ops::gpus_of(world, options.cuda);
    why_cpu = gpus->refusal;
    if (!why_cpu.empty()) return;
    try {
      backend = ops::make_gpu_embedding(world, std::move(gpus), shape, problem, options, !given_plan);
      device = Device::cuda;
    } catch (const runtime::HeapLimit&) {
      throw;  // no reason to work on the CPU
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      why_cpu = error.what();
    }
  }

  static constexpr std::uint32_t looks_up = 0, updates = 1;

  // Memory where the operator works, all of one byte.
  void* scratch(std::size_t bytes, unsigned char byte) {
    std::vector<std::byte> content(std::max<std::size_t>(bytes, 256), std::byte{byte});
    if (device == Device::cpu) {
      auto memory = std::make_shared<std::vector<std::byte>>(std::move(content));
      return stood_in.emplace_back(memory, memory->data()).get();
    }
    auto memory = std::make_shared<runtime::DeviceMemory>(content.size());
    memory->upload(content.data());
    return stood_in.emplace_back(memory, memory->get()).get();
  }

  // Takes this rank's part in a call that it refused: with empty bags, which read and change no row, and gradients of
  // NaN.
  void stand_in(std::int64_t batch, bool update) {
    ops::EmbeddingRules& of = update ? update_rules : rules;
    if (device == Device::cuda) {
      backend->synchronize(nullptr);
      runtime::select_gpu(backend->gpu());
    }
    stood_in.clear();
    std::vector<Operand> operands;
    for (const EmbeddingOperand& info : of.infos()) {
      View view = info.view;
      const bool number = info.name == "indices" || info.name == "offsets", matrix = &info == &of.infos().back();
      if (matrix) view.extents[0] = batch / world.size();
      if (info.name == "offsets") view.extents[0] = (view.extents[0] - 1) / problem.m * batch + 1;
      const bool table = !number && !matrix && info.name != "weights";  // none of its rows is read
      const auto elements = static_cast<std::size_t>(view.extents[0] * (view.dims > 1 ? view.extents[1] : 1));
      view.data = scratch(table ? 0 : elements * bytes_of(view.type), number ? 0 : 0xff);
      operands.push_back({info.name, view});
    }
    const ops::LentOutput lent =
        update || device == Device::cpu ? ops::LentOutput() : backend->lent_output(calls.place());
    if (lent) operands.back().view.data = lent.get();
    const ops::EmbeddingCall& resolved = of.resolve(operands, false);
    update ? backend->update(resolved, 0, nullptr) : backend->run(resolved, nullptr);
    backend->synchronize(nullptr);
  }

  template <typename Launch>
  void call(ops::EmbeddingRules& of, const Operands& operands, float rate, CudaStream stream, Launch&& launch) {
    calls.make(
        [&] {
          const ops::EmbeddingCall& resolved = backend->resolve(of, operands, rate, stream);
          IMBREX_EXPECTS(!given_plan || resolved.given.bags.batch == problem.m,
                         "batch = {}: the plan that was given is of batch = {}", resolved.given.bags.batch, problem.m);
          if (device == Device::cuda) ops::expect_restored(calls, stream, backend->gpu());
          return &resolved;
        },
        [&](const ops::EmbeddingCall* resolved) {
          const std::uint32_t kind = &of == &update_rules ? updates : looks_up;
          return runtime::CallNote{member.number(), resolved->given.bags.batch, kind, !backend->meets(*resolved),
                                   "batch"};
        },
        [&](const ops::EmbeddingCall* resolved) {
          return runtime::Terms("a call of an embedding").add("batch", resolved->given.bags.batch).add("rate", rate);
        },
        [&](const ops::EmbeddingCall* resolved) { launch(*resolved); });
  }
};

EmbeddingAllToAll::EmbeddingAllToAll(World& world, const EmbeddingShape& shape, const OperatorOptions& given) {
  runtime::expect_one_host(world, "an operator");
  std::vector<EmbeddingShard> shards;
  Problem problem;
  OperatorOptions options = given;
  runtime::agree(world, [&] {
    expect_choices(shape, given);
    shards = ops::embedding_shards(shape, world.size());
    problem = ops::embedding_problem(shape, shards, world.size());
    options = with_plan(problem, given);
    return terms_of(shape, problem, options, given.plan != nullptr, runtime::calls_of(world).checked());
  });
  state_ = std::make_unique<State>(world, shape, std::move(shards), problem, options.plan, given.plan != nullptr);
  State& s = *state_;
  // Spans of CPU workers are asked for in vain of a GPU.
  if (options.device == Device::cuda || (options.device == Device::automatic && !options.cpu.timeline))
    s.prepare_on_gpus(options);
  IMBREX_EXPECTS(s.backend != nullptr || options.device != Device::cuda, "device cuda: {}", s.why_cpu);
  if (s.backend == nullptr) s.backend = ops::make_cpu_embedding(world, shape, problem, options, given.plan == nullptr);
}

EmbeddingAllToAll::~EmbeddingAllToAll() = default;

const std::vector<EmbeddingShard>& EmbeddingAllToAll::shards() const { return state_->shards; }

const std::vector<EmbeddingOperand>& EmbeddingAllToAll::operands() const { return state_->rules.infos(); }

const std::vector<EmbeddingOperand>& EmbeddingAllToAll::update_operands() const {
  static const std::vector<EmbeddingOperand> none;
  return state_->shape.optimizer ? state_->update_rules.infos() : none;
}

Operand EmbeddingAllToAll::operand(std::string_view name, void* data, std::int64_t count) const {
  const EmbeddingOperand* info = state_->rules.find(name);
  if (info == nullptr && state_->shape.optimizer) info = state_->update_rules.find(name);
  IMBREX_EXPECTS(info != nullptr, "operand {}: rank {} has no operand of that name", name, state_->world.rank());
  Operand operand{info->name, info->view};
  operand.view.data = data;
  if (operand.view.extents[0] == 0) operand.view.extents[0] = count;
  return operand;
}

Operand EmbeddingAllToAll::operand(std::string_view name, const void* data, std::int64_t count) const {
  return operand(name, const_cast<void*>(data), count);
}

void EmbeddingAllToAll::run(const Operands& operands, CudaStream stream) {
  State& s = *state_;
  s.call(s.rules, operands, 0, stream, [&](const ops::EmbeddingCall& call) { s.backend->run(call, stream); });
}

void EmbeddingAllToAll::update(const Operands& operands, float rate, CudaStream stream) {
  State& s = *state_;
  IMBREX_EXPECTS(s.shape.optimizer.has_value(), "update: this operator was made without an optimizer");
  s.call(s.update_rules, operands, rate, stream,
         [&](const ops::EmbeddingCall& call) { s.backend->update(call, rate, stream); });
}

EmbeddingReport EmbeddingAllToAll::report() {
  State& s = *state_;
  EmbeddingReport report;
  for (const std::int64_t ignored : runtime::agree(
           s.world, [&] { return runtime::Terms("a report of an embedding").tell(s.backend->take_ignored()); }))
    report.ignored += ignored;
  return report;
}

void EmbeddingAllToAll::check() {
  state_->backend->check();
  state_->calls.expect_none_refused();
}

void EmbeddingAllToAll::synchronize(CudaStream stream) {
  state_->backend->synchronize(stream);
  state_->calls.expect_none_refused();
}

std::shared_ptr<void> EmbeddingAllToAll::allocate_output() {
  const View& out = state_->rules.infos().back().view;
  return state_->backend->allocate_output(static_cast<std::size_t>(out.extents[0] * out.extents[1]) *
                                          size_of(out.type));
}

Device EmbeddingAllToAll::device() const { return state_->device; }

const std::string& EmbeddingAllToAll::why_cpu() const { return state_->why_cpu; }

const Plan& EmbeddingAllToAll::plan() const { return *state_->plan; }

}  // namespace imbrex
