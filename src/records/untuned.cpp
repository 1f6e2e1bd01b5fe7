#include "records/untuned.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/check.hpp"
#include "base/environment.hpp"
#include "base/files/file.hpp"
#include "base/text.hpp"
#include "plan/json/names.hpp"
#include "plan/problem.hpp"

namespace imbrex::records {
namespace {

bool is_tuned(const Problem& problem, const Records& table) {
  return std::any_of(table.list.begin(), table.list.end(),
                     [&](const Record& r) { return same_entry(r.problem, problem); });
}

// What a record keeps of it.
Problem entry_of(const Problem& problem) {
  Problem entry{problem.op, problem.m, problem.n, problem.k, problem.ranks, problem.type};
  entry.scales = problem.scales;
  entry.b_layout = problem.b_layout;
  return entry;
}

Problem problem_of_line(const std::string& line) {
  std::istringstream words(line);
  std::string op, type, scales, layout, rest;
  Problem p;
  if (!(words >> op >> p.m >> p.n >> p.k >> p.ranks >> type >> scales >> layout) || words >> rest)
    throw Error(ErrorCode::invalid_input, "a line is OP M N K RANKS TYPE SCALES B_LAYOUT");
  p.op = parse_operator(op);
  p.type = parse_type(type);
  p.scales = parse_scales(scales);
  p.b_layout = plan::parse_layout(layout);
  validate(p);
  return p;
}

}  // namespace

std::string line_of(const Problem& p) {
  return fmt::format("{} {} {} {} {} {} {} {}\n", name_of(p.op), p.m, p.n, p.k, p.ranks, name_of(p.type),
                     name_of(p.scales), plan::name_of(p.b_layout));
}

std::vector<Problem> problems_of_lines(std::string_view text, std::string_view where) {
  std::istringstream lines{std::string(text)};
  std::vector<Problem> problems;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    try {
      const Problem p = problem_of_line(line);
      if (std::find(problems.begin(), problems.end(), p) == problems.end()) problems.push_back(p);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}, line {}: '{}': {}", where, number, base::printable(line), error.what()));
    }
  }
  return problems;
}

void UntunedSizes::note(const Problem& problem, const Records& table) {
  if (path_.empty() || problem.ranks == 1 || !plan::has_one_output(problem)) return;
  const std::string line = line_of(entry_of(problem));
  const std::lock_guard guard(lock_);
  if (failed_ || !noted_.insert(line).second || is_tuned(problem, table)) return;
  const std::string why = base::add_line(path_, line);
  failed_ = !why.empty();
  if (failed_) std::fprintf(stderr, "imbrex: IMBREX_UNTUNED_SIZES '%s': %s\n", path_.c_str(), why.c_str());
}

UntunedSizes& untuned_sizes() {
  static UntunedSizes sizes(base::environment().text(base::Key::untuned_sizes).value_or(""));
  return sizes;
}

}  // namespace imbrex::records
