// Compares what the tuned plans run, in how long by the simulator, and on which kernel, with what it was.
//
//   goldens ROOT                     exits 1 where a line of ROOT/tests/golden/records.txt differs, and names it
//   goldens ROOT --write             writes that file anew
//   goldens ROOT [--records FILE] [--only TEXT]    compares with another file; only plans with TEXT in their names
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "choose/choose_gpu.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/machine.hpp"
#include "plan/digest.hpp"
#include "records/records.hpp"
#include "support/kernel_list.hpp"

namespace {

using namespace imbrex;

constexpr std::string_view head =
    "# What each tuned plan runs: name; tasks; digest (src/plan/digest.hpp); simulated seconds; kernel. "
    "Written by the program `goldens` (CONTRIBUTING.md).\n";

struct Subject {
  std::string name;
  Problem problem;
  std::optional<plan::Candidate> candidate;  // none: the fused plan that one H200 is given
};

struct Golden {
  std::size_t tasks = 0;
  std::uint64_t digest = 0;
  double seconds = 0;
  std::string kernel;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  IMBREX_EXPECTS(file.good(), "{}: this file cannot be read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string name_of(std::string_view table, const Problem& p) {
  return fmt::format("{} {} {}{}{} {}x{}x{}", table, imbrex::name_of(p.op), imbrex::name_of(p.type),
                     p.scales == Scales::none ? "" : "/", p.scales == Scales::none ? "" : imbrex::name_of(p.scales),
                     p.m, p.n, p.k);
}

// The records of tuned plans, and the products that were measured alone.
std::vector<Subject> subjects_in(const std::string& root) {
  std::vector<Subject> subjects;
  for (const std::string table : {"2xh200", "4xh200"}) {
    const std::string path = fmt::format("{}/machines/tuned/{}.json", root, table);
    for (const records::Record& r : records::parse_records(text_of(path), path).list)
      subjects.push_back({name_of(table, r.problem), r.problem, r.candidate});
  }
  const auto products = nlohmann::json::parse(text_of(root + "/bench/results/product-h200.json"));
  for (const auto& row : products.at("rows")) {
    const auto& p = row.at("problem");
    const Problem problem{parse_operator(p.at("operator").get<std::string>()),
                          p.at("m").get<std::int64_t>(),
                          p.at("n").get<std::int64_t>(),
                          p.at("k").get<std::int64_t>(),
                          p.at("ranks").get<int>(),
                          parse_type(p.at("type").get<std::string>()),
                          p.at("bias").get<bool>()};
    subjects.push_back({name_of("product", problem), problem, {}});
  }
  return subjects;
}

class Maker {
 public:
  explicit Maker(const std::string& root)
      : kernels_(test::read_kernel_list(root + "/tests/golden/kernels.txt")),
        simulator_(make_simulator(load_machine(root + "/machines/4xh200.json"))) {}

  Golden make(const Subject& s) const try {
    const auto [strategy, knobs] =
        s.candidate ? *s.candidate : choose::choose_gpu_candidate(s.problem, Strategy::fused, {}, {"NVIDIA H200", 9});
    const Plan plan = make_plan(s.problem, strategy, knobs);
    const auto tasks = plan::make_rank_tasks(s.problem, strategy, knobs, 0);
    return {count_tasks(plan), plan::digest_of(plan), simulator_->prepare(plan)->run({}).seconds,
            test::kernel_of(*tasks, kernels_)};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", s.name, error.what()));
  }

 private:
  test::KernelList kernels_;
  std::unique_ptr<Executor> simulator_;
};

std::string line_of(const std::string& name, const Golden& g) {
  return fmt::format("{} | {} | {:016x} | {} | {}", name, g.tasks, g.digest, g.seconds, g.kernel);
}

// By name: the lines as they were, whose fields are compared as text except the seconds.
using Lines = std::map<std::string, std::vector<std::string>>;

std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields;
  constexpr std::string_view between = " | ";
  for (std::size_t end; (end = line.find(between)) != std::string_view::npos; line.remove_prefix(end + between.size()))
    fields.emplace_back(line.substr(0, end));
  fields.emplace_back(line);
  return fields;
}

Lines read_lines(const std::string& path) {
  Lines lines;
  std::istringstream in(text_of(path));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    std::vector<std::string> fields = fields_of(line);
    IMBREX_EXPECTS(fields.size() == 5, "{}: a line must have five fields: {}", path, line);
    const std::string name = fields.front();
    IMBREX_EXPECTS(lines.emplace(name, std::move(fields)).second, "{}: there are two lines of {}", path, name);
  }
  return lines;
}

