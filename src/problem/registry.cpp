// The operators that there are, and what is asked of all of them.
#include <array>
#include <deque>
#include <utility>

#include "base/check.hpp"
#include "base/named.hpp"
#include "base/registry.hpp"
#include "problem/descriptor.hpp"
#include "problem/embedding.hpp"
#include "problem/limits.hpp"
#include "problem/products.hpp"

namespace imbrex::problem {
namespace {

using Operators = base::Registry<Operator, OperatorDescriptor>;

Operators& operators() {
  static Operators all = [] {
    std::deque<OperatorDescriptor> made;
    for (OperatorDescriptor& op : product_operators()) made.push_back(std::move(op));
    made.push_back(embedding_descriptor());
    return Operators("an", "operator", std::move(made));
  }();
  return all;
}

constexpr std::array<base::Named<Scales>, 3> all_scales{
    {{Scales::none, "none"}, {Scales::tensor, "tensor"}, {Scales::row, "row"}}};

}  // namespace

const OperatorDescriptor& descriptor_of(Operator op) { return operators().at(op); }
std::size_t count_operators() { return operators().size(); }
Operator register_operator(OperatorDescriptor descriptor) { return operators().add(std::move(descriptor)); }

std::vector<Operator> products() {
  std::vector<Operator> all;
  for (std::size_t i = 0; i < count_operators(); ++i)
    if (const auto op = static_cast<Operator>(i); descriptor_of(op).multiplies) all.push_back(op);
  return all;
}

std::string sizes_text(const Problem& problem) {
  const OperatorDescriptor& op = descriptor_of(problem.op);
  std::string text;
  for (std::size_t i = 0; i < op.sizes.size(); ++i)
    if (!op.sizes[i].empty()) text += fmt::format("{}{}={}", text.empty() ? "" : " ", op.sizes[i], size_at(problem, i));
  return text;
}

void expect_ranks(int ranks) {
  IMBREX_EXPECTS(ranks >= 1 && ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", ranks, max_ranks);
}

void expect_divides(const Problem& problem, std::string_view name, std::int64_t value) {
  IMBREX_EXPECTS(value % problem.ranks == 0, "{} = {} does not divide by {} ranks; {} splits it over the ranks", name,
                 value, problem.ranks, name_of(problem.op));
}

}  // namespace imbrex::problem

namespace imbrex {

void validate(const Problem& problem) {
  problem::expect_ranks(problem.ranks);
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  for (std::size_t i = 0; i < op.sizes.size(); ++i) {
    const std::int64_t value = problem::size_at(problem, i);
    if (op.sizes[i].empty())
      IMBREX_EXPECTS(value == 0, "{} has no {}, and it is {}: it must be 0", op.name, "mnk"[i], value);
    else
      IMBREX_EXPECTS(value > 0 && value <= problem::most_extent, "{} = {}: it must be from 1 to {}", op.sizes[i], value,
                     problem::most_extent);
  }
  op.validate(problem);
}

RankShapes shapes_of(const Problem& problem) {
  const problem::OperatorDescriptor& op = problem::descriptor_of(problem.op);
  if (op.shapes == nullptr) return {};
  RankShapes shapes = op.shapes(problem);
  for (int product = 1; product < problem::count_products(problem); ++product)
    shapes.product.cols += problem::cols_of(problem, product);
  if (problem.scales == Scales::tensor) shapes.a_scale = shapes.b_scale = {1, 1};
  if (problem.scales == Scales::row) shapes.a_scale = {shapes.a.rows, 1}, shapes.b_scale = {1, shapes.b.cols};
  return shapes;
}

std::vector<OperandInfo> operands_of(const Problem& problem) {
  return problem::descriptor_of(problem.op).operands(problem);
}

std::string_view name_of(Operator op) { return problem::operators().name_of(op); }
Operator parse_operator(std::string_view name) { return problem::operators().find(name); }

std::string_view name_of(Scales scales) { return base::find_name(problem::all_scales, scales); }
Scales parse_scales(std::string_view name) { return base::find_value(problem::all_scales, name, "a kind of scales"); }

}  // namespace imbrex
