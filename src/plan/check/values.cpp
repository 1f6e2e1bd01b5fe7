#include "plan/check/values.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/narrow.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"

namespace imbrex::plan {

int Sums::intern(std::vector<Stretch> set) {
  std::vector<std::pair<std::int64_t, std::int64_t>> key;
  for (const Stretch& s : set) key.emplace_back(s.begin, s.end);
  const auto [place, fresh] = index_.insert({std::move(key), base::narrow<int>(sets_.size(), "sums")});
  if (fresh) sets_.push_back(std::move(set));
  return place->second;
}

std::optional<int> Sums::add(int x, int y) {
  const auto known = added_.find({x, y});
  if (known != added_.end()) return known->second;
  std::vector<Stretch> all = stretches(x);
  all.insert(all.end(), stretches(y).begin(), stretches(y).end());
  std::sort(all.begin(), all.end(), [](const Stretch& p, const Stretch& q) { return p.begin < q.begin; });
  std::vector<Stretch> merged;
  bool twice = false;
  for (const Stretch& s : all) {
    if (merged.empty() || merged.back().end < s.begin)
      merged.push_back(s);
    else if (merged.back().end == s.begin)
      merged.back().end = s.end;
    else
      twice = true;
  }
  const std::optional<int> sum = twice ? std::nullopt : std::optional<int>(intern(std::move(merged)));
  added_[{x, y}] = sum;
  return sum;
}

std::string Sums::text(int sum) const {
  std::string text;
  for (const Stretch& s : stretches(sum)) text += fmt::format("{}{}..{}", text.empty() ? "" : ", ", s.begin, s.end - 1);
  return text;
}

Value input_value(const Problem& problem, int rank, int buffer) {
  using Operand = OperandPlace::What;
  const RankShapes shapes = shapes_of(problem);
  const auto [operand, product] = operand_at(problem, buffer);
  const bool gather = problem.op == Operator::all_gather_gemm;
  const auto value = [](Value::What what, std::int64_t row, std::int64_t col) {
    return Value{what, row, col, -1, 0, 0};
  };
  const auto of_a = [&](Value::What what) {
    return gather ? value(what, rank * shapes.a.rows, 0) : value(what, 0, rank * shapes.depth);
  };
  const auto of_b = [&](Value::What what) {
    return gather ? value(what, 0, first_col_of(problem, product, rank)) : value(what, rank * shapes.depth, 0);
  };
  switch (operand) {
    case Operand::a: return of_a(Value::What::a);
    case Operand::a_scale: return of_a(Value::What::a_scale);
    case Operand::b_scale: return of_b(Value::What::b_scale);
    case Operand::bias: return value(Value::What::bias, 0, first_col_of(problem, product, rank));
    default: return of_b(Value::What::b);
  }
}

bool Wanted::wants_bias(const Problem& problem, int from) const {
  if (!problem.bias) return from < 0;
  return bias_of < 0 ? from >= 0 : from == bias_of;
}

Wanted wanted_output(const Problem& problem, int rank, std::int64_t row, int product) {
  const RankShapes shapes = shapes_of(problem);
  Wanted wanted{{Value::What::product, 0, 0, -1, 0, 0}, {0, problem.k}, shapes.out.rows};
  switch (problem.op) {
    case Operator::all_gather_gemm: wanted.value.col = first_col_of(problem, product, rank); break;
    case Operator::gemm_reduce_scatter: wanted.value.row = rank * shapes.out.rows; break;
    case Operator::gemm_all_reduce:
      if (is_packed(problem)) {
        const PackedPlace place = packed_place(problem, row);
        wanted.value.row = place.row - row;
        wanted.value.col = place.col;
        wanted.rows_end = place.end;
      }
      break;
    case Operator::gemm_all_to_all: {
      const std::int64_t block = problem.m / problem.ranks, source = row / block;
      wanted.value.row = (rank - source) * block;
      wanted.k = {source * problem.k, (source + 1) * problem.k};
      wanted.rows_end = (source + 1) * block;
      wanted.bias_of = base::narrow<int>(source, "ranks");
      break;
    }
  }
  return wanted;
}

}  // namespace imbrex::plan
