#include "plan/check/values.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/narrow.hpp"
#include "plan/builder.hpp"

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
  const RankShapes shapes = shapes_of(problem);
  const bool bias = problem.bias && buffer == buffer_bias;
  const bool a_scale = buffer == buffer_a_scale(problem), b_scale = buffer == buffer_b_scale(problem);
  const bool a = buffer == buffer_a || a_scale;
  const Value::What what = bias      ? Value::What::bias
                           : a_scale ? Value::What::a_scale
                           : b_scale ? Value::What::b_scale
                           : a       ? Value::What::a
                                     : Value::What::b;
  Value value{what, 0, 0, -1, 0, 0};
  if (bias) {
    if (problem.op == Operator::all_gather_gemm) value.col = rank * shapes.out.cols;
    return value;
  }
  if (problem.op == Operator::all_gather_gemm) {
    if (a)
      value.row = rank * shapes.a.rows;
    else
      value.col = rank * shapes.b.cols;
  } else {
    (a ? value.col : value.row) = rank * shapes.depth;
  }
  return value;
}

bool Wanted::wants_bias(const Problem& problem, int from) const {
  if (!problem.bias) return from < 0;
  return bias_of < 0 ? from >= 0 : from == bias_of;
}

Wanted wanted_output(const Problem& problem, int rank, std::int64_t row) {
  const RankShapes shapes = shapes_of(problem);
  Wanted wanted{{Value::What::product, 0, 0, -1, 0, 0}, {0, problem.k}, shapes.out.rows};
  switch (problem.op) {
    case Operator::all_gather_gemm: wanted.value.col = rank * shapes.out.cols; break;
    case Operator::gemm_reduce_scatter: wanted.value.row = rank * shapes.out.rows; break;
    case Operator::gemm_all_reduce: break;
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
