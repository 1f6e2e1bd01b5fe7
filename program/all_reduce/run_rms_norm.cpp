// imbrex::run_all_reduce fused with a residual's addition and RMSNorm.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "base/hash.hpp"
#include "collectives/rms_norm.hpp"
#include "program/all_reduce/all_reduce_job.hpp"
#include "program/all_reduce/rms_norm_reference.hpp"
#include "program/operands.hpp"

namespace imbrex::program {
namespace {

AllReduceRmsNormOptions options_of(const AllReduceRequest& request) {
  return {.eps = request.rms_norm->eps,
          .algorithm = request.options.algorithm,
          .ctas = request.options.ctas,
          .weight_type = request.rms_norm->weight_type};
}

// A matrix that all ranks have: from a file, or from the seed. `which`: of seeded_value; 0 are the ranks' tensors.
std::vector<std::byte> shared(const AllReduceRequest& request, Type type, const std::string& path, std::uint64_t which,
                              std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  if (!path.empty())
    NpyFile(path).read(0, 0, rows, cols, values);
  else
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        values[static_cast<std::size_t>(i * cols + j)] = seeded_value(request.seed, which, i, j);
  return base::elements_of(type, values);
}

}  // namespace

void expect_rms_norm(const AllReduceRequest& request, std::int64_t rows, std::int64_t cols) {
  IMBREX_EXPECTS(!request.options.codec, "all_reduce: codec {} with an RMSNorm, which goes with exact sums only",
                 name_of(*request.options.codec));
  validate(options_of(request), rows, cols);
  collectives::expect_weight_type(request.rms_norm->weight_type, request.type);
  const auto expect_shape = [](const std::string& path, std::int64_t r, std::int64_t c) {
    if (path.empty()) return;
    const NpyFile file(path);
    IMBREX_EXPECTS(file.header().rows == r && file.header().cols == c, "{} is {} x {}; it must be {} x {}", path,
                   file.header().rows, file.header().cols, r, c);
  };
  expect_shape(request.rms_norm->residual_path, rows, cols);
  expect_shape(request.rms_norm->weight_path, 1, cols);
}

int run_rms_norm(World& world, const AllReduceRequest& request, Device device, const StackedTensors& source,
                 const std::function<void(const AllReduceResult&)>& report) {
  const Type type = request.type, weight_type = request.rms_norm->weight_type.value_or(type);
  const std::int64_t rows = source.rows(), hidden = source.cols();
  AllReduceRmsNorm op(world, rows, hidden, type, options_of(request), device);
  const std::vector<std::byte> residual = shared(request, type, request.rms_norm->residual_path, 1, rows, hidden),
                               weight = shared(request, weight_type, request.rms_norm->weight_path, 2, 1, hidden);
  DeviceTensor in(device, source.elements(world.rank())), residual_in(device, residual), weights(device, weight),
      residual_out(device, residual), out(device, residual);
  AllReduceResult result;
  result.rows = rows;
  result.cols = hidden;
  result.device = device;
  Verdict verdict;
  for (int i = 0; i < request.repeat; ++i) {
    residual_out.poison();
    out.poison();
    result.seconds.push_back(seconds_of(world, device, [&] {
      const auto matrix = [&](DeviceTensor& tensor) { return View::matrix(tensor.get(), type, rows, hidden); };
      op.run({{"in", matrix(in)},
              {"residual", matrix(residual_in)},
              {"weight", View::vector(weights.get(), weight_type, hidden)},
              {"residual_out", matrix(residual_out)},
              {"out", matrix(out)}});
    }));
    op.synchronize();
    verdict.note(i, base::hash_of(out.read(), base::hash_of(residual_out.read())));
  }
  const std::vector<float> x = base::floats_of(type, residual_out.read()), y = base::floats_of(type, out.read());
  result.report.algorithm = op.algorithm_of(rows);
  result.report.exact = true;
  result.report.non_finite = std::count_if(y.begin(), y.end(), [](float v) { return !std::isfinite(v); });
  if (!request.out_prefix.empty()) {
    write_npy(fmt::format("{}.rank{}.npy", request.out_prefix, world.rank()), rows, hidden, y);
    write_npy(fmt::format("{}.residual.rank{}.npy", request.out_prefix, world.rank()), rows, hidden, x);
  }
  if (request.verify) {
    std::vector<std::vector<float>> terms;
    for (int rank = 0; rank < world.size(); ++rank) terms.push_back(source.values(rank));
    terms.push_back(base::floats_of(type, residual));
    verdict.worst = compare(residual_reference(terms, type), x, type, hidden);
    const Comparison norm = compare(
        norm_reference(x, hidden, base::floats_of(weight_type, weight), request.rms_norm->eps, type), y, type, hidden);
    if (norm.worst > verdict.worst.worst) verdict.worst = norm;
  }
  const bool right = judge(world, request, verdict, "not", "its bound", result);
  if (world.rank() == 0) report(result);
  return right ? 0 : static_cast<int>(ErrorCode::unsound);
}

}  // namespace imbrex::program
