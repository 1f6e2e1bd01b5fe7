// A packed matrix, as gemm_all_reduce leaves it with GemmShape::packed, and the operations that put it back in rows.
#pragma once

#include <cstdint>
#include <string_view>

#include "imbrex/operands.hpp"
#include "imbrex/options.hpp"

namespace imbrex {

/// Where the blocks of a packed matrix of rows x cols elements lie. Block (i, j) holds rows i * block_rows ... and
/// columns j * block_cols ...; those at the lower edge may have fewer rows. A packed matrix is as wide as a block: the
/// rows of each block follow each other in it, in whatever order the blocks come.
struct PackedLayout {
  std::int64_t rows = 0, cols = 0;
  std::int64_t block_rows = 0, block_cols = 0;  ///< block_cols divides cols
  /// Where block (i, j) begins in the packed matrix, in rows of it, at [i * (cols / block_cols) + j]: an array in the
  /// memory of `device`, which never changes. Null: the matrix is not packed, but lies in rows without gaps.
  const std::int32_t* first_rows = nullptr;
  Device device = Device::cpu;  ///< cpu or cuda: where the array lies and the operations run

  /// A matrix in rows, so that the operations take it, too.
  static PackedLayout in_rows(std::int64_t rows, std::int64_t cols, Device device) {
    return {rows, cols, rows, cols, nullptr, device};
  }

  /// Extents of the packed matrix.
  std::int64_t packed_rows() const { return first_rows == nullptr ? rows : cols / block_cols * rows; }
  std::int64_t packed_cols() const { return first_rows == nullptr ? cols : block_cols; }

  bool operator==(const PackedLayout&) const = default;
};

/// What becomes of each row x of the matrix. Everything is computed in fp32 and rounded once, to the type of "in".
enum class RowOperation : std::uint8_t {
  copy,           ///< out = x
  rms_norm,       ///< out = x / sqrt(mean(x^2) + eps) * weight. With "residual": x + residual, rounded to the type, is
                  ///< "residual_out", and takes the place of x
  silu_multiply,  ///< v = x + bias, halves g and u: out = g / (1 + exp(-g)) * u, half as wide as x
  gelu,           ///< v = x + bias: out = v * (1 + erf(v / sqrt(2))) / 2
};

/// "copy", "rms_norm", "silu_multiply" or "gelu".
std::string_view name_of(RowOperation operation);

/// Operands: "in", packed_rows() x packed_cols(), and "out", the rows of the result; rms_norm also takes "weight",
/// `cols` elements, and perhaps "residual" and "residual_out", both rows x cols; the activations take perhaps "bias",
/// `cols` elements. All of one type, bf16, fp16 or fp32, without gaps. "out" and "residual_out" overlap nothing, but
/// "residual_out" may be the same memory as "residual".
///
/// The same bits in every run, whether the matrix is packed or not. rms_norm gives the same bits on CPU and GPU: the
/// squares of a row are added in the order that AllReduceRmsNorm has (docs/all-reduce.md). The activations differ in
/// what exp and erf give.
///
/// On GPUs: queues one kernel on `stream`, of the calling thread's GPU, and returns; may be captured. Operands lie in
/// that GPU's memory, aligned to 16 bytes, and rows of the matrix, of a block and of the result are whole 16 bytes. On
/// the CPU the result is complete on return, and `stream` is null. Threads may call it at once.
///
/// Throws Error(invalid_input) naming operand, value and rule for what does not fit, before anything is launched; and
/// Error(runtime_failure) where CUDA refuses the launch.
void put_back(RowOperation operation, const PackedLayout& layout, const Operands& operands, float eps = 1e-6f,
              CudaStream stream = nullptr);

}  // namespace imbrex
