// Sizes that ran on GPUs and have no tuning entry, noted in a file for `imbrex tune --auto`.
//
// A line each: OP M N K RANKS TYPE SCALES B_LAYOUT, as in "gemm_all_reduce 512 8192 28672 4 bf16 none row_major".
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "records/records.hpp"

namespace imbrex::records {

std::string line_of(const Problem& problem);

/// The problems of such a text, each once; empty lines and those that begin with # are none. Throws
/// Error(invalid_input) naming `where`, the line and the rule.
std::vector<Problem> problems_of_lines(std::string_view text, std::string_view where);

/// Such a file.
class UntunedSizes {
 public:
  /// Empty: nothing is noted.
  explicit UntunedSizes(std::string path) : path_(std::move(path)) {}

  /// Adds the problem, once, unless the table has an entry for it, one rank alone has nothing to hide, or it has
  /// several outputs, for which no table has entries. A line is written whole, beside those of other processes. A file
  /// that cannot be written to is said once on stderr, and nothing more is noted. Any thread may call it.
  void note(const Problem& problem, const Records& table);

 private:
  const std::string path_;
  std::mutex lock_;
  bool failed_ = false;
  std::set<std::string> noted_;
};

/// The one that IMBREX_UNTUNED_SIZES names.
UntunedSizes& untuned_sizes();

}  // namespace imbrex::records
