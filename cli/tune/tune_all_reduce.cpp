// imbrex tune --ops all_reduce: from which sizes on all-reduces take other ways.
#include <cmath>
#include <limits>

#include "imbrex/error.hpp"
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

// JSON has no infinity.
Json json_of(double seconds) { return std::isfinite(seconds) ? Json(microseconds(seconds)) : Json(nullptr); }

Json json_of(const program::AllReduceMeasurement& m) {
  Json times{{"one_shot", json_of(m.one_shot)}, {"two_shot", json_of(m.two_shot)}};
  for (const auto& [codec, seconds] : m.quantized) times[name_of(codec)] = json_of(seconds);
  return {{"bytes", m.bytes}, {"microseconds", times}};
}

Json json_of(const std::optional<std::int64_t>& bytes) { return bytes ? Json(*bytes) : Json(nullptr); }

std::string text_of(double seconds) {
  return std::isfinite(seconds) ? fmt::format("{:.2f}", seconds * 1e6) : std::string("-");
}

std::string text_of(const std::optional<std::int64_t>& bytes) {
  return bytes ? readable_bytes(static_cast<double>(*bytes)) : std::string("all sizes measured");
}

// At least as wide as a time.
std::size_t width_of(const std::string& name) { return std::max<std::size_t>(name.size(), 8); }

void print_row(const Program& program, const program::AllReduceMeasurement& m) {
  std::string line = fmt::format("{:>12}  {:>8}  {:>8}", m.bytes, text_of(m.one_shot), text_of(m.two_shot));
  for (const auto& [codec, seconds] : m.quantized)
    line += fmt::format("  {:>{}}", text_of(seconds), width_of(name_of(codec)));
  print(program, "{}", line);
}

void print_head(const Program& program, const program::AllReduceMeasurement& m) {
  print(program, "all-reduces of {} over {} x {}, microseconds", name_of(m.type), m.ranks, m.gpu);
  std::string line = fmt::format("{:>12}  {:>8}  {:>8}", "bytes", "one_shot", "two_shot");
  for (const auto& [codec, seconds] : m.quantized)
    line += fmt::format("  {:>{}}", name_of(codec), width_of(name_of(codec)));
  print(program, "{}", line);
}

void print_record(const Program& program, const records::AllReduceRecord& record) {
  print(program, "one shot below {}", text_of(record.one_shot_below));
  for (const auto& [codec, bytes] : record.codecs) print(program, "{}: exact below {}", name_of(codec), text_of(bytes));
}

Json json_of(const records::AllReduceRecord& record) {
  Json codecs = Json::object();
  for (const auto& [codec, bytes] : record.codecs) codecs[name_of(codec)] = json_of(bytes);
  return {{"one_shot_below", json_of(record.one_shot_below)}, {"exact_below", codecs}};
}

}  // namespace

std::vector<CodecPair> codecs_named(const std::vector<std::string>& names) {
  std::vector<CodecPair> codecs;
  for (const std::string& name : names) codecs.push_back(naming("--codecs: ", [&] { return parse_codec_pair(name); }));
  return codecs;
}

int tune_all_reduces(const Program& program, program::AllReduceMeasureRequest request, const std::string& out) {
  const Table before = table_at(out);
  request.gpu = before.gpu;
  std::vector<program::AllReduceMeasurement> measurements;
  Json rows = Json::array();
  const auto report = [&](const program::AllReduceMeasurement& m) {
    if (measurements.empty()) print_head(program, m);
    print_row(program, m);
    measurements.push_back(m);
    rows.push_back(json_of(m));
    if (m.bytes * 2 <= request.most) return;
    write_table(program, out, before, program::tuning_table(measurements, today(), before.text), true);
    const records::AllReduceRecord record = program::record_of(measurements, today());
    print_record(program, record);
    Json json{{"gpu", m.gpu},
              {"date", today()},
              {"ranks", m.ranks},
              {"type", name_of(m.type)},
              {"rounds", request.rounds},
              {"runs", request.runs},
              {"rows", rows}};
    json.update(json_of(record));
    print_json(program, json);
  };
  return program::measure_all_reduces(request, report);
}

}  // namespace imbrex::cli
