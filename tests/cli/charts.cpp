// Writes charts with many curves, long names and crowded values to a folder, for chart_test.py: charts FOLDER
#include <cstdio>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include "output/measured.hpp"

namespace imbrex::cli {
namespace {

void write(const std::string& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder + "/" + name, std::ios::binary) << text;
}

Chart random_chart(std::mt19937_64& random, bool log_x) {
  const auto up_to = [&](std::uint64_t most) { return random() % (most + 1); };
  Chart chart;
  chart.title = "a title <of> & \"this\" " + std::string(up_to(150), 'W');
  chart.source = std::string(up_to(200), 'm') + " measured";
  chart.x_title = "M, rows of A";
  chart.y_title = "speed-up " + std::string(up_to(60), 'y');
  chart.line_name = "cuBLAS, then NCCL: 1";
  chart.log_x = log_x;
  const double scale = std::pow(10.0, static_cast<double>(up_to(6)) - 2);
  for (std::uint64_t i = up_to(40); i > 0; --i) {
    Curve curve{"curve " + std::string(up_to(60), 'x'), {}, up_to(3) == 0};
    double x = static_cast<double>(1 + up_to(2000));
    for (std::uint64_t n = up_to(60); n > 0; --n, x += static_cast<double>(1 + up_to(3000)))
      curve.points.emplace_back(x, scale * static_cast<double>(up_to(1000)) / 1000);
    chart.curves.push_back(std::move(curve));
  }
  return chart;
}

program::Measurement measurement(Operator op, std::int64_t m, std::int64_t n, double sequential, double chosen,
                                 double fastest) {
  program::Measurement result;
  result.problem = {op, m, n, 4096, 4, Type::bf16};
  result.product_seconds = 10e-6;
  result.wire_seconds = 5e-6;
  result.gpu = "A GPU, \"quoted\"";
  const auto plan = [](Strategy strategy, double us, bool is_chosen) {
    program::Measured measured;
    measured.strategy = strategy;
    measured.seconds = us * 1e-6;
    measured.chosen = is_chosen;
    return measured;
  };
  result.plans = {plan(Strategy::sequential, sequential, false), plan(Strategy::fused, chosen, true),
                  plan(Strategy::decomposed, fastest, false)};
  return result;
}

int run(const std::string& folder) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 60; ++i) write(folder, fmt::format("random{}.svg", i), to_svg(random_chart(random, i % 2 == 0)));
  write(folder, "empty.svg", to_svg(Chart{}));
  const std::vector<program::Measurement> rows{measurement(Operator::gemm_reduce_scatter, 512, 8192, 30, 20, 15),
                                               measurement(Operator::gemm_reduce_scatter, 64, 8192, 12, 24, 24),
                                               measurement(Operator::all_gather_gemm, 64, 4096, 20, 20, 40)};
  for (const bool tuned : {false, true}) {
    const std::string name = tuned ? "tune" : "bench";
    write(folder, name + ".csv", csv_of(rows, tuned, "2026-01-02"));
    write(folder, name + ".svg", to_svg(chart_of(rows, tuned, "2026-01-02")));
  }
  return 0;
}

}  // namespace
}  // namespace imbrex::cli

int main(int argc, char** argv) { return argc == 2 ? imbrex::cli::run(argv[1]) : 2; }
