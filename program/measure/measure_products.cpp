// Tuning cuBLASLt's products: jobs that measure its suggestions, and the table that comes of it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/check.hpp"
#include "execute/cuda/libraries/library_suggestions.hpp"
#include "plan/problem.hpp"
#include "program/measure/measure.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/measure/without_collectives.hpp"
#include "program/operand_memory.hpp"
#include "program/run_device.hpp"
#include "program/run_ranks.hpp"
#include "records/records.hpp"

namespace imbrex::program {
namespace {

// The problem of one rank that computes the product.
Problem problem_of(const plan::ProductSize& p) {
  return {Operator::gemm_reduce_scatter, p.m, p.n, p.k, 1, p.type, false, Scales::none, p.b_layout};
}

std::vector<plan::ProductSize> products_of(const std::vector<Problem>& problems) {
  std::vector<plan::ProductSize> products;
  for (const Problem& problem : problems) {
    validate(problem);
    const plan::ProductSize product = plan::product_of_rank(problem);
    if (std::find(products.begin(), products.end(), product) == products.end()) products.push_back(product);
  }
  return products;
}

ProductMeasurement measure_product(World& world, const ProductMeasureRequest& request,
                                   const plan::ProductSize& product) {
  const Problem problem = problem_of(product);
  const RankShapes shapes = shapes_of(problem);
  const auto random = [&](const Extent& e, std::uint64_t seed) {
    return random_bytes(e.rows * e.cols, product.type, seed);
  };
  ProductMeasurement result{{}, product.m, product.n, product.k, product.type, {{}}, product.b_layout};
  for (const auto& [tile, parts] : cuda::library_suggestions(problem)) result.ways.push_back({tile, parts});
  CudaOptions options;
  options.heap_bytes = 1 << 20;
  std::vector<std::unique_ptr<GemmOperator>> operators;
  for (const auto& way : result.ways)
    operators.push_back(
        operator_of(world,
                    without_collectives(make_plan(
                        problem, Strategy::sequential,
                        {.library_tile = way.tile, .library_parts = way.parts, .partial = output_type(product.type)})),
                    options));
  const auto memory =
      device_operands({random(shapes.a, 1), random(shapes.b, 2)}, problem, operators.front()->allocate_output());
  const std::vector<Operand> operands = memory->named();
  int runs = std::max(request.runs, 2);
  const auto sample = [&](std::size_t i) { return operators[i]->time(operands, runs); };
  if (request.runs == 0 && sample(0) < 5e-4) runs = 8;
  const std::vector<double> times = timed_in_turn(operators.size(), request.rounds, sample, 1, 0);
  for (std::size_t i = 0; i < times.size(); ++i) result.ways[i].seconds = times[i];
  return result;
}

plan::ProductSize product_of(const ProductMeasurement& m) { return {m.m, m.n, m.k, m.type, m.b_layout}; }

}  // namespace

const ProductMeasurement::Way& fastest(const ProductMeasurement& m) {
  return *std::min_element(m.ways.begin(), m.ways.end(),
                           [](const auto& x, const auto& y) { return x.seconds < y.seconds; });
}

int measure_products(const ProductMeasureRequest& request,
                     const std::function<void(const ProductMeasurement&)>& report) {
  IMBREX_EXPECTS(!request.problems.empty(), "there is no product to measure");
  IMBREX_EXPECTS(request.rounds >= 1 && request.runs >= 0 && request.runs % 2 == 0,
                 "{} rounds of {} runs: there must be one round at least, and an even number of runs", request.rounds,
                 request.runs);
  const std::vector<plan::ProductSize> products = products_of(request.problems);
  choose::GpuKind gpus;
  const std::string refusal = refusal_of_ranks(1, true, World::launched(), gpus, true);
  IMBREX_EXPECTS(refusal.empty(), "measuring needs a GPU: {}", refusal);
  if (!request.gpu.empty()) records::expect_gpu(request.gpu, gpus.name);
  WorldOptions options;
  options.wait_limit = request.wait_limit;
  options.heap_bytes = 1 << 20;
  return run_ranks(1, true, options, [&](World& world) {
    for (const plan::ProductSize& product : products) {
      ProductMeasurement measurement = measure_product(world, request, product);
      measurement.gpu = gpus.name;
      report(measurement);
    }
    return 0;
  });
}

std::string tuning_table(const std::vector<ProductMeasurement>& measurements, const std::string& date,
                         std::string_view before) {
  IMBREX_EXPECTS(!measurements.empty(), "there is no product to record");
  const std::string& gpu = measurements.front().gpu;
  records::Records records =
      before.empty() ? records::Records{gpu, date, {}} : records::parse_records(before, "the table so far");
  records::expect_gpu(records.gpu, gpu);
  records.date = date;
  for (const ProductMeasurement& m : measurements) {
    const plan::ProductSize product = product_of(m);
    const auto alike = [&](const plan::ProductSize& p) {
      return p == plan::ProductSize{p.m, m.n, m.k, m.type, m.b_layout};
    };
    std::erase_if(records.products, [&](const records::ProductRecord& r) { return r.product == product; });
    // What was measured of more rows, before, tells no longer of these or fewer.
    for (records::ProductRecord& r : records.products)
      if (alike(r.product) && r.m_low <= m.m && m.m < r.product.m) r.m_low = m.m + 1;
    const auto& first = m.ways.front();
    const auto& best = fastest(m);
    if (best.tile == 0 || best.seconds * 1.01 >= first.seconds) continue;
    // Up to the next number of rows that was measured, which speaks for itself.
    std::int64_t low = records::least_rows_alike(m.m);
    for (const ProductMeasurement& other : measurements)
      if (other.m < m.m && alike(product_of(other))) low = std::max(low, other.m + 1);
    records.products.push_back({product, low, m.m, best.tile, best.parts, best.seconds, first.seconds});
  }
  return to_json(records);
}

}  // namespace imbrex::program
