// Matrix Market files, what triangular systems are made of them, and what is refused.
#include <gtest/gtest.h>

#include <map>

#include "apps/sparse/generate.hpp"
#include "apps/sparse/matrix_market.hpp"
#include "apps/sparse/schedule.hpp"
#include "imbrex/error.hpp"

namespace imbrex::apps::sparse {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was refused";
}

const std::string real = "%%MatrixMarket matrix coordinate real general\n";

TEST(MatrixMarket, ReadsEveryField) {
  const Matrix m = parse_matrix_market(
      "%%MatrixMarket MATRIX Coordinate Real General\r\n% a remark\n\n 3 4 3\r\n3 4 -1.5e3\n\n1 1 +2\n2 3 .25\n", "m");
  EXPECT_EQ(m.rows, 3);
  EXPECT_EQ(m.cols, 4);
  ASSERT_EQ(m.entries.size(), 3u);
  EXPECT_EQ(m.entries[0].value, 2);
  EXPECT_EQ(m.entries[1].col, 2u);
  EXPECT_EQ(m.entries[2].value, -1500);
  const Matrix p = parse_matrix_market("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n2 1\n3 3\n3 1", "p");
  ASSERT_EQ(p.entries.size(), 5u);
  EXPECT_EQ(p.entries[0].col, 1u);
  EXPECT_EQ(p.entries[0].value, 1);
  const Matrix i = parse_matrix_market("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 -7\n", "i");
  EXPECT_EQ(i.entries[0].value, -7);
}

TEST(MatrixMarket, HostileFilesAreRefusedByLine) {
  const std::string symmetric = "%%MatrixMarket matrix coordinate integer symmetric\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "line 1: the file does not begin with %%MatrixMarket"},
      {std::string("\0\xff\n", 3), "line 1: the file does not begin with"},
      {"\n" + real, "line 1: the file does not begin with"},
      {"%%MatrixMarket matrix array real general\n", "line 1: format 'array': it must be coordinate"},
      {"%%MatrixMarket vector coordinate real general\n", "line 1: object 'vector'"},
      {"%%MatrixMarket matrix coordinate complex general\n", "line 1: field 'complex': it must be real or integer or"},
      {"%%MatrixMarket matrix coordinate real hermitian\n", "line 1: symmetry 'hermitian'"},
      {"%%MatrixMarket matrix coordinate real\n", "line 1: symmetry ''"},
      {"%%MatrixMarket matrix coordinate real general x\n", "line 1: 'x' is too much"},
      {real, "the sizes are missing"},
      {real + "2 2\n", "line 2: number of entries is missing"},
      {real + "2 2 1 1\n", "line 2: '1' is too much"},
      {real + "2 x 1\n1 1 1\n", "line 2: number of columns 'x' is no whole number"},
      {real + "2.5 2 1\n1 1 1\n", "line 2: number of rows '2.5' is no whole number"},
      {real + "-2 2 1\n1 1 1\n", "line 2: -2 rows: from 1 to 2147483646"},
      {real + "0 0 0\n", "line 2: 0 rows"},
      {real + "3000000000 2 1\n1 1 1\n", "line 2: 3000000000 rows"},
      {real + "99999999999999999999 2 1\n1 1 1\n", "line 2: number of rows 99999999999999999999: it is too large"},
      {real + "2 2 1000000000000\n1 1 1\n", "line 2: 1000000000000 entries: what follows has at most 1"},
      {real + "2 2 -1\n1 1 1\n", "line 2: -1 entries"},
      {real + "2 2 2\n1 1 1.00000000\n", "line 4: the file ends after 1 of 2 entries"},
      {real + "2 2 1\n1 1 1\n2 2 1\n", "line 4: something follows the last of 1 entries"},
      {real + "2 2 1\n1 1 1 1\n", "line 3: '1' is too much"},
      {real + "2 2 1\n1 1  \n", "line 3: value is missing"},
      {real + "2 2 1\n0 1 1\n", "line 3: row 0: it must be from 1 to 2"},
      {real + "2 2 1\n1 3 1\n", "line 3: column 3: it must be from 1 to 2"},
      {real + "2 2 1\n1 4294967297 1\n", "line 3: column 4294967297"},
      {real + "2 2 1\n1 1 nan\n", "line 3: the value is not finite"},
      {real + "2 2 1\n1 1 -inf\n", "line 3: the value is not finite"},
      {real + "2 2 1\n1 1 1e999\n", "line 3: value 1e999: it is too large"},
      {real + "2 2 1\n1 1 1d5\n", "line 3: value '1d5' is no number"},
      {real + "2 2 1\n1 1 \x1b[2J\n", "value '\\x1b[2J' is no number"},
      {real + "3 3 3\n1 1 1\n2 2 1\n1 1 2\n", "line 5: entry (1, 1) comes twice"},
      {symmetric + "3 2 1\n1 1 1\n", "line 2: 3 x 2: a symmetric matrix is square"},
      {symmetric + "3 3 1\n1 2 1\n", "line 3: the entry lies above the diagonal of a symmetric matrix"},
      {symmetric + "3 3 2\n2 1 1\n2 1 1\n", "line 4: entry (2, 1) comes twice"},
      {symmetric + "3 3 1\n2 1 1.5\n", "line 3: value '1.5' is no whole number"},
  };
  for (const auto& [text, says] : cases) {
    const std::string said = refusal([&] { parse_matrix_market(text, "bad.mtx"); });
    EXPECT_EQ(said.rfind("bad.mtx: line ", 0), 0u) << said;
    EXPECT_NE(said.find(says), std::string::npos) << said << "\nshould say: " << says;
  }
}

