#include "records/records.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

#include "base/json.hpp"
#include "base/text.hpp"
#include "imbrex/machine.hpp"
#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "plan/strategies/strategies.hpp"
#include "records/all_reduce_records.hpp"

namespace imbrex::records {
namespace {

constexpr int format_version = 1;

// Kinds of scales take different plans, and different times.
auto key_of(const Problem& p) { return std::tuple(p.op, p.type, p.scales, p.b_layout, p.ranks, p.n, p.k); }

Record record_of(const plan::Node& n) {
  n.only({"op", "type", "scales", "b_layout", "ranks", "m", "n", "k", "from_m", "to_m", "strategy", "knobs", "us",
          "sequential_us"});
  Record r;
  r.problem = {n["op"].name(parse_operator),   n["m"].integer<std::int64_t>(), n["n"].integer<std::int64_t>(),
               n["k"].integer<std::int64_t>(), n["ranks"].integer<int>(),      n["type"].name(parse_type)};
  if (n.has("scales")) r.problem.scales = n["scales"].name(parse_scales);
  if (r.problem.scales != Scales::none && r.problem.type != Type::e4m3)
    n["scales"].refuse(fmt::format("{} goes without scales", name_of(r.problem.type)));
  if (n.has("b_layout")) r.problem.b_layout = n["b_layout"].name(plan::parse_layout);
  r.m_low = n["from_m"].integer<std::int64_t>();
  r.m_high = n["to_m"].integer<std::int64_t>();
  r.candidate = {n["strategy"].name(parse_strategy), plan::knobs_of(n["knobs"])};
  r.seconds = seconds_of(n["us"]);
  r.sequential_seconds = seconds_of(n["sequential_us"]);
  try {
    validate(r.problem);
    plan::validate_knobs(r.problem, r.candidate.strategy, r.candidate.knobs);
  } catch (const Error& error) {
    n.refuse(error.what());
  }
  if (r.m_low < 1 || r.m_high < r.m_low) n.refuse("from_m and to_m must be a range of positive numbers");
  return r;
}

// Every rank reads them in the same order.
std::vector<std::filesystem::path> tables_in(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".json") paths.push_back(it->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::string b_layout_text(Layout layout) {
  return layout == Layout::row_major ? std::string() : fmt::format(", \"b_layout\": \"{}\"", plan::name_of(layout));
}

double seconds_of(const plan::Node& n) {
  const double microseconds = n.number();
  if (!(microseconds >= 0.1 && microseconds <= 1e12)) n.refuse("a time must be from 0.1 to 10^12 us");
  return microseconds * 1e-6;
}

bool same_entry(const Problem& a, const Problem& b) { return std::tuple(key_of(a), a.m) == std::tuple(key_of(b), b.m); }

void set_ranges(Records& records) {
  std::stable_sort(records.list.begin(), records.list.end(), [](const Record& x, const Record& y) {
    return std::tuple(key_of(x.problem), x.problem.m) < std::tuple(key_of(y.problem), y.problem.m);
  });
  const auto between = [](std::int64_t x, std::int64_t y) {
    return static_cast<std::int64_t>(std::sqrt(static_cast<double>(x) * static_cast<double>(y)));
  };
  for (std::size_t i = 0; i < records.list.size(); ++i) {
    Record& r = records.list[i];
    const std::int64_t m = r.problem.m;
    const bool first = i == 0 || key_of(records.list[i - 1].problem) != key_of(r.problem);
    const bool last = i + 1 == records.list.size() || key_of(records.list[i + 1].problem) != key_of(r.problem);
    r.m_low = first ? std::max<std::int64_t>(1, m / 2) : records.list[i - 1].m_high + 1;
    r.m_high = last ? 2 * m : between(m, records.list[i + 1].problem.m);
  }
}

Records parse_records(std::string_view text, std::string_view where) {
  const nlohmann::json json = base::parse_json(text, where);
  const plan::Node n(json, where);
  n.only({"imbrex_records", "gpu", "date", "records", "all_reduces", "products"});
  if (n["imbrex_records"].integer<int>() != format_version)
    n["imbrex_records"].refuse(fmt::format("this library reads format {}", format_version));
  Records records{n["gpu"].string(), n["date"].string(), {}};
  n["records"].each([&](const plan::Node& r) { records.list.push_back(record_of(r)); });
  if (n.has("all_reduces"))
    n["all_reduces"].each([&](const plan::Node& r) { records.all_reduces.push_back(all_reduce_record_of(r)); });
  if (n.has("products"))
    n["products"].each([&](const plan::Node& r) { records.products.push_back(product_record_of(r)); });
  return records;
}

std::string to_json(const Records& records) {
  const auto scales_of = [](const Problem& p) {
    return p.scales == Scales::none ? std::string() : fmt::format(", \"scales\": \"{}\"", name_of(p.scales));
  };
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string text = fmt::format("{{\"imbrex_records\": {}, \"gpu\": {}, \"date\": {}, \"records\": [", format_version,
                                 quoted(records.gpu), quoted(records.date));
  const char* separator = "\n";
  for (const Record& r : records.list) {
    text += fmt::format(
        "{}{{\"op\": \"{}\", \"type\": \"{}\"{}{}, \"ranks\": {}, \"m\": {}, \"n\": {}, \"k\": {}, \"from_m\": {}, "
        "\"to_m\": {}, \"us\": {:.1f}, \"sequential_us\": {:.1f}, \"strategy\": \"{}\",\n \"knobs\": {}}}",
        separator, name_of(r.problem.op), name_of(r.problem.type), scales_of(r.problem),
        b_layout_text(r.problem.b_layout), r.problem.ranks, r.problem.m, r.problem.n, r.problem.k, r.m_low, r.m_high,
        r.seconds * 1e6, r.sequential_seconds * 1e6, name_of(r.candidate.strategy), plan::to_json(r.candidate.knobs));
    separator = ",\n";
  }
  const auto add = [&](const char* name, const auto& list) {
    if (list.empty()) return;
    text += fmt::format("\n], \"{}\": [", name);
    const char* between = "\n";
    for (const auto& r : list) {
      text += between + to_json(r);
      between = ",\n";
    }
  };
  add("all_reduces", records.all_reduces);
  add("products", records.products);
  return text + "\n]}\n";
}

void expect_gpu(const std::string& of_table, const std::string& gpu) {
  IMBREX_EXPECTS(of_table == gpu, "the table is for GPUs named '{}', not '{}': each kind of GPU has a file of its own",
                 base::printable(of_table), base::printable(gpu));
}

Records load_records(const std::string& gpu) { return load_records(gpu, machine_folders()); }

Records load_records(const std::string& gpu, const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  Records all{gpu, {}, {}};
  for (const std::string& folder : folders) {
    Records found{gpu, {}, {}};
    for (const fs::path& path : tables_in(fs::path(folder) / "tuned")) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      Records records = parse_records(text, path.string());
      if (records.gpu != gpu) continue;
      move_all(records.list, found.list);
      move_all(records.all_reduces, found.all_reduces);
      move_all(records.products, found.products);
    }
    if (all.list.empty()) all.list = std::move(found.list);
    if (all.all_reduces.empty()) all.all_reduces = std::move(found.all_reduces);
    if (all.products.empty()) all.products = std::move(found.products);
    if (!all.list.empty() && !all.all_reduces.empty() && !all.products.empty()) break;
  }
  return all;
}

const Records& records_of(const std::string& gpu) {
  static std::mutex lock;
  static std::map<std::string, Records> read;
  const std::lock_guard guard(lock);
  const auto found = read.find(gpu);
  return found != read.end() ? found->second : read.emplace(gpu, load_records(gpu)).first->second;
}

}  // namespace imbrex::records
