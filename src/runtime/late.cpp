#include "runtime/late.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include "base/clock.hpp"
#include "runtime/control.hpp"

namespace imbrex::runtime {

std::string late_text(std::string_view late, std::size_t count, std::string_view what) {
  return fmt::format("{} {} not come to {}", late, count == 1 ? "has" : "have", what);
}

void tell_late(int rank, std::string_view late, std::size_t count, std::string_view what, double entry_limit) noexcept {
  try {
    print_rank_line(rank, fmt::format("{}; waiting up to {:.6g} s", late_text(late, count, what), entry_limit));
  } catch (...) {  // the wait goes on without words
  }
}

LateToJoin::LateToJoin(int rank, const WorldOptions& options)
    : rank_(rank),
      limits_(limits_of(options)),
      begin_(base::monotonic_seconds()),
      told_(limits_.wait >= limits_.entry) {}

void LateToJoin::look(const std::function<std::vector<int>()>& late) {
  if (told_ || base::monotonic_seconds() - begin_ <= limits_.wait) return;
  told_ = true;
  const std::vector<int> ranks = late();
  tell_late(rank_, list_ranks(ranks), ranks.size(), "this world", limits_.entry);
}

void print_rank_line(int rank, std::string_view message) noexcept {
  try {
    const std::string line = fmt::format("imbrex: rank {}: {}\n", rank, message);
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {
  }
}

}  // namespace imbrex::runtime
