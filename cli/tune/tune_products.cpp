// imbrex tune --products: which of cuBLASLt's suggestions multiplies fastest.
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

Json json_of(const program::ProductMeasurement& m) {
  Json ways = Json::array();
  for (const auto& way : m.ways)
    ways.push_back({{"tile", way.tile}, {"parts", way.parts}, {"us", microseconds(way.seconds)}});
  Json json{{"m", m.m}, {"n", m.n}, {"k", m.k}, {"type", name_of(m.type)}, {"ways", ways}};
  if (m.b_layout != Layout::row_major) json["b_layout"] = name_of_b_layout(m.b_layout);
  return json;
}

void print_head(const Program& program, const program::ProductMeasurement& m) {
  print(program, "products by cuBLASLt on one {}", m.gpu);
  print(program, "{:>6} {:>6} {:>6}  {:>9} {:>9} {:>6}  {}", "M", "N", "K", "first us", "best us", "gain",
        "its tile, and split-K");
}

void print_row(const Program& program, const program::ProductMeasurement& m) {
  const auto& first = m.ways.front();
  const auto& best = program::fastest(m);
  print(program, "{:6} {:6} {:6}  {:9.1f} {:9.1f} {:5.2f}x  {}", m.m, m.n, m.k, first.seconds * 1e6, best.seconds * 1e6,
        first.seconds / best.seconds, best.tile == 0 ? "the first" : fmt::format("{}, {}", best.tile, best.parts));
}

}  // namespace

int tune_products(const Program& program, program::ProductMeasureRequest request, const std::string& out) {
  const Table before = table_at(out);
  request.gpu = before.gpu;
  std::vector<program::ProductMeasurement> measurements;
  Json rows = Json::array();
  const int code = program::measure_products(request, [&](const program::ProductMeasurement& m) {
    if (measurements.empty()) print_head(program, m);
    print_row(program, m);
    measurements.push_back(m);
    rows.push_back(json_of(m));
    write_table(program, out, before, program::tuning_table(measurements, today(), before.text), false);
  });
  if (code != 0) return code;
  write_table(program, out, before, program::tuning_table(measurements, today(), before.text), true);
  print_json(program,
             {{"gpu", measurements.front().gpu}, {"date", today()}, {"rounds", request.rounds}, {"rows", rows}});
  return code;
}

}  // namespace imbrex::cli
