#include "support/operators.hpp"

#include <fmt/format.h>

#include "base/convert.hpp"
#include "imbrex/error.hpp"
#include "program/operand_memory.hpp"

namespace imbrex::test {

OperatorOptions on_cpu() {
  OperatorOptions options;
  options.device = Device::cpu;
  return options;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<program::OperandSource> seeded_operands(Problem problem, std::uint64_t seed) {
  program::RunRequest request;
  request.problem = problem;
  request.seed = seed;
  return program::open_operands(request, problem);
}

std::vector<std::byte> result_of(World& world, GemmOperator& op, const Problem& problem, std::uint64_t seed) {
  const auto values = seeded_operands(problem, seed);
  std::vector<std::vector<std::byte>> memory;
  std::vector<Operand> operands;
  const std::vector<OperandInfo> infos = operands_of(problem);
  for (const OperandInfo& info : infos) {
    if (info.role == OperandRole::output)
      memory.emplace_back(info.bytes(), std::byte{0xff});
    else if (info.name == "bias")
      memory.push_back(values->bias(world.rank()));
    else
      memory.push_back(program::with_gaps(info, values->part(info.name == "a", world.rank())));
    operands.push_back(op.operand(info.name, memory.back().data(), problem.m));
    // What the problem says, the operator says, too.
    if (operands.back().view != info.at(memory.back().data())) throw Error(ErrorCode::unsound, "another view");
  }
  op.run_and_wait(operands);
  if (!program::gaps_are_poison(infos.back(), memory.back())) throw Error(ErrorCode::unsound, "a write between rows");
  return program::without_gaps(infos.back(), memory.back());
}

OperatorCase::OperatorCase(World& world, Operator op, const GemmShape& shape, const OperatorOptions& options,
                           std::uint64_t seed)
    : op_(make_operator(world, op, shape, options)) {
  const auto operands = seeded_operands(op_->plan().problem, seed);
  a_ = operands->part(true, world.rank());
  b_ = operands->part(false, world.rank());
  bias_ = operands->bias(world.rank());
  a_scale_ = operands->scales(true, world.rank());
  b_scale_ = operands->scales(false, world.rank());
  reference_ = program::reference_of(op_->plan(), *operands, world.rank(), op_->device());
}

std::size_t OperatorCase::out_bytes() const {
  const Extent out = op_->shapes().out;
  return static_cast<std::size_t>(out.rows * out.cols) * size_of(output_type(op_->plan().problem.type));
}

std::vector<Operand> OperatorCase::operands(void* out) const {
  std::vector<Operand> all{op_->operand("a", a_.data()), op_->operand("b", b_.data())};
  if (!bias_.empty()) all.push_back(op_->operand("bias", bias_.data()));
  if (!a_scale_.empty()) {
    all.push_back(op_->operand("a_scale", a_scale_.data()));
    all.push_back(op_->operand("b_scale", b_scale_.data()));
  }
  all.push_back(op_->operand("out", out));
  return all;
}

std::string OperatorCase::judge(const std::vector<std::byte>& out) {
  const Type type = output_type(op_->plan().problem.type);
  const Extent extent = op_->shapes().out;
  const program::Comparison c = program::compare(reference_, base::floats_of(type, out), type, extent.cols);
  const std::string_view name = name_of(op_->plan().problem.op);
  if (!(c.worst <= 1))
    return fmt::format("{}: element ({}, {}) is {}, the reference {}", name, c.row, c.col, c.result, c.value);
  if (first_.empty()) first_ = out;
  return first_ == out ? "" : fmt::format("{}: the bits differ from the first result's", name);
}

}  // namespace imbrex::test
