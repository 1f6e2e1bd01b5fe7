#include "llama_mlp_reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace llama_mlp {
namespace {

using Matrix = std::vector<double>;

constexpr double u_bf16 = 0x1p-8, u_fp32 = 0x1p-24;

// A bound on fp32 sums of n terms in any order.
double gamma(std::int64_t n) { return static_cast<double>(n) * u_fp32 / (1 - static_cast<double>(n) * u_fp32); }

Matrix widened(const std::vector<std::uint16_t>& values) {
  Matrix wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(),
                 [](std::uint16_t v) { return static_cast<double>(widen(v)); });
  return wide;
}

Matrix absolute(Matrix m) {
  for (double& v : m) v = std::abs(v);
  return m;
}

Matrix product(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t cols, std::int64_t depth) {
  Matrix c(static_cast<std::size_t>(rows * cols));
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows), static_cast<int>(cols),
              static_cast<int>(depth), 1.0, a.data(), static_cast<int>(depth), b.data(), static_cast<int>(cols), 0.0,
              c.data(), static_cast<int>(cols));
  return c;
}

}  // namespace

double compare(const Tensors& tensors, const Sizes& s, int ranks, std::int64_t row, std::int64_t rows,
               const std::vector<std::uint16_t>& y) {
  const Matrix x = widened(tensors.x(row, rows)), w_up = widened(tensors.gate_and_up(0, s.inner)),
               w_down = widened(tensors.down(0, s.inner));
  const Matrix both = product(x, w_up, rows, 2 * s.inner, s.hidden);
  const Matrix both_abs = product(absolute(x), absolute(w_up), rows, 2 * s.inner, s.hidden);
  Matrix h(static_cast<std::size_t>(rows * s.inner)), h_error(h.size());
  const double g1 = gamma(s.hidden + 4);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < s.inner; ++j) {
      const auto gate_at = static_cast<std::size_t>(2 * i * s.inner + j),
                 up_at = gate_at + static_cast<std::size_t>(s.inner);
      const double gate = both[gate_at], up = both[up_at], silu = gate / (1 + std::exp(-gate));
      const double gate_error = g1 * both_abs[gate_at] * (1 + u_bf16) + u_bf16 * std::abs(gate);
      const double up_error = g1 * both_abs[up_at] * (1 + u_bf16) + u_bf16 * std::abs(up);
      // exp, division and two products in fp32: a few units each.
      const double silu_error = 1.1 * gate_error + 8 * u_fp32 * (std::abs(silu) + 1.1 * gate_error);
      const double exact_error = silu_error * (std::abs(up) + up_error) + std::abs(silu) * up_error;
      const auto at = static_cast<std::size_t>(i * s.inner + j);
      h[at] = silu * up;
      h_error[at] = exact_error + (u_bf16 + 2 * u_fp32) * (std::abs(h[at]) + exact_error);
    }
  const Matrix value = product(h, w_down, rows, s.hidden, s.inner);
  Matrix h_largest = absolute(h);
  for (std::size_t i = 0; i < h_largest.size(); ++i) h_largest[i] += h_error[i];
  const Matrix w_abs = absolute(w_down);
  const Matrix carried = product(h_error, w_abs, rows, s.hidden, s.inner),
               size = product(h_largest, w_abs, rows, s.hidden, s.inner);
  const double g2 = gamma(s.inner + ranks + 4);
  double worst = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    // Each rank's part is at most what its share of `size` is, so rounding all parts costs u times the whole.
    const double before_rounding = carried[i] + g2 * size[i] + u_bf16 * size[i] * (1 + g2);
    const double bound = before_rounding + u_bf16 * (std::abs(value[i]) + before_rounding);
    worst = std::max(worst, std::abs(static_cast<double>(widen(y[i])) - value[i]) / bound);
  }
  return worst;
}

}  // namespace llama_mlp
