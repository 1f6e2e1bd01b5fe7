// Where a plan's operands stand among its buffers.
#pragma once

#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

// Operators that multiply have their operands in the places below; others in the order of operands_of.

/// Indices of the operands in Plan::buffers, in every plan; of several B, the first one's.
inline constexpr int buffer_a = 0, buffer_b = 1, buffer_out = 2;
/// The buffer of the bias, in plans of problems that have one.
inline constexpr int buffer_bias = 3;

/// The buffer of A's scales, in plans of problems that have them; B's follows.
inline int buffer_a_scale(const Problem& problem) { return problem.bias ? 4 : 3; }

/// What an operand is; of B, the biases and the outputs, the product's number says which one.
struct OperandPlace {
  enum class What : std::uint8_t { a, b, bias, a_scale, b_scale, out, gathered } what = What::a;
  int product = 0;

  bool operator==(const OperandPlace&) const = default;
};

/// What the buffer holds; it is one of the caller's.
OperandPlace operand_at(const Problem& problem, int buffer);

int buffer_b_of(const Problem& problem, int product);
int buffer_bias_of(const Problem& problem, int product);
int buffer_out_of(const Problem& problem, int product);
/// The gathered A, in plans of problems that give it.
int buffer_gathered(const Problem& problem);

/// Buffers that are the caller's: the first ones.
int count_operands(const Problem& problem);

/// These, in the order of Plan::buffers.
std::vector<Buffer> operand_buffers(const Problem& problem);

/// Elements from one row of an operand, as it lies in the caller's memory, to the next (of column_major: from column to
/// column). 0: without gaps; so of workspaces, and of an operand whose leading dimension is the length of its rows.
std::int64_t pitch_of(const Problem& problem, const Buffer& buffer, int index);

namespace detail {
bool is_further_bias(const Problem& problem, int buffer);
}

/// Whether a region lies in one of the caller's biases.
inline bool is_bias(const Problem& problem, const Region& region) {
  return problem.bias && (region.buffer == buffer_bias ||
                          (problem.more_n.front() > 0 && detail::is_further_bias(problem, region.buffer)));
}

}  // namespace imbrex::plan
