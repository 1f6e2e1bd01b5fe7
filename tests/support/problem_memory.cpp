#include "support/problem_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/convert.hpp"
#include "plan/problem.hpp"
#include "program/operand_memory.hpp"

namespace imbrex::test {
namespace {

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> input(const OperandInfo& info, const program::OperandSource& values, int rank) {
  if (info.name == "a") return values.part(true, rank);
  if (info.name == "a_scale" || info.name == "b_scale") return bytes_of(values.scales(info.name == "a_scale", rank));
  for (int product = 0; product < max_products; ++product) {
    if (info.name == plan::name_of_b(product)) return values.part(false, rank, product);
    if (info.name == plan::name_of_bias(product)) return values.bias(rank, product);
  }
  return {};
}

}  // namespace

float WholeOperands::value_of(float uniform, bool scale) const { return scale ? 1 : std::round(3 * uniform); }

ProblemMemory::ProblemMemory(const Problem& problem, const program::OperandSource& values, int rank)
    : problem_(problem), values_(values), rank_(rank), infos_(operands_of(problem)) {
  for (const OperandInfo& info : infos_)
    memory_.push_back(info.role == OperandRole::output ? std::vector<std::byte>(info.bytes(), std::byte{0xff})
                                                       : program::with_gaps(info, input(info, values, rank)));
}

std::vector<Operand> ProblemMemory::operands(const std::function<std::int64_t(std::int64_t rows)>& split) {
  std::vector<Operand> all;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    View view = infos_[i].at(memory_[i].data());
    const std::int64_t rows = infos_[i].rows, parts = split && infos_[i].layout == Layout::row_major ? split(rows) : 1;
    if (view.dims == 2 && parts > 1 && rows % parts == 0 && infos_[i].cols > 1)
      view = {view.data,
              view.type,
              3,
              {parts, rows / parts, view.extents[1]},
              {rows / parts * view.strides[0], view.strides[0], view.strides[1]}};
    all.push_back({infos_[i].name, view});
  }
  return all;
}

void ProblemMemory::poison() {
  for (std::size_t i = 0; i < infos_.size(); ++i)
    if (infos_[i].role == OperandRole::output) std::fill(memory_[i].begin(), memory_[i].end(), std::byte{0xff});
}

std::vector<std::vector<std::byte>> ProblemMemory::outputs() const {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < infos_.size(); ++i)
    if (infos_[i].role == OperandRole::output) all.push_back(memory_[i]);
  return all;
}

std::string ProblemMemory::judge(const Plan& plan, bool exact, Device device) const {
  int place = 0;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const OperandInfo& info = infos_[i];
    if (info.role != OperandRole::output) continue;
    const int product = place++;
    if (!program::gaps_are_poison(info, memory_[i])) return fmt::format("a write between the rows of {}", info.name);
    const program::Reference reference = product < plan::count_products(problem_)
                                             ? program::reference_of(plan, values_, rank_, device, product)
                                             : program::gathered_reference(problem_, values_);
    const std::vector<float> got = base::floats_of(info.type, program::without_gaps(info, memory_[i]));
    const program::Comparison c = program::compare(reference, got, info.type, info.cols);
    if (!(c.worst <= 1))
      return fmt::format("{}: element ({}, {}) is {}, the reference {}", info.name, c.row, c.col, c.result, c.value);
    for (std::size_t e = 0; exact && e < got.size(); ++e)
      if (static_cast<double>(got[e]) != reference.value[e])
        return fmt::format("{}: element {} is {}, exactly {}", info.name, e, got[e], reference.value[e]);
  }
  return {};
}

}  // namespace imbrex::test
