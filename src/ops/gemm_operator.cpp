// What the operators share: choose device and plan, execute it.
#include <fmt/format.h>

#include <array>
#include <new>
#include <optional>

#include "base/check.hpp"
#include "choose/choose.hpp"
#include "execute/layout.hpp"
#include "execute/terms.hpp"
#include "imbrex/ops.hpp"
#include "ops/world_gpus.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex {
namespace {

std::size_t bytes_of(const Extent& extent, Type type) {
  return static_cast<std::size_t>(extent.rows * extent.cols) * size_of(type);
}

// An operand's place on the GPU, where the caller's is in host memory.
class Staged {
 public:
  const void* input(const void* p, std::size_t bytes, int gpu) {
    if (runtime::on_gpu(p, gpu)) return p;
    void* place = output(nullptr, bytes, gpu);
    memory_->upload(p);
    return place;
  }

  void* output(void* p, std::size_t bytes, int gpu) {
    used_ = p == nullptr || !runtime::on_gpu(p, gpu);
    if (!used_) return p;
    if (!memory_) memory_.emplace(bytes);
    return memory_->get();
  }

  void bring_back(void* p) const {
    if (used_) memory_->download(p);
  }

 private:
  std::optional<runtime::DeviceMemory> memory_;
  bool used_ = false;
};

runtime::Terms terms_of(const Problem& problem, const OperatorOptions& options, bool gpus_wanted) {
  runtime::Terms terms("an operator");
  plan::Fields fields;
  plan::add_fields(fields, problem);
  plan::add_fields(fields, options.strategy, options.knobs);
  execute::add(terms, fields);
  terms.add("device", name_of(gpus_wanted ? options.device : Device::cpu));
  if (gpus_wanted) execute::add(terms, options.cuda);
  return terms;
}

}  // namespace

struct GemmOperator::State {
  Device device = Device::cpu;
  Problem problem;
  std::shared_ptr<const Plan> plan;  // on GPUs, made when somebody asks for it
  std::shared_ptr<ops::WorldGpus> gpus;
  std::unique_ptr<Executor> host;
  std::unique_ptr<Execution> on_host;
  std::shared_ptr<ops::GpuOperation> on_gpus;
  Staged a, b, bias, a_scale, b_scale, out;
  std::array<const void*, 6> known{};  // operands of the last call, which were found to be on the GPU

  // Whether the operator runs on GPUs; if not, `refusal` says why.
  bool prepare_on_gpus(World& world, const OperatorOptions& options, std::string& refusal) {
    gpus = ops::gpus_of(world, options.cuda);
    refusal = gpus->refusal;
    if (!refusal.empty()) return false;
    try {
      on_gpus = gpus->operation(world, problem, options.strategy, options.knobs);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;
      refusal = error.what();
      return false;
    }
    device = Device::cuda;
    return true;
  }

  Execution& execution() { return on_gpus ? *on_gpus->execution : *on_host; }

  // NOTE: a kernel that meets an address of the host's ends the process's use of the GPU.
  void expect_on_gpu(const Operands& o) {
    const std::array<const void*, 6> given{o.a, o.b, o.out, o.bias, o.a_scale, o.b_scale};
    if (given == known) return;
    constexpr const char* names[] = {"a", "b", "out", "bias", "a_scale", "b_scale"};
    for (std::size_t i = 0; i < given.size(); ++i)
      IMBREX_EXPECTS(given[i] == nullptr || given[i] == known[i] || runtime::on_gpu(given[i], gpus->own_gpu),
                     "operand {} at {} is not in a GPU's memory: on a stream, operators take what is", names[i],
                     given[i]);
    known = given;
  }
};

GemmOperator::GemmOperator(World& world, const Problem& problem, const OperatorOptions& options)
    : state_(std::make_unique<State>()) {
  // Spans of CPU workers are asked for in vain of a GPU.
  const bool wanted = options.device == Device::cuda || (options.device == Device::automatic && !options.cpu.timeline);
  runtime::agree(world, [&] {
    validate(problem);
    return terms_of(problem, options, wanted);
  });
  State& s = *state_;
  s.problem = problem;
  std::string refusal;
  if (wanted && s.prepare_on_gpus(world, options, refusal)) return;
  if (options.device == Device::cuda) throw Error(ErrorCode::invalid_input, fmt::format("device cuda: {}", refusal));
  s.plan = std::make_shared<const Plan>(choose_plan(problem, nominal_host_machine(), options));
  s.host = make_cpu_executor(world, options.cpu);
  s.on_host = s.host->prepare(s.plan);
}

