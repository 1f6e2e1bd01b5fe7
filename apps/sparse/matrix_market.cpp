#include "apps/sparse/matrix_market.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "apps/common/check.hpp"

namespace imbrex::apps::sparse {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";

class Reader {
 public:
  Reader(std::string_view text, std::string_view title) : text_(text), title_(title) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: line {}: {}", title_, line_, why));
  }

  /// The next line, which begins with a word; false behind the last one.
  bool next(bool comments) {
    while (next_any()) {
      const std::size_t first = rest_.find_first_not_of(blanks);
      if (first == std::string_view::npos || (comments && rest_[first] == '%')) continue;
      return true;
    }
    return false;
  }

  /// The next line, whatever it holds.
  bool next_any() {
    ++line_;
    if (place_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', place_), text_.size());
    rest_ = text_.substr(place_, end - place_);
    place_ = end + 1;
    return true;
  }

  /// The line's next word, empty behind the last one.
  std::string_view word() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(blanks), rest_.size()));
    const std::string_view found = rest_.substr(0, rest_.find_first_of(blanks));
    rest_.remove_prefix(found.size());
    return found;
  }

  template <typename T>
  T number(const char* what) {
    std::string_view text = word();
    if (text.empty()) refuse(fmt::format("{} is missing", what));
    const std::string_view whole = text;
    if (text.front() == '+' && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
      refuse(fmt::format("{} {}: it is too large or too small", what, printable(whole)));
    if (error != std::errc() || end != text.data() + text.size())
      refuse(fmt::format("{} '{}' is no {}number", what, printable(whole), std::is_integral_v<T> ? "whole " : ""));
    return value;
  }

  void expect_end() {
    if (const std::string_view more = word(); !more.empty()) refuse(fmt::format("'{}' is too much", printable(more)));
  }

  /// Bytes after this line.
  std::size_t left() const { return text_.size() - std::min(place_, text_.size()); }

 private:
  std::string_view text_, title_, rest_;
  std::size_t place_ = 0;
  std::int64_t line_ = 0;
};

enum class Field { real, integer, pattern };

struct Header {
  Field field;
  bool symmetric;
};

// One of `names`, in any case.
template <std::size_t count>
std::size_t choice(Reader& reader, const char* what, const std::array<std::string_view, count>& names) {
  const std::string_view word = reader.word();
  std::string lower(word);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  const auto found = std::find(names.begin(), names.end(), lower);
  if (found == names.end())
    reader.refuse(fmt::format("{} '{}': it must be {}", what, printable(word), fmt::join(names, " or ")));
  return static_cast<std::size_t>(found - names.begin());
}

Header read_header(Reader& reader) {
  if (!reader.next_any() || reader.word() != "%%MatrixMarket")
    reader.refuse("the file does not begin with %%MatrixMarket");
  choice(reader, "object", std::array<std::string_view, 1>{"matrix"});
  choice(reader, "format", std::array<std::string_view, 1>{"coordinate"});
  const auto field = choice(reader, "field", std::array<std::string_view, 3>{"real", "integer", "pattern"});
  const auto symmetry = choice(reader, "symmetry", std::array<std::string_view, 2>{"general", "symmetric"});
  reader.expect_end();
  return {static_cast<Field>(field), symmetry == 1};
}

std::uint32_t place(Reader& reader, const char* what, std::int64_t most) {
  const auto number = reader.number<std::int64_t>(what);
  if (number < 1 || number > most) reader.refuse(fmt::format("{} {}: it must be from 1 to {}", what, number, most));
  return static_cast<std::uint32_t>(number - 1);
}

Entry read_entry(Reader& reader, const Header& header, const Matrix& matrix) {
  Entry entry{place(reader, "row", matrix.rows), place(reader, "column", matrix.cols), 1};
  if (header.field == Field::real) entry.value = reader.number<double>("value");
  if (header.field == Field::integer) entry.value = static_cast<double>(reader.number<std::int64_t>("value"));
  if (!std::isfinite(entry.value)) reader.refuse("the value is not finite");
  reader.expect_end();
  if (header.symmetric && entry.row < entry.col)
    reader.refuse("the entry lies above the diagonal of a symmetric matrix");
  return entry;
}

// Behind the header: sizes, then `take` of each entry. Returns how many there are.
template <typename Take>
void read_entries(Reader& reader, const Header& header, Matrix& matrix, Take&& take) {
  if (!reader.next(true)) reader.refuse("the sizes are missing");
  matrix.rows = reader.number<std::int64_t>("number of rows");
  matrix.cols = reader.number<std::int64_t>("number of columns");
  const auto count = reader.number<std::int64_t>("number of entries");
  reader.expect_end();
  for (const auto& [what, value] : {std::pair{"rows", matrix.rows}, {"columns", matrix.cols}})
    if (value < 1 || value > most_rows) reader.refuse(fmt::format("{} {}: from 1 to {}", value, what, most_rows));
  if (header.symmetric && matrix.rows != matrix.cols)
    reader.refuse(fmt::format("{} x {}: a symmetric matrix is square", matrix.rows, matrix.cols));
  // "1 1", or "1 1 1", and the end of a line.
  const std::int64_t least = header.field == Field::pattern ? 4 : 6;
  const auto most = (static_cast<std::int64_t>(reader.left()) + 1) / least;
  if (count < 0 || count > most) reader.refuse(fmt::format("{} entries: what follows has at most {}", count, most));
  matrix.entries.reserve(static_cast<std::size_t>(header.symmetric ? 2 * count : count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (!reader.next(false)) reader.refuse(fmt::format("the file ends after {} of {} entries", i, count));
    take(read_entry(reader, header, matrix));
  }
  if (reader.next(false)) reader.refuse(fmt::format("something follows the last of {} entries", count));
}

}  // namespace

Matrix parse_matrix_market(std::string_view text, std::string_view title) {
  Matrix matrix;
  Reader reader(text, title);
  const Header header = read_header(reader);
  read_entries(reader, header, matrix, [&](const Entry& entry) {
    matrix.entries.push_back(entry);
    if (header.symmetric && entry.row != entry.col) matrix.entries.push_back({entry.col, entry.row, entry.value});
  });
  sort_entries(matrix);
  const auto same = [](const Entry& a, const Entry& b) { return a.row == b.row && a.col == b.col; };
  const auto twice = std::adjacent_find(matrix.entries.begin(), matrix.entries.end(), same);
  if (twice == matrix.entries.end()) return matrix;
  // Once more, for the line.
  Reader again(text, title);
  Matrix sizes;
  const Header once_more = read_header(again);
  int seen = 0;
  const Entry& wanted = *twice;
  read_entries(again, once_more, sizes, [&](const Entry& entry) {
    const bool is = same(entry, wanted) || (header.symmetric && entry.row == wanted.col && entry.col == wanted.row);
    if (is && ++seen == 2) again.refuse(fmt::format("entry ({}, {}) comes twice", entry.row + 1, entry.col + 1));
  });
  return matrix;
}

}  // namespace imbrex::apps::sparse
