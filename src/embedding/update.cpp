#include "embedding/update.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "embedding/rows.hpp"

namespace imbrex::embedding {
namespace {

// An index that is a row.
struct Use {
  std::int64_t row;  // among all tables'
  std::int64_t position, bag;
};

// By position; `shares`: of each bag's mean.
std::vector<Use> uses_of(const Tables& tables, const Bags& bags, std::vector<float>& shares) {
  std::vector<Use> uses;
  std::int64_t base = 0;
  for (std::int32_t t = 0; t < tables.count; ++t) {
    for (std::int64_t bag = t * bags.batch; bag < (t + 1) * bags.batch; ++bag) {
      const std::size_t before = uses.size();
      const std::int64_t end = index_at(bags.offsets, bags.type, bag + 1);
      for (std::int64_t k = index_at(bags.offsets, bags.type, bag); k < end; ++k) {
        const std::int64_t index = index_at(bags.indices, bags.type, k);
        if (index >= 0 && index < tables.tables[t].count) uses.push_back({base + index, k, bag});
      }
      const auto added = static_cast<float>(std::max<std::size_t>(1, uses.size() - before));
      shares.push_back(bags.pooling == Pooling::mean ? 1.0f / added : 1.0f);
    }
    base += tables.tables[t].count;
  }
  return uses;
}

const std::byte* gradient_of(const Tables& tables, const Bags& bags, const Output& gradients, std::int64_t bag) {
  const std::int64_t part_rows = bags.batch / gradients.ranks, row = bag % bags.batch;
  return static_cast<const std::byte*>(gradients.parts[row / part_rows]) +
         (row % part_rows * gradients.pitch + tables.tables[bag / bags.batch].column) *
             static_cast<std::int64_t>(size_of(gradients.type));
}

// The sum of squares as a warp adds it: lane l has columns 4 (l + 32 i) to 4 (l + 32 i) + 3.
float sum_of_squares(const float* gradient, std::int32_t dim) {
  float lanes[32] = {};
  for (std::int32_t i = 0; i < dim; ++i) {
    float& lane = lanes[i / 4 % 32];
    lane = codec::multiply_add(gradient[i], gradient[i], lane);
  }
  for (int step = 16; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

void apply(const Table& table, TableRows type, const Step& step, std::int64_t row, float* state,
           const float* gradient) {
  float factor = step.rate, values[most_dim];
  if (step.optimizer == Optimizer::row_wise_adagrad) {
    *state += sum_of_squares(gradient, table.dim) / static_cast<float>(table.dim);
    factor = step.rate / (std::sqrt(*state) + step.epsilon);
  }
  read_row(table, type, row, values);
  for (std::int32_t i = 0; i < table.dim; ++i) values[i] = codec::multiply_add(-factor, gradient[i], values[i]);
  base::from_float(type_of(type), values, static_cast<std::byte*>(table.rows) + row * table.pitch, table.dim);
}

}  // namespace

void check_step(const Tables& tables, const Step& step) {
  IMBREX_EXPECTS(tables.type != TableRows::int8, "rows of int8 cannot be updated: fp32, fp16 and bf16 can");
  std::int64_t rows = 0;
  for (std::int32_t t = 0; t < tables.count; ++t) rows += tables.tables[t].count;
  IMBREX_EXPECTS(rows <= 0xfffffffe, "{} rows in all tables: an update takes at most {}", rows, 0xfffffffeu);
  IMBREX_EXPECTS(std::isfinite(step.rate) && std::isfinite(step.epsilon) && step.epsilon >= 0,
                 "rate = {}, epsilon = {}: they must be finite, and epsilon not negative", step.rate, step.epsilon);
  if (step.optimizer == Optimizer::row_wise_adagrad)
    for (std::int32_t t = 0; t < tables.count; ++t)
      IMBREX_EXPECTS(step.states != nullptr && (tables.tables[t].count == 0 || step.states[t] != nullptr),
                     "table {}: row_wise_adagrad needs its states", t);
}

std::int64_t update(const Tables& tables, const Bags& bags, const Output& gradients, const Step& step) {
  check_step(tables, step);
  std::vector<float> shares;
  std::vector<Use> uses = uses_of(tables, bags, shares);
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.row < b.row; });
  std::vector<std::int64_t> bases{0};
  for (std::int32_t t = 0; t < tables.count; ++t) bases.push_back(bases.back() + tables.tables[t].count);
  float sum[most_dim], tile[most_dim], gradient[most_dim];
  const std::int64_t count = std::ssize(uses);
  for (std::int64_t i = 0, begin = 0; i < count; ++i) {
    const Use& use = uses[static_cast<std::size_t>(i)];
    const auto t = static_cast<std::size_t>(use.bag / bags.batch);
    const Table& table = tables.tables[t];
    if (i == begin || i % tile_indices == 0) std::fill_n(tile, table.dim, 0.0f);
    const float weight = bags.weights == nullptr ? 1.0f : bags.weights[use.position];
    const float scale = codec::product(weight, shares[static_cast<std::size_t>(use.bag)]);
    base::to_float(gradients.type, gradient_of(tables, bags, gradients, use.bag), gradient, table.dim);
    for (std::int32_t j = 0; j < table.dim; ++j) tile[j] = codec::multiply_add(scale, gradient[j], tile[j]);
    const bool ends = i + 1 == count || uses[static_cast<std::size_t>(i + 1)].row != use.row;
    if (!ends && (i + 1) % tile_indices != 0) continue;
    const bool first = i / tile_indices == begin / tile_indices;
    for (std::int32_t j = 0; j < table.dim; ++j) sum[j] = first ? tile[j] : sum[j] + tile[j];
    if (!ends) continue;
    const std::int64_t row = use.row - bases[t];
    apply(table, tables.type, step, row, step.optimizer == Optimizer::row_wise_adagrad ? step.states[t] + row : nullptr,
          sum);
    begin = i + 1;
  }
  const std::int64_t all = tables.count * bags.batch;
  return index_at(bags.offsets, bags.type, all) - index_at(bags.offsets, bags.type, 0) - count;
}

BoundedTable bounded_table(const Tables& tables, const Step& step, std::int32_t t) {
  const Table& table = tables.tables[t];
  BoundedTable b;
  float values[most_dim];
  for (std::int64_t r = 0; r < table.count; ++r) {
    read_row(table, tables.type, r, values);
    b.values.insert(b.values.end(), values, values + table.dim);
    b.states.push_back(step.optimizer == Optimizer::row_wise_adagrad ? double{step.states[t][r]} : 0.0);
  }
  b.bounds.resize(b.values.size());
  b.state_bounds.resize(b.states.size());
  return b;
}

void reference_step(const Tables& tables, const Bags& bags, const Output& gradients, const Step& step, std::int32_t t,
                    BoundedTable& bounded) {
  constexpr double u = 0x1p-24;
  const Table& table = tables.tables[t];
  const auto dim = static_cast<std::size_t>(table.dim);
  std::vector<double> sums(bounded.values.size()), magnitudes(sums.size()), counts(bounded.states.size());
  float gradient[most_dim];
  for (std::int64_t bag = t * bags.batch; bag < (t + 1) * bags.batch; ++bag) {
    const std::int64_t begin = index_at(bags.offsets, bags.type, bag);
    const std::int64_t end = index_at(bags.offsets, bags.type, bag + 1);
    const auto is_row = [&](std::int64_t k) {
      const std::int64_t index = index_at(bags.indices, bags.type, k);
      return index >= 0 && index < table.count;
    };
    double added = 0;
    for (std::int64_t k = begin; k < end; ++k) added += is_row(k) ? 1 : 0;
    base::to_float(gradients.type, gradient_of(tables, bags, gradients, bag), gradient, table.dim);
    for (std::int64_t k = begin; k < end; ++k) {
      if (!is_row(k)) continue;
      const auto row = static_cast<std::size_t>(index_at(bags.indices, bags.type, k));
      const double scale =
          (bags.weights == nullptr ? 1.0 : double{bags.weights[k]}) / (bags.pooling == Pooling::mean ? added : 1.0);
      for (std::size_t i = 0; i < dim; ++i) {
        sums[row * dim + i] += scale * double{gradient[i]};
        magnitudes[row * dim + i] += std::abs(scale * double{gradient[i]});
      }
      counts[row] += 1;
    }
  }
  const double rounding = tables.type == TableRows::fp32 ? 0 : unit_roundoff(type_of(tables.type));
  const double least = tables.type == TableRows::fp16 ? 0x1p-25 : tables.type == TableRows::bf16 ? 0x1p-134 : 0x1p-150;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    const double roundings = (counts[r] + 3) * u, share = roundings / (1 - roundings);
    double low = std::abs(double{step.rate}), high = low;
    double factor = double{step.rate};
    if (step.optimizer == Optimizer::row_wise_adagrad) {
      double squares = 0, error = 0;
      for (std::size_t i = r * dim; i < (r + 1) * dim; ++i) {
        const double off = share * magnitudes[i];
        squares += sums[i] * sums[i];
        error += 2 * std::abs(sums[i]) * off + off * off;
      }
      const double terms = (static_cast<double>(dim) + 2) * u, mean = squares / static_cast<double>(dim);
      const double mean_error = (error + terms / (1 - terms) * (squares + error)) / static_cast<double>(dim);
      bounded.states[r] += mean;
      bounded.state_bounds[r] += mean_error;
      bounded.state_bounds[r] += u * (bounded.states[r] + bounded.state_bounds[r]);
      const auto factor_of = [&](double state) {
        return double{step.rate} / (std::sqrt(std::max(0.0, state)) + double{step.epsilon});
      };
      factor = factor_of(bounded.states[r]);
      low = std::abs(factor_of(bounded.states[r] + bounded.state_bounds[r])) * (1 - 4 * u);
      high = std::abs(factor_of(bounded.states[r] - bounded.state_bounds[r])) * (1 + 4 * u);
    }
    const double factor_error = std::max(high - std::abs(factor), std::abs(factor) - low);
    for (std::size_t i = r * dim; i < (r + 1) * dim; ++i) {
      const double off = share * magnitudes[i];
      bounded.values[i] -= factor * sums[i];
      double& bound = bounded.bounds[i];
      bound += factor_error * (std::abs(sums[i]) + off) + std::abs(factor) * off;
      bound += u * (std::abs(bounded.values[i]) + bound);
      bound += std::max(rounding * (std::abs(bounded.values[i]) + bound), least);
    }
  }
}

}  // namespace imbrex::embedding
