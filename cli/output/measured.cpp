#include "output/measured.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "imbrex/plan.hpp"

namespace imbrex::cli {
namespace {

double us(double seconds) { return seconds * 1e6; }

double gain_of(const program::Measurement& m, bool tuned) {
  return m.plans.front().seconds / plan_shown(m, tuned).seconds;
}

}  // namespace

std::string name_of_plan(const program::Measured& m) {
  const Knobs& k = m.knobs;
  const std::string_view collectives = k.transport == Transport::store ? ", own collectives" : "";
  std::string tile;
  if (k.library_tile > 0) tile = fmt::format(", cuBLASLt's tile {}", k.library_tile);
  if (k.library_tile > 0 && k.library_parts > 1) tile += fmt::format(" in {} parts", k.library_parts);
  if (m.strategy == Strategy::sequential) return fmt::format("sequential{}{}", collectives, tile);
  if (m.strategy == Strategy::decomposed) return fmt::format("decomposed in {}{}{}", k.chunks, collectives, tile);
  std::string text =
      fmt::format("fused {}x{}x{} {} {}", k.tile_m, k.tile_n, k.cluster, name_of(k.transport), name_of(k.order));
  if (k.order == TileOrder::column_major)
    text += k.own_shift >= 1 << 20 ? " own first" : fmt::format(" shift {}", k.own_shift);
  if (k.abreast > 0) text += fmt::format(" abreast {}", k.abreast);
  text += fmt::format(" group {}", k.group);
  if (k.k_slices > 1) text += fmt::format(" {} slices", k.k_slices);
  if (k.cluster_k > 1) text += " sharing K";
  if (k.split_k > 1) text += fmt::format(" split {}", k.split_k);
  if (k.span_shards) text += " spanning";
  if (k.one_shot) text += " one-shot";
  return text;
}

const program::Measured& plan_shown(const program::Measurement& m, bool tuned) {
  if (tuned) return program::fastest(m);
  return *std::find_if(m.plans.begin(), m.plans.end(), [](const program::Measured& x) { return x.chosen; });
}

std::string csv_of(const std::vector<program::Measurement>& measurements, bool tuned, const std::string& date) {
  std::string text = csv_line({"gpu", "date", "ranks", "operator", "type", "m", "n", "k", "roofline_us",
                               "sequential_us", "imbrex_us", "of_the_roofline", "speed_up_over_sequential", "plan"});
  for (const program::Measurement& m : measurements) {
    const Problem& p = m.problem;
    const program::Measured& plan = plan_shown(m, tuned);
    const double roofline = program::roofline_seconds(m);
    const auto number = [](double value) { return fmt::format("{:.4g}", value); };
    text += csv_line({m.gpu, date, fmt::format("{}", p.ranks), std::string(name_of(p.op)), std::string(name_of(p.type)),
                      fmt::format("{}", p.m), fmt::format("{}", p.n), fmt::format("{}", p.k),
                      fmt::format("{:.2f}", us(roofline)), fmt::format("{:.2f}", us(m.plans.front().seconds)),
                      fmt::format("{:.2f}", us(plan.seconds)), number(roofline / plan.seconds),
                      number(gain_of(m, tuned)), name_of_plan(plan)});
  }
  return text;
}

Chart chart_of(const std::vector<program::Measurement>& measurements, bool tuned, const std::string& date) {
  Chart chart;
  if (!measurements.empty()) {
    const program::Measurement& first = measurements.front();
    chart.title = fmt::format("GEMMs with collectives, {} x {}", first.problem.ranks, first.gpu);
    chart.source = fmt::format("measured {}, {} plans", date, tuned ? "the fastest" : "chosen");
  }
  chart.x_title = "M, rows of A";
  chart.y_title = "speed-up over cuBLAS, then NCCL";
  chart.line_name = "cuBLAS, then NCCL: 1";
  chart.log_x = true;
  for (const program::Measurement& m : measurements) {
    const std::string name = fmt::format("{} {}x{}", name_of(m.problem.op), m.problem.n, m.problem.k);
    auto curve = std::find_if(chart.curves.begin(), chart.curves.end(), [&](const Curve& c) { return c.name == name; });
    if (curve == chart.curves.end()) curve = chart.curves.insert(curve, Curve{name, {}, false});
    curve->points.emplace_back(static_cast<double>(m.problem.m), gain_of(m, tuned));
  }
  for (Curve& curve : chart.curves) std::sort(curve.points.begin(), curve.points.end());
  return chart;
}

}  // namespace imbrex::cli
