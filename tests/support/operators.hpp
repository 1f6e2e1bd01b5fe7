// One rank's operator with its operands' values and what it ought to give.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/ops.hpp"
#include "ops/gemm_request.hpp"
#include "program/operands.hpp"
#include "program/reference.hpp"

namespace imbrex::test {

OperatorOptions on_cpu();

/// What the Error says that `f` throws; empty if it throws none.
std::string error_of(const std::function<void()>& f);

using imbrex::make_operator;
using ops::shape_of;

/// Operands from a seed, the same on every rank.
std::unique_ptr<program::OperandSource> seeded_operands(Problem problem, std::uint64_t seed);

/// What the operator of one output gives where its operands, in host memory, lie as the problem says: without what is
/// between its rows. Operands are those of a seed, with poison between their rows. Throws Error(unsound) if something
/// was written between those of the output.
std::vector<std::byte> result_of(World& world, GemmOperator& op, const Problem& problem, std::uint64_t seed);

class OperatorCase {
 public:
  OperatorCase(World& world, Operator op, const GemmShape& shape, const OperatorOptions& options,
               std::uint64_t seed = 1);

  GemmOperator& op() { return *op_; }
  const std::vector<std::byte>& a() const { return a_; }
  const std::vector<std::byte>& b() const { return b_; }
  /// Empty without one.
  const std::vector<std::byte>& bias() const { return bias_; }
  std::size_t out_bytes() const;
  /// All of them, in host memory.
  std::vector<Operand> operands(void* out) const;

  /// Empty without them.
  const std::vector<float>& a_scale() const { return a_scale_; }
  const std::vector<float>& b_scale() const { return b_scale_; }

  /// What is wrong with a result, "" if nothing: every element within its bound, the bits those of the first one
  /// judged.
  std::string judge(const std::vector<std::byte>& out);

 private:
  std::unique_ptr<GemmOperator> op_;
  std::vector<std::byte> a_, b_, bias_, first_;
  std::vector<float> a_scale_, b_scale_;
  program::Reference reference_;
};

}  // namespace imbrex::test
