// Any bytes are a matrix whose entries lie in it, in order and none twice, or an Error of invalid input; and so is the
// triangular system that it may be.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "apps/sparse/matrix_market.hpp"
#include "imbrex/error.hpp"

using namespace imbrex::apps::sparse;

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void expect_invalid(const imbrex::Error& error) { expect(error.code() == imbrex::ErrorCode::invalid_input); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Matrix matrix;
  try {
    matrix = parse_matrix_market({reinterpret_cast<const char*>(data), size}, "fuzz.mtx");
  } catch (const imbrex::Error& error) {
    expect_invalid(error);
    return 0;
  }
  const Entry* before = nullptr;
  for (const Entry& entry : matrix.entries) {
    expect(entry.row < matrix.rows && entry.col < matrix.cols && std::isfinite(entry.value));
    expect(before == nullptr || before->row < entry.row || (before->row == entry.row && before->col < entry.col));
    before = &entry;
  }
  for (const Part part : {Part::whole, Part::lower, Part::upper})
    for (const bool transposed : {false, true}) try {
        const Triangular system = triangular_of(matrix, part, transposed);
        for (std::size_t row = 0; row < system.diagonal.size(); ++row) {
          expect(system.diagonal[row] != 0);
          for (std::int64_t e = system.begin[row]; e < system.begin[row + 1]; ++e) {
            const std::uint32_t column = system.column[static_cast<std::size_t>(e)];
            expect(column < row && (e == system.begin[row] || column > system.column[static_cast<std::size_t>(e) - 1]));
          }
        }
      } catch (const imbrex::Error& error) {
        expect_invalid(error);
      }
  return 0;
}
