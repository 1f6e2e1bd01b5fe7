// A packed matrix of random layout, an operation that puts it back, and what must come of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "imbrex/packed.hpp"

namespace imbrex::test {

struct PackedCase {
  RowOperation operation = RowOperation::copy;
  Type type = Type::bf16;
  std::int64_t rows = 1, cols = 2, block_rows = 1, block_cols = 2;
  bool residual = false, bias = false;
  float eps = 1e-6f;
  std::uint64_t seed = 1;

  // Made of those.
  std::vector<std::int32_t> first_rows;  ///< blocks in random order
  std::vector<std::byte> packed, residual_values, weight, bias_values;

  void make();
  std::int64_t out_cols() const { return operation == RowOperation::silu_multiply ? cols / 2 : cols; }
  PackedLayout layout(Device device) const;
  /// The matrix in rows.
  std::vector<std::byte> rows_of_in() const;
  std::string text() const;
};

/// Columns, of blocks and halves too, are multiples of `columns` elements.
PackedCase random_packed_case(std::mt19937_64& random, std::int64_t columns);

struct PackedResult {
  std::vector<std::byte> out, residual_out;
};

/// Runs put_back where operands lie; those are host memory.
using PutBackCall = std::function<void(const PackedCase&, const PackedLayout&, std::vector<Operand>)>;
void host_call(const PackedCase& c, const PackedLayout& layout, std::vector<Operand> operands);

/// With `in_rows`, the operation gets the matrix in rows.
PackedResult put_back_case(const PackedCase& c, const PutBackCall& call, bool in_rows = false);

/// What is wrong, in float64's eyes: "" where every element is within its bound.
std::string fault_of(const PackedCase& c, const PackedResult& result);

}  // namespace imbrex::test
