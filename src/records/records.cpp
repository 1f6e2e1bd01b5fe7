#include "records/records.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "base/json.hpp"
#include "base/text.hpp"
#include "imbrex/machine.hpp"
#include "plan/json/names.hpp"
#include "plan/json/node.hpp"
#include "plan/strategies/strategies.hpp"
#include "records/all_reduce_records.hpp"

namespace imbrex::records {
namespace {

namespace fs = std::filesystem;

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
std::vector<fs::path> tables_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".json") paths.push_back(it->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool same_but_for_range(const Record& x, const Record& y) {
  return x.candidate.strategy == y.candidate.strategy && x.candidate.knobs == y.candidate.knobs &&
         x.seconds == y.seconds && x.sequential_seconds == y.sequential_seconds;
}
bool same_but_for_range(const ProductRecord& x, const ProductRecord& y) { return x == y; }
bool same_but_for_range(const AllReduceRecord& x, const AllReduceRecord& y) { return x == y; }

// What the tables of all folders say, entry by entry: that of the first one counts.
Records merged(const std::string& gpu, const std::vector<std::vector<Records>>& folders) {
  Records all{gpu, {}, {}};
  std::map<std::tuple<Operator, Type, Scales, Layout, int, std::int64_t, std::int64_t>, std::size_t> layers;
  std::set<std::tuple<Operator, Type, Scales, Layout, int, std::int64_t, std::int64_t, std::int64_t>> problems;
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, Type, Layout>> products;
  std::set<std::pair<int, Type>> all_reduces;
  std::size_t table = 0;
  bool mixed = false;
  for (const std::vector<Records>& tables : folders) {
    const auto before = all_reduces;
    for (auto t = tables.begin(); t != tables.end(); ++t, ++table) {
      for (const Record& r : t->list) {
        mixed |= layers.try_emplace(key_of(r.problem), table).first->second != table;
        if (problems.insert(std::tuple_cat(key_of(r.problem), std::tuple(r.problem.m))).second) all.list.push_back(r);
      }
      for (const ProductRecord& r : t->products) {
        const plan::ProductSize& p = r.product;
        if (products.emplace(p.m, p.n, p.k, p.type, p.b_layout).second) all.products.push_back(r);
      }
      // They have dates of their own, of which the latest answers.
      for (const AllReduceRecord& r : t->all_reduces) {
        all_reduces.emplace(r.ranks, r.type);
        if (!before.contains({r.ranks, r.type})) all.all_reduces.push_back(r);
      }
    }
  }
  // Ranges of M end where another table's begin.
  if (mixed) set_ranges(all);
  return all;
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

TableChange change_between(const Records& before, const Records& after) {
  TableChange change;
  const auto count = [&](const auto& old, const auto& now, auto&& same) {
    for (const auto& entry : now) {
      const auto known = std::find_if(old.begin(), old.end(), [&](const auto& other) { return same(entry, other); });
      if (known == old.end())
        ++change.added;
      else
        // Ranges move where entries come between.
        ++(same_but_for_range(entry, *known) ? change.kept : change.replaced);
    }
  };
  count(before.list, after.list, [](const Record& x, const Record& y) { return same_entry(x.problem, y.problem); });
  count(before.products, after.products, [](const auto& x, const auto& y) { return x.product == y.product; });
  count(before.all_reduces, after.all_reduces,
        [](const AllReduceRecord& x, const AllReduceRecord& y) { return x.ranks == y.ranks && x.type == y.type; });
  return change;
}

void expect_gpu(const std::string& of_table, const std::string& gpu) {
  IMBREX_EXPECTS(of_table == gpu, "the table is for GPUs named '{}', not '{}': each kind of GPU has a file of its own",
                 base::printable(of_table), base::printable(gpu));
}

Records load_records(const std::string& gpu) { return load_records(gpu, machine_folders()); }

Records load_records(const std::string& gpu, const std::vector<std::string>& folders) {
  std::vector<std::vector<Records>> read;
  std::set<std::string> texts;  // a library finds what it came with where it was installed and where it was built
  for (const std::string& folder : folders) {
    std::vector<Records>& tables = read.emplace_back();
    for (const fs::path& path : tables_in(fs::path(folder) / "tuned")) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (!texts.insert(text).second) continue;
      Records table = parse_records(text, path.string());
      if (table.gpu == gpu) tables.push_back(std::move(table));
    }
    // The latest first, of these the last by name.
    std::reverse(tables.begin(), tables.end());
    std::stable_sort(tables.begin(), tables.end(), [](const Records& x, const Records& y) { return x.date > y.date; });
  }
  return merged(gpu, read);
}

const Records& records_of(const std::string& gpu) {
  static std::mutex lock;
  static std::map<std::string, Records> read;
  const std::lock_guard guard(lock);
  const auto found = read.find(gpu);
  return found != read.end() ? found->second : read.emplace(gpu, load_records(gpu)).first->second;
}

}  // namespace imbrex::records