GemmOperator::~GemmOperator() = default;

Report GemmOperator::operator()(const void* a, const void* b, void* out) { return (*this)(Operands{a, b, out}); }

Report GemmOperator::operator()(const void* a, const void* b, const void* bias, void* out) {
  return (*this)(Operands{a, b, out, bias});
}

Report GemmOperator::operator()(const Operands& o) {
  State& s = *state_;
  if (s.device == Device::cpu) return s.execution().run(o);
  execute::expect_given(o, s.problem);
  const RankShapes shape = shapes();
  const Type type = s.problem.type, result = output_type(type);
  const int gpu = s.gpus->own_gpu;
  runtime::select_gpu(gpu);
  const auto input = [&](Staged& staged, const void* p, const Extent& extent, Type of) {
    return p == nullptr ? nullptr : staged.input(p, bytes_of(extent, of), gpu);
  };
  const auto scale = [&](Staged& staged, const float* p, const Extent& extent) {
    return static_cast<const float*>(input(staged, p, extent, Type::fp32));
  };
  Report report = s.execution().run(
      {input(s.a, o.a, shape.a, type), input(s.b, o.b, shape.b, type),
       s.out.output(o.out, bytes_of(shape.out, result), gpu), input(s.bias, o.bias, {1, shape.out.cols}, result),
       scale(s.a_scale, o.a_scale, shape.a_scale), scale(s.b_scale, o.b_scale, shape.b_scale)});
  s.out.bring_back(o.out);
  return report;
}

void GemmOperator::operator()(const void* a, const void* b, void* out, CudaStream stream) {
  (*this)(Operands{a, b, out}, stream);
}

void GemmOperator::operator()(const void* a, const void* b, const void* bias, void* out, CudaStream stream) {
  (*this)(Operands{a, b, out, bias}, stream);
}

void GemmOperator::operator()(const Operands& operands, CudaStream stream) {
  State& s = *state_;
  IMBREX_EXPECTS(s.device == Device::cuda, "this operator runs on the CPU, which has no streams of CUDA");
  execute::expect_given(operands, s.problem);
  s.expect_on_gpu(operands);
  s.execution().enqueue(operands, stream);
}

void GemmOperator::check() { state_->execution().check(); }

void GemmOperator::synchronize(CudaStream stream) { state_->execution().synchronize(stream); }

std::shared_ptr<void> GemmOperator::allocate_output() {
  const State& s = *state_;
  const std::size_t bytes = bytes_of(shapes().out, output_type(s.problem.type));
  if (s.device == Device::cpu) return {::operator new(bytes), [](void* p) { ::operator delete(p); }};
  auto memory = s.gpus->executor->allocate_output(bytes);
  void* address = memory.get();
  return {address, [gpus = s.gpus, memory = std::move(memory)](void*) {}};
}

Device GemmOperator::device() const { return state_->device; }

const Plan& GemmOperator::plan() const {
  State& s = *state_;
  if (s.plan == nullptr) {
    const plan::Candidate& chosen = s.on_gpus->chosen;
    s.plan = std::make_shared<const Plan>(make_plan(s.problem, chosen.strategy, chosen.knobs));
  }
  return *s.plan;
}

RankShapes GemmOperator::shapes() const { return shapes_of(state_->problem); }

Plan choose_plan(const Problem& problem, const Machine& machine, const OperatorOptions& options) {
  validate(problem);
  if (options.knobs && options.strategy) return make_plan(problem, *options.strategy, *options.knobs);
  const auto list = choose::candidates(problem, machine, options.strategy, options.knobs);
  const auto simulator = make_simulator(machine);
  return choose::choose(problem, list, [&](const Plan& plan) { return simulator->prepare(plan)->run({}).seconds; });
}

}  // namespace imbrex
