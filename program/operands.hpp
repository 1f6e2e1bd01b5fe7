// Where a job's operands come from, and what they are to each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "program/run.hpp"

namespace imbrex::program {

/// The whole A and B of a problem, from files or from a seed; blocks are read or made on demand, so that a rank holds
/// its own part only. Values are rounded to the problem's types.
class OperandSource {
 public:
  virtual ~OperandSource() = default;

  /// `rank`'s A, or B of that product, as it lies in memory, in the problem's type.
  std::vector<std::byte> part(bool a, int rank, int product = 0) const;
  /// The part as floats, row-major.
  std::vector<float> part_as_float(bool a, int rank, int product = 0) const;
  /// Some rows of `rank`'s A as floats. Several threads may ask at once.
  std::vector<float> rows_of_a(int rank, const std::vector<std::int64_t>& rows) const;
  /// Some columns of its B of that product, into the caller's memory, which is used again and again. As rows_of_a.
  void read_columns_of_b(int rank, int product, std::int64_t first, std::int64_t count,
                         std::vector<float>& values) const;
  /// `rank`'s bias of that product, empty where the problem has none.
  std::vector<std::byte> bias(int rank, int product = 0) const;
  std::vector<float> bias_as_float(int rank, int product = 0) const;
  /// The scales of `rank`'s A or B, empty where the problem has none.
  std::vector<float> scales(bool a, int rank) const;

 protected:
  enum class Matrix : std::uint8_t { a, b, bias, a_scale, b_scale, b1, bias1, b2, bias2 };

  static Matrix matrix_b(int product) { return product == 0 ? Matrix::b : product == 1 ? Matrix::b1 : Matrix::b2; }
  static Matrix matrix_bias(int product) {
    return product == 0 ? Matrix::bias : product == 1 ? Matrix::bias1 : Matrix::bias2;
  }

  explicit OperandSource(const Problem& problem) : problem_(problem) {}
  /// The block at (row, col) of the whole matrix (of the ranks' matrices stacked by rows, for an all-to-all). Scales of
  /// rank r are row r of their matrix.
  virtual void read(Matrix matrix, std::int64_t row, std::int64_t col, Extent extent,
                    std::vector<float>& values) const = 0;

  Problem problem_;

 private:
  std::vector<float> part_values(bool a, int rank, int product) const;
  // A rank's part of a matrix, which is the operand of that name.
  std::vector<float> operand_values(Matrix matrix, std::string_view name, int rank) const;
  // That operand, and where it begins in the matrix.
  struct Place {
    OperandInfo info;
    std::int64_t row, col;
  };
  Place place_of(std::string_view name, int rank) const;
};

/// Uniform in [-1, 1), from position and seed alone, so that any rank can make any block.
float seeded_value(std::uint64_t seed, std::uint64_t matrix, std::int64_t row, std::int64_t col);

/// Random operands.
class SeededOperands : public OperandSource {
 public:
  SeededOperands(const Problem& problem, std::uint64_t seed) : OperandSource(problem), seed_(seed) {}

 protected:
  /// An element, or a scale, of what is uniform in [-1, 1).
  virtual float value_of(float uniform, bool scale) const;

 private:
  void read(Matrix matrix, std::int64_t row, std::int64_t col, Extent extent,
            std::vector<float>& values) const override;

  std::uint64_t seed_;
};

/// Fills in problem.m, n, k and more_n from the files if there are any, and checks them against the operator; throws
/// Error(invalid_input) naming file, shape and rule.
std::unique_ptr<OperandSource> open_operands(const RunRequest& request, Problem& problem);

}  // namespace imbrex::program
