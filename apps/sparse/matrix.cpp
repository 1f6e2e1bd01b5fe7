#include "apps/sparse/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/common/check.hpp"

namespace imbrex::apps::sparse {
namespace {

bool before(const Entry& a, const Entry& b) { return a.row != b.row ? a.row < b.row : a.col < b.col; }

// Stable, by a number of each entry that is below `count`.
template <typename Key>
void counting_sort(std::vector<Entry>& entries, std::int64_t count, Key key) {
  std::vector<std::size_t> place(static_cast<std::size_t>(count) + 1);
  for (const Entry& entry : entries) ++place[key(entry) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<Entry> sorted(entries.size());
  for (const Entry& entry : entries) sorted[place[key(entry)]++] = entry;
  entries = std::move(sorted);
}

std::string at(const Entry& entry) { return fmt::format("({}, {})", entry.row + 1, entry.col + 1); }

void expect_triangular(const Matrix& matrix) {
  const Entry *below = nullptr, *above = nullptr;
  for (const Entry& entry : matrix.entries) {
    if (below == nullptr && entry.row > entry.col) below = &entry;
    if (above == nullptr && entry.row < entry.col) above = &entry;
  }
  IMBREX_EXPECTS(below == nullptr || above == nullptr,
                 "row {}: entry {} lies above the diagonal, and entry {} below it: the matrix is not triangular; its "
                 "lower or upper part may be taken",
                 above->row + 1, at(*above), at(*below));
}

void expect_regular(const Matrix& matrix) {
  std::int64_t row = 0;
  for (const Entry& entry : matrix.entries) {
    if (entry.row != entry.col) continue;
    if (entry.row != row) break;
    IMBREX_EXPECTS(entry.value != 0, "row {}: its diagonal is 0: the matrix is singular", row + 1);
    ++row;
  }
  IMBREX_EXPECTS(row == matrix.rows, "row {}: it has no diagonal: the matrix is singular", row + 1);
}

}  // namespace

void sort_entries(Matrix& matrix) {
  auto& entries = matrix.entries;
  if (std::is_sorted(entries.begin(), entries.end(), before)) return;
  // Counters of a matrix that is nearly empty would be most of the work.
  if (matrix.rows + matrix.cols > 4 * static_cast<std::int64_t>(entries.size()))
    return std::stable_sort(entries.begin(), entries.end(), before);
  counting_sort(entries, matrix.cols, [](const Entry& entry) { return entry.col; });
  counting_sort(entries, matrix.rows, [](const Entry& entry) { return entry.row; });
}

Part parse_part(std::string_view name) {
  if (name == "whole") return Part::whole;
  if (name == "lower") return Part::lower;
  if (name == "upper") return Part::upper;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}': it must be whole, lower or upper", name));
}

Triangular triangular_of(const Matrix& matrix, Part part, bool transposed) {
  IMBREX_EXPECTS(matrix.rows == matrix.cols, "the matrix is {} x {}: a triangular one is square", matrix.rows,
                 matrix.cols);
  if (part == Part::whole) expect_triangular(matrix);
  expect_regular(matrix);

  const auto taken = [part](const Entry& entry) {
    return entry.row > entry.col ? part != Part::upper : part != Part::lower;
  };
  const bool upper = std::any_of(matrix.entries.begin(), matrix.entries.end(),
                                 [&](const Entry& entry) { return entry.row < entry.col && taken(entry); });
  Triangular system;
  system.rows = matrix.rows;
  system.backwards = upper != transposed;
  const auto rows = static_cast<std::size_t>(matrix.rows);
  system.begin.resize(rows + 1);
  system.diagonal.resize(rows);
  const auto place = [&](std::uint32_t row) { return static_cast<std::size_t>(system.row_at(row)); };
  const auto row_of = [&](const Entry& entry) { return place(transposed ? entry.col : entry.row); };
  const auto column_of = [&](const Entry& entry) { return place(transposed ? entry.row : entry.col); };

  for (const Entry& entry : matrix.entries) {
    if (entry.row == entry.col)
      system.diagonal[row_of(entry)] = entry.value;
    else if (taken(entry))
      ++system.begin[row_of(entry) + 1];
  }
  std::partial_sum(system.begin.begin(), system.begin.end(), system.begin.begin());
  system.column.resize(static_cast<std::size_t>(system.begin.back()));
  system.value.resize(system.column.size());
  std::vector<std::int64_t> next(system.begin.begin(), system.begin.end() - 1);
  const auto put = [&](const Entry& entry) {
    if (entry.row == entry.col || !taken(entry)) return;
    const auto to = static_cast<std::size_t>(next[row_of(entry)]++);
    system.column[to] = static_cast<std::uint32_t>(column_of(entry));
    system.value[to] = entry.value;
  };
  // Entries come by row; whichever of the two is the system's row, its columns are to ascend.
  if (system.backwards)
    std::for_each(matrix.entries.rbegin(), matrix.entries.rend(), put);
  else
    std::for_each(matrix.entries.begin(), matrix.entries.end(), put);
  return system;
}

template <typename T>
void expect_solvable(const Triangular& system) {
  constexpr const char* type = sizeof(T) == 4 ? "fp32" : "fp64";
  for (std::size_t row = 0; row < system.diagonal.size(); ++row) {
    const auto diagonal = static_cast<T>(system.diagonal[row]);
    const auto number = system.row_at(static_cast<std::int64_t>(row)) + 1;
    IMBREX_EXPECTS(diagonal != 0 && std::isfinite(diagonal), "row {}: its diagonal {} is {} in {}", number,
                   system.diagonal[row], diagonal, type);
    for (std::int64_t e = system.begin[row]; e < system.begin[row + 1]; ++e) {
      const double value = system.value[static_cast<std::size_t>(e)];
      IMBREX_EXPECTS(std::isfinite(static_cast<T>(value)), "row {}: its element {} is not finite in {}", number, value,
                     type);
    }
  }
}
template void expect_solvable<float>(const Triangular& system);
template void expect_solvable<double>(const Triangular& system);

}  // namespace imbrex::apps::sparse
