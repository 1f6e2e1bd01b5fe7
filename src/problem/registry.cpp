// The operators that there are, and what is asked of all of them.
#include <array>
#include <cctype>
#include <deque>
#include <utility>

#include "base/check.hpp"
#include "base/named.hpp"
#include "base/narrow.hpp"
#include "problem/descriptor.hpp"
#include "problem/limits.hpp"
#include "problem/products.hpp"

namespace imbrex::problem {
namespace {

// A deque: descriptors stay where they are.
std::deque<OperatorDescriptor>& operators() {
  static std::deque<OperatorDescriptor> all = [] {
    std::deque<OperatorDescriptor> made;
    for (OperatorDescriptor& op : product_operators()) made.push_back(std::move(op));
    made.push_back(embedding_descriptor());
    return made;
  }();
  return all;
}

constexpr std::array<base::Named<Scales>, 3> all_scales{
    {{Scales::none, "none"}, {Scales::tensor, "tensor"}, {Scales::row, "row"}}};
constexpr std::array<base::Named<TableRows>, 4> all_table_rows{
    {{TableRows::fp32, "fp32"}, {TableRows::fp16, "fp16"}, {TableRows::bf16, "bf16"}, {TableRows::int8, "int8"}}};

}  // namespace

const OperatorDescriptor& descriptor_of(Operator op) {
  const auto& all = operators();
  const auto number = static_cast<std::size_t>(op);
  IMBREX_EXPECTS(number < all.size(), "operator {} does not exist", number);
  return all[number];
}

Operator register_operator(OperatorDescriptor descriptor) {
  auto& all = operators();
  for (const OperatorDescriptor& other : all)
    IMBREX_EXPECTS(other.name != descriptor.name, "there is an operator {} already", descriptor.name);
  all.push_back(std::move(descriptor));
  return static_cast<Operator>(base::narrow<std::uint8_t>(all.size() - 1, "operators"));
}

std::string sizes_text(const Problem& problem) {
  const OperatorDescriptor& op = descriptor_of(problem.op);
  std::string text;
  for (std::size_t i = 0; i < op.sizes.size(); ++i)
    if (!op.sizes[i].empty()) text += fmt::format("{}{}={}", text.empty() ? "" : " ", op.sizes[i], size_at(problem, i));
  return text;
}

void expect_divides(const Problem& problem, std::string_view name, std::int64_t value) {
  IMBREX_EXPECTS(value % problem.ranks == 0, "{} = {} does not divide by {} ranks; {} splits it over the ranks", name,
                 value, problem.ranks, name_of(problem.op));
}

}  // namespace imbrex::problem

namespace imbrex {

void validate(const Problem& problem) {
  IMBREX_EXPECTS(problem.ranks >= 1 && problem.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", problem.ranks,
                 max_ranks);
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

std::string_view name_of(Operator op) {
  return static_cast<std::size_t>(op) < problem::operators().size() ? std::string_view(problem::descriptor_of(op).name)
                                                                    : "?";
}

Operator parse_operator(std::string_view name) {
  std::string known;
  const auto& all = problem::operators();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == name) return static_cast<Operator>(base::narrow<std::uint8_t>(i, "operators"));
    known += (known.empty() ? "" : ", ") + all[i].name;
  }
  IMBREX_EXPECTS(false, "'{}' is not an operator; it must be one of {}", base::printable(name), known);
  return {};
}

std::string_view name_of(Scales scales) { return base::find_name(problem::all_scales, scales); }
std::string_view name_of(TableRows rows) { return base::find_name(problem::all_table_rows, rows); }
Scales parse_scales(std::string_view name) { return base::find_value(problem::all_scales, name, "a kind of scales"); }
TableRows parse_table_rows(std::string_view name) {
  return base::find_value(problem::all_table_rows, name, "a type of rows");
}

}  // namespace imbrex