// Rounding differs between compilers.
bool same_seconds(const std::string& x, double y) {
  double value = 0;
  std::istringstream in(x);
  return in >> value && std::abs(value - y) <= 1e-9 * std::abs(y);
}

// Empty: nothing.
std::string difference(const std::vector<std::string>& was, const std::string& name, const Golden& is) {
  constexpr std::string_view what[] = {"name", "tasks", "digest", "seconds", "kernel"};
  const std::vector<std::string> now = fields_of(line_of(name, is));
  std::string text;
  for (std::size_t i = 1; i < now.size(); ++i)
    if (was[i] != now[i] && !(what[i] == "seconds" && same_seconds(was[i], is.seconds)))
      text += fmt::format("{} {} {} -> {}", text.empty() ? "" : ",", what[i], was[i], now[i]);
  return text;
}

int compare(const std::vector<Subject>& subjects, const std::vector<Golden>& goldens, Lines was, bool all) {
  std::size_t different = 0;
  const auto report = [&](const std::string& name, const std::string& how) {
    ++different;
    fmt::print("{}:{}\n", name, how);
  };
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const std::string& name = subjects[i].name;
    const auto found = was.find(name);
    if (found == was.end()) {
      report(name, " has no line");
      continue;
    }
    if (const std::string how = difference(found->second, name, goldens[i]); !how.empty()) report(name, how);
    was.erase(found);
  }
  if (all)
    for (const auto& [name, fields] : was) report(name, " is no plan any more");
  fmt::print("goldens: {} plans made, {} lines differ\n", subjects.size(), different);
  if (different == 0) return 0;
  fmt::print(
      "Where that is meant, write the lines anew by `cmake --build BUILD_FOLDER --target write_goldens`, and say in "
      "the "
      "commit why they change.\n");
  return 1;
}

int run(const std::vector<std::string>& arguments) {
  IMBREX_EXPECTS(!arguments.empty(), "usage: goldens ROOT [--write] [--records FILE] [--only TEXT]");
  const std::string& root = arguments.front();
  std::string path = root + "/tests/golden/records.txt", only;
  bool write = false;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    const bool has_value = option == "--records" || option == "--only";
    IMBREX_EXPECTS(option == "--write" || (has_value && i + 1 < arguments.size()),
                   "{}: the options are --write, --records FILE and --only TEXT", option);
    if (!has_value) write = true;
    if (has_value) (option == "--only" ? only : path) = arguments[++i];
  }
  IMBREX_EXPECTS(!write || only.empty(), "--write with --only: the file has a line for every plan");
  std::vector<Subject> subjects = subjects_in(root);
  std::erase_if(subjects, [&](const Subject& s) { return s.name.find(only) == std::string::npos; });
  IMBREX_EXPECTS(!subjects.empty(), "no plan has '{}' in its name", only);
  Lines lines = write ? Lines{} : read_lines(path);
  const Maker maker(root);
  std::vector<Golden> goldens;
  for (const Subject& subject : subjects) goldens.push_back(maker.make(subject));
  if (!write) return compare(subjects, goldens, std::move(lines), only.empty());
  std::ofstream file(path, std::ios::binary);
  file << head;
  for (std::size_t i = 0; i < subjects.size(); ++i) file << line_of(subjects[i].name, goldens[i]) << '\n';
  IMBREX_EXPECTS(file.flush().good(), "{}: this file cannot be written", path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "goldens: {}\n", error.what());
    return 2;
  }
}
