// An operator, described once: its operands, what its outputs must hold, what it puts on the wire. Shapes, validation,
// buffers, the checker's values, JSON and messages follow from it. docs/dev/architecture.md says how to add one.
//
// Outputs are described as sums. A *space* is a matrix that the whole problem knows, over all ranks: A, B, the product.
// An element of it may be a sum of contributions, the *terms*, which are numbered through all ranks: of a product they
// are its K, and after K what is added once, such as a bias. Whatever lies in memory is a rectangle of a space, summed
// over some of its terms; an output must hold certain rectangles, each term once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/problem.hpp"

namespace imbrex::problem {

/// Consecutive terms.
struct Stretch {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Stretch&) const = default;
};

/// What a matrix holds: its element (i, j) is element (row + i, col + j) of `space`, summed over `terms`; without any,
/// it is no sum.
struct Held {
  int space = 0;
  std::int64_t row = 0, col = 0;
  std::vector<Stretch> terms{};
};

/// A rectangle of an output, and what must be there: `held` counts from the output's first element.
struct Wanted {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  Held held;
};

struct OperatorDescriptor {
  std::string name;
  /// What it takes and gives, for lists of operators: "A M x K by rows, B K x N by columns  ->  M x N/R".
  std::string_view about{};
  /// What messages call Problem's m, n and k, and in lower case their keys in JSON; "": the operator has no such size,
  /// and it is 0.
  std::array<std::string_view, 3> sizes{"M", "N", "K"};
  /// Which of them divide by the ranks.
  std::array<bool, 3> splits{};
  /// It multiplies matrices: an A by one B or more, as Tile and Product do.
  bool multiplies = false;
  /// It multiplies the A that it gathers by several B, and gives the gathered A.
  bool several_b = false;
  /// Its output sums what the ranks contribute.
  bool sums = false;
  /// Each rank has whole operands of its own, which files hold one under another; else parts of operands that they
  /// share.
  bool stacked = false;

  /// Throws Error(invalid_input) naming value and rule; ranks and the sizes that there are, are in range.
  void (*validate)(const Problem&) = nullptr;
  /// Per-rank shapes of operators that multiply, with one B and no scales; null for others.
  RankShapes (*shapes)(const Problem&) = nullptr;
  /// One rank's operands; all ranks have the same.
  std::vector<OperandInfo> (*operands)(const Problem&) = nullptr;
  /// What the caller's input of that name holds on `rank`; null where it has no inputs.
  Held (*input)(const Problem&, int rank, std::string_view name) = nullptr;
  /// Calls visit(wanted) for rectangles that cover the output of that name on `rank`, each element once.
  void (*wanted)(const Problem&, int rank, std::string_view name,
                 const std::function<void(const Wanted&)>& visit) = nullptr;
  /// What messages call a term, and how many terms are so called; what they call one after these. Null: all terms are.
  std::string_view term = "term", last_term{};
  std::int64_t (*count_terms)(const Problem&) = nullptr;
  /// Bytes that a rank puts on the wire, whichever plan runs.
  double (*wire_bytes)(const Problem&) = nullptr;
};

/// The operator's; throws Error(invalid_input) for one that does not exist.
const OperatorDescriptor& descriptor_of(Operator op);

/// How many there are: they are numbered from 0.
std::size_t count_operators();

/// Adds an operator and gives it a number: the next one, so all ranks add the same ones in one order, before they use
/// any. It is there until the process ends. Not beside anything else that asks for operators.
Operator register_operator(OperatorDescriptor descriptor);

/// The operators that multiply, in their order.
std::vector<Operator> products();

/// Whether ranks exchange their own products, which no other rank adds to.
inline bool exchanges(const Problem& problem) { return descriptor_of(problem.op).stacked; }
inline bool multiplies(const Problem& problem) { return descriptor_of(problem.op).multiplies; }

/// What the caller's input of that name holds on `rank`.
inline Held held_by(const Problem& problem, int rank, std::string_view name) {
  return descriptor_of(problem.op).input(problem, rank, name);
}

/// Descriptors of those that multiply, in the order of Operator.
std::vector<OperatorDescriptor> product_operators();

/// The size that is so called, Problem's m, n or k, by its place in OperatorDescriptor::sizes.
inline std::int64_t size_at(const Problem& problem, std::size_t place) {
  return place == 0 ? problem.m : place == 1 ? problem.n : problem.k;
}

/// The sizes, for messages: "M=64 N=32 K=48", "batch=64".
std::string sizes_text(const Problem& problem);

/// Throws Error(invalid_input) unless there may be so many ranks.
void expect_ranks(int ranks);

/// Throws Error(invalid_input) unless `value` divides by the ranks.
void expect_divides(const Problem& problem, std::string_view name, std::int64_t value);

}  // namespace imbrex::problem
