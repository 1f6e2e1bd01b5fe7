#include "own_operators.hpp"

#include <algorithm>

#include "program/explain.hpp"

namespace imbrex::cli {

std::vector<std::shared_ptr<OwnOperator>> own_operators() {
  return {make_all_reduce(), make_embedding_all_to_all(), make_jacobi(), make_sparse_triangular_solve()};
}

std::shared_ptr<OwnOperator> own_operator(std::string_view name) {
  for (auto& own : own_operators())
    if (own->name() == name) return std::move(own);
  return nullptr;
}

std::vector<std::string> operator_names(bool run_alone) {
  std::vector<std::string> names;
  for (const program::OperatorHelp& each : program::list_operators()) names.emplace_back(each.name);
  for (const auto& own : run_alone ? own_operators() : std::vector<std::shared_ptr<OwnOperator>>())
    if (std::find(names.begin(), names.end(), own->name()) == names.end()) names.emplace_back(own->name());
  return names;
}

void RunAlone::expect_plan() const {
  throw Error(ErrorCode::invalid_input,
              fmt::format("{0} has no plan: it can only be run, by `imbrex run {0}`", name()));
}

int OwnOperator::bench(const Program&, const BenchOptions&) const {
  throw Error(ErrorCode::invalid_input, fmt::format("operator '{}' is not one that is timed so", name()));
}

const OwnOperator* PlanOptions::asked_for() const {
  const auto find = [&](const auto& is) {
    const OwnOperator* found = nullptr;
    for (const auto& each : own)
      if (is(*each)) found = each.get();
    return found;
  };
  const OwnOperator* asked = find([&](const OwnOperator& each) { return each.name() == op; });
  for (const CLI::Option* option : app->get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    const OwnOperator* owner = find([&](const OwnOperator& each) { return each.group() == option->get_group(); });
    if (owner != nullptr && owner != asked)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is about {}{}{}", name, owner->name(), op.empty() ? "" : ", not ", op));
    if (asked != nullptr && owner == nullptr && !asked->shares(name))
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is about operators with a GEMM, not {}", name, asked->name()));
  }
  expect_type(asked);
  return asked;
}

void PlanOptions::expect_type(const OwnOperator* asked) const {
  if (!type_name.empty() && (asked == nullptr || !asked->has_type(type_name)))
    naming("--type: ", [&] { return parse_type(type_name); });
}

}  // namespace imbrex::cli
