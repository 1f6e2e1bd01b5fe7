// How well the simulator predicts `sequential` (cuBLAS, then NCCL) on a measured machine.
//   simulator_accuracy BASELINE.json MACHINE.json REPORT.json
// The report holds every row's prediction, and the errors by operator.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "simulator/predict.hpp"

namespace {

using namespace imbrex;
using namespace imbrex::bench;
using Json = nlohmann::ordered_json;

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorCode::invalid_input, fmt::format("cannot read '{}'", path));
  return text.str();
}

std::vector<Row> read_rows(const Json& baseline) {
  std::vector<Row> rows;
  for (const auto& [name, list] : baseline.at("rows").items())
    for (const Json& r : list)
      rows.push_back({{parse_operator(name), r[1], r[2], r[3], baseline.at("ranks"),
                       parse_type(baseline.at("type").get<std::string>())},
                      r[0],
                      r[4].get<double>() * 1e-6,
                      r[6].get<double>() * 1e-6});
  return rows;
}

Json summary(const std::vector<double>& errors) {
  std::vector<double> sizes;
  double bias = 0, total = 0;
  for (const double e : errors) {
    sizes.push_back(std::abs(e));
    bias += e;
    total += std::abs(e);
  }
  std::sort(sizes.begin(), sizes.end());
  const auto n = static_cast<double>(sizes.size());
  const std::size_t half = sizes.size() / 2;
  const double median = sizes.size() % 2 == 1 ? sizes[half] : 0.5 * (sizes[half - 1] + sizes[half]);
  const auto percent = [](double x) { return std::round(x * 1e4) / 1e2; };
  return {{"rows", sizes.size()},
          {"mean_percent", percent(total / n)},
          {"median_percent", percent(median)},
          {"max_percent", percent(sizes.back())},
          {"bias_percent", percent(bias / n)}};
}

Json report(const std::vector<Row>& rows, const Machine& machine) {
  std::map<std::string, std::vector<double>> by_name;
  Json details = Json::array();
  for (const Row& row : rows) {
    const Prediction p = predict(row, machine);
    const double error = p.seconds / row.sequential - 1;
    const std::string op(name_of(row.problem.op));
    by_name[op].push_back(error);
    by_name["all"].push_back(error);
    by_name["gemm alone"].push_back(p.gemm / row.gemm - 1);
    const auto us = [](double seconds) { return std::round(seconds * 1e8) / 1e2; };
    details.push_back({{"op", op},
                       {"net", row.net},
                       {"m", row.problem.m},
                       {"n", row.problem.n},
                       {"k", row.problem.k},
                       {"tile", fmt::format("{}x{}", p.tile_m, p.tile_n)},
                       {"gemm_us", us(row.gemm)},
                       {"gemm_predicted_us", us(p.gemm)},
                       {"sequential_us", us(row.sequential)},
                       {"sequential_predicted_us", us(p.seconds)},
                       {"error_percent", std::round(error * 1e4) / 1e2}});
  }
  Json errors;
  for (const auto& [name, list] : by_name) errors[name] = summary(list);
  return {
      {"what", "simulated against measured time of sequential (cuBLAS, then NCCL); error = predicted / measured - 1"},
      {"machine", machine.name},
      {"errors", errors},
      {"rows", details}};
}

std::string text_of(const Json& report) {
  // One row a line, so that a change shows which rows it moved.
  std::string out = "{\n";
  for (const auto& [key, value] : report.items())
    if (key != "rows") out += fmt::format("  \"{}\": {},\n", key, value.is_object() ? value.dump(2) : value.dump());
  out += "  \"rows\": [\n";
  for (std::size_t i = 0; i < report.at("rows").size(); ++i)
    out += fmt::format("    {}{}\n", report.at("rows")[i].dump(), i + 1 < report.at("rows").size() ? "," : "");
  return out + "  ]\n}\n";
}

int run(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: simulator_accuracy BASELINE.json MACHINE.json REPORT.json\n", stderr);
    return 2;
  }
  const std::vector<Row> rows = read_rows(Json::parse(read(argv[1])));
  const Machine machine = parse_machine(read(argv[2]), argv[2]);
  const Json result = report(rows, machine);
  write_file(argv[3], text_of(result));
  std::puts(result.at("errors").dump(2).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const imbrex::Error& error) {
    std::fprintf(stderr, "simulator_accuracy: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulator_accuracy: %s\n", error.what());
    return 2;
  }
}