Matrix parsed(const std::string& rest) { return parse_matrix_market(real + rest, "m"); }

TEST(TriangularSystem, IsTakenOutOfAMatrix) {
  const Matrix lower = parsed("3 3 5\n1 1 1\n2 1 21\n2 2 2\n3 2 32\n3 3 3\n");
  const Triangular forward = triangular_of(lower, Part::whole, false);
  EXPECT_FALSE(forward.backwards);
  EXPECT_EQ(forward.value, (std::vector<double>{21, 32}));
  EXPECT_EQ(forward.column, (std::vector<std::uint32_t>{0, 1}));
  const Triangular transposed = triangular_of(lower, Part::whole, true);
  EXPECT_TRUE(transposed.backwards);
  EXPECT_EQ(transposed.diagonal, (std::vector<double>{3, 2, 1}));
  EXPECT_EQ(transposed.value, (std::vector<double>{32, 21}));
  // Columns ascend whichever way round.
  const Matrix full = parsed("3 3 9\n1 1 1\n1 2 12\n1 3 13\n2 1 21\n2 2 2\n2 3 23\n3 1 31\n3 2 32\n3 3 3\n");
  EXPECT_EQ(triangular_of(full, Part::lower, false).value, (std::vector<double>{21, 31, 32}));
  EXPECT_EQ(triangular_of(full, Part::lower, true).value, (std::vector<double>{32, 31, 21}));
  EXPECT_EQ(triangular_of(full, Part::upper, false).value, (std::vector<double>{23, 13, 12}));
  EXPECT_EQ(triangular_of(full, Part::upper, true).value, (std::vector<double>{12, 13, 23}));
}

TEST(TriangularSystem, WhatIsNoneIsRefusedByRow) {
  const auto says = [](const std::string& rest, Part part = Part::whole) {
    return refusal([&] { triangular_of(parsed(rest), part, false); });
  };
  EXPECT_EQ(says("2 3 1\n1 1 1\n"), "the matrix is 2 x 3: a triangular one is square");
  EXPECT_NE(
      says("2 2 4\n1 1 1\n1 2 1\n2 1 1\n2 2 1\n").find("row 1: entry (1, 2) lies above the diagonal, and entry (2, 1)"),
      std::string::npos);
  EXPECT_EQ(says("3 3 2\n1 1 1\n3 3 1\n"), "row 2: it has no diagonal: the matrix is singular");
  EXPECT_EQ(says("2 2 2\n1 1 1\n2 2 0\n"), "row 2: its diagonal is 0: the matrix is singular");
  // No more is allocated than there is.
  EXPECT_EQ(says("2000000000 2000000000 1\n1 1 1\n"), "row 2: it has no diagonal: the matrix is singular");
  const Triangular small = triangular_of(parsed("2 2 2\n1 1 1\n2 2 1e-60\n"), Part::whole, true);
  EXPECT_NO_THROW(expect_solvable<double>(small));
  EXPECT_EQ(refusal([&] { expect_solvable<float>(small); }), "row 2: its diagonal 1e-60 is 0 in fp32");
  const Triangular large = triangular_of(parsed("2 2 3\n1 1 1\n2 1 1e60\n2 2 1\n"), Part::whole, false);
  EXPECT_EQ(refusal([&] { expect_solvable<float>(large); }), "row 2: its element 1e+60 is not finite in fp32");
}

TEST(Generated, KindsHaveTheirLevels) {
  std::map<Kind, std::uint32_t> levels;
  for (const Kind kind : {Kind::grid, Kind::banded, Kind::power_law, Kind::block}) {
    const Matrix matrix = generate(kind, 5000, 3);
    EXPECT_EQ(generate(kind, 5000, 3).entries.size(), matrix.entries.size());
    const Triangular system = triangular_of(matrix, Part::whole, false);
    EXPECT_FALSE(system.backwards);
    for (std::size_t row = 0; row < 5000; ++row) {
      double sum = 0;
      for (auto e = system.begin[row]; e < system.begin[row + 1]; ++e)
        sum += std::abs(system.value[static_cast<std::size_t>(e)]);
      ASSERT_LE(sum, system.diagonal[row]);
    }
    levels[kind] = levels_of(system).count;
    EXPECT_EQ(parse_kind(name_of(kind)), kind);
    for (const std::int64_t rows : {1, 2, 31, 33})
      EXPECT_NO_THROW(triangular_of(generate(kind, rows, 1), Part::whole, true));
  }
  EXPECT_EQ(levels[Kind::banded], 5000u);
  EXPECT_LT(levels[Kind::power_law], 100u);
  EXPECT_LT(levels[Kind::grid], 500u);
  EXPECT_GT(levels[Kind::grid], 15u);
  EXPECT_LT(levels[Kind::block], 1500u);
  EXPECT_NE(refusal([] { generate(Kind::grid, 0, 0); }).find("rows = 0"), std::string::npos);
}

}  // namespace
}  // namespace imbrex::apps::sparse
