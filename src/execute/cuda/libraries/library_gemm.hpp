// One product, or a batch of one shape, by cuBLASLt.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "execute/cuda/libraries/library_suggestions.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/types.hpp"
#include "runtime/cuda/libraries/cublas_lt.hpp"

namespace imbrex::cuda {

/// Row-major matrices, except B where it lies by columns, `pitch` elements from row to row, `step` elements from
/// one of the batch to the next. All of the batch share B. Alignments, in bytes, are those of the addresses that launch
/// will be given.
struct LibraryShape {
  struct Matrix {
    std::int64_t pitch = 0, step = 0;
    std::uint32_t alignment = 16;
  };
  std::int64_t rows = 0, cols = 0, depth = 0;
  int batch = 1;
  Type type = Type::bf16, out_type = Type::bf16;
  Matrix a, b, out;
  bool b_by_columns = false;
  Scales scales = Scales::none;
  std::uint32_t bias_alignment = 0;  ///< of the row that launch adds to every row of the result; 0: it adds none
};

class LibraryGemm {
 public:
  /// Bytes of workspace that an algorithm may take.
  static constexpr std::size_t most_workspace = std::size_t{64} << 20;

  /// Asks the library's heuristic, which depends on the shape alone: timing candidates could choose another one, and
  /// other bits, on every rank and in every run. It takes the first algorithm suggested that is `wanted`, or, where
  /// none is, the first. Throws Error(invalid_input) if it knows none.
  LibraryGemm(cublasLtHandle_t handle, const LibraryShape& shape, const LibraryAlgorithm& wanted = {});

  std::size_t workspace_bytes() const { return workspace_bytes_; }

  /// What the heuristic suggests, best first, each once; where none was asked for, only the first.
  const std::vector<LibraryAlgorithm>& suggestions() const { return suggestions_; }

  /// out = A B + bias, summed in fp32, A B times the scales. `bias` is of the result's type, and null without one, as
  /// the scales are. `workspace`, aligned to 256, has workspace_bytes().
  void launch(const Addresses& operands, void* workspace, cudaStream_t stream) const;

 private:
  struct DescDelete {
    void operator()(cublasLtMatmulDesc_t d) const { runtime::cublas_lt().desc_destroy(d); }
  };
  struct LayoutDelete {
    void operator()(cublasLtMatrixLayout_t l) const { runtime::cublas_lt().layout_destroy(l); }
  };
  using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DescDelete>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LayoutDelete>;

  static Layout layout(Type type, std::int64_t rows, std::int64_t cols, const LibraryShape::Matrix& matrix, int batch);

  void set_bias(const void* bias) const;
  void scale_rows() const;
  void set_scales(const void* a, const void* b) const;

  cublasLtHandle_t handle_;
  Desc desc_;
  Layout a_, b_, out_;
  cublasLtMatmulAlgo_t algo_{};
  std::size_t workspace_bytes_ = 0;
  std::vector<LibraryAlgorithm> suggestions_;
  bool bias_, scaled_;
};

}  // namespace imbrex::cuda
