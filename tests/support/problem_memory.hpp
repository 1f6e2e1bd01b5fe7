// One rank's operands of a problem, lists of B and the gathered A included, as an operator's calls take them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "imbrex/ops.hpp"
#include "program/operands.hpp"
#include "program/reference.hpp"

namespace imbrex::test {

/// Integers, whose products and their sums are exact in fp32 where K is no more than some thousands.
class WholeOperands final : public program::SeededOperands {
 public:
  using SeededOperands::SeededOperands;

 private:
  float value_of(float uniform, bool scale) const override;
};

/// In host memory that lies as the problem says, with poison between its rows.
class ProblemMemory {
 public:
  /// `values` outlives it.
  ProblemMemory(const Problem& problem, const program::OperandSource& values, int rank);

  const std::vector<OperandInfo>& infos() const { return infos_; }
  const std::vector<std::byte>& bytes(std::size_t i) const { return memory_[i]; }
  std::vector<std::byte>& bytes(std::size_t i) { return memory_[i]; }

  /// Views of all of them. `split`: into how many parts the rows of one that has so many are cut, an extent of its own
  /// before the others; 1 or what does not divide them: none.
  std::vector<Operand> operands(const std::function<std::int64_t(std::int64_t rows)>& split = {});

  /// Outputs as before a call.
  void poison();
  /// What is in them, gaps between rows included.
  std::vector<std::vector<std::byte>> outputs() const;

  /// What is wrong with the outputs of a call that ran `plan` on that device, "" if nothing: an element beyond its
  /// bound of the float64 result, or, of `exact` ones, another than it; a write between rows.
  std::string judge(const Plan& plan, bool exact = false, Device device = Device::cpu) const;

 private:
  Problem problem_;
  const program::OperandSource& values_;
  int rank_;
  std::vector<OperandInfo> infos_;
  std::vector<std::vector<std::byte>> memory_;  // by operand
};

}  // namespace imbrex::test
