#include "execute/cuda/libraries/library_gemm.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "plan/problem.hpp"

namespace imbrex::cuda {
namespace {

cudaDataType_t type_of(Type type) {
  return type == Type::bf16   ? CUDA_R_16BF
         : type == Type::fp16 ? CUDA_R_16F
         : type == Type::e4m3 ? CUDA_R_8F_E4M3
                              : CUDA_R_32F;
}

constexpr int most_suggestions = 8;

LibraryAlgorithm algorithm_of(const cublasLtMatmulAlgo_t& algo) {
  LibraryAlgorithm found;
  std::size_t written = 0;
  IMBREX_CUBLASLT_TRY(algo_get, &algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &found.tile, sizeof found.tile, &written);
  IMBREX_CUBLASLT_TRY(algo_get, &algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &found.parts, sizeof found.parts, &written);
  return found;
}

struct HandleDelete {
  void operator()(cublasLtHandle_t handle) const { runtime::cublas_lt().destroy(handle); }
};

struct PreferenceDelete {
  void operator()(cublasLtMatmulPreference_t p) const { runtime::cublas_lt().preference_destroy(p); }
};

}  // namespace

// The library's matrices lie by columns: it is given the transposes, out' = B' A', which need no transposing except B
// by columns. Its A is our B, then.
LibraryGemm::LibraryGemm(cublasLtHandle_t handle, const LibraryShape& shape, const LibraryAlgorithm& wanted)
    : handle_(handle),
      a_(layout(shape.type, shape.depth, shape.rows, shape.a, shape.batch)),
      b_(shape.b_by_columns ? layout(shape.type, shape.depth, shape.cols, shape.b, shape.batch)
                            : layout(shape.type, shape.cols, shape.depth, shape.b, shape.batch)),
      out_(layout(shape.out_type, shape.cols, shape.rows, shape.out, shape.batch)),
      bias_(shape.bias_alignment > 0),
      scaled_(shape.scales != Scales::none) {
  cublasLtMatmulDesc_t desc = nullptr;
  IMBREX_CUBLASLT_TRY(desc_create, &desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  desc_.reset(desc);
  if (shape.b_by_columns) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    IMBREX_CUBLASLT_TRY(desc_set, desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  }
  if (scaled_) {
    if (shape.scales == Scales::row) scale_rows();
    const auto* any = reinterpret_cast<const void*>(std::uintptr_t{256});  // as for the bias
    set_scales(any, any);
  }
  if (bias_) {
    // Added to the rows of the library's matrix, which are the result's columns. A heuristic may ask whether there is
    // an address, and reads nothing there.
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    IMBREX_CUBLASLT_TRY(desc_set, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set_bias(reinterpret_cast<const void*>(std::uintptr_t{256}));
  }
  cublasLtMatmulPreference_t made = nullptr;
  IMBREX_CUBLASLT_TRY(preference_create, &made);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, PreferenceDelete> preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    IMBREX_CUBLASLT_TRY(preference_set, preference.get(), attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace);
  // Parts of a product cut along K are added in fp32, not in the type of the result.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.b.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.a.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out.alignment);
  // What the bias is loaded by goes by D's alignment.
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      bias_ ? std::min(shape.out.alignment, shape.bias_alignment) : shape.out.alignment);
  std::array<cublasLtMatmulHeuristicResult_t, most_suggestions> results{};
  const int asked = wanted.tile > 0 ? most_suggestions : 1;
  int count = 0;
  const cublasStatus_t status = runtime::cublas_lt().heuristic(
      handle, desc_.get(), b_.get(), a_.get(), out_.get(), out_.get(), preference.get(), asked, results.data(), &count);
  IMBREX_EXPECTS(status != CUBLAS_STATUS_NOT_SUPPORTED && (status != CUBLAS_STATUS_SUCCESS || count > 0),
                 "cuBLASLt knows no way to multiply {} x {} by {} x {} of {} into {}", shape.rows, shape.depth,
                 shape.depth, shape.cols, name_of(shape.type), name_of(shape.out_type));
  runtime::check_cublas_lt(status, "heuristic");
  runtime::check_cublas_lt(results.front().state, "heuristic");
  const auto take = [&](const cublasLtMatmulHeuristicResult_t& result) {
    algo_ = result.algo;
    workspace_bytes_ = result.workspaceSize;
  };
  take(results.front());
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    const LibraryAlgorithm found = algorithm_of(result.algo);
    if (std::find(suggestions_.begin(), suggestions_.end(), found) != suggestions_.end()) continue;
    if (wanted.tile > 0 && found == wanted) take(result);
    suggestions_.push_back(found);
  }
}

std::vector<LibraryAlgorithm> library_suggestions(const Problem& problem) {
  const plan::ProductSize product = plan::product_of_rank(problem);
  const bool by_columns = plan::layout_of_b(problem) == imbrex::Layout::column_major;
  cublasLtHandle_t made = nullptr;
  IMBREX_CUBLASLT_TRY(create, &made);
  const std::unique_ptr<cublasLtContext, HandleDelete> handle(made);
  LibraryShape shape{product.m, product.n, product.k, 1,         product.type, output_type(product.type),
                     {},        {},        {},        by_columns};
  shape.a = {product.k, 0, 16};
  shape.b = {by_columns ? product.k : product.n, 0, 16};
  shape.out = {product.n, 0, 16};
  constexpr LibraryAlgorithm nobodys{std::numeric_limits<int>::max(), 1};
  return LibraryGemm(handle.get(), shape, nobodys).suggestions();
}

LibraryGemm::Layout LibraryGemm::layout(Type type, std::int64_t rows, std::int64_t cols,
                                        const LibraryShape::Matrix& matrix, int batch) {
  cublasLtMatrixLayout_t made = nullptr;
  IMBREX_CUBLASLT_TRY(layout_create, &made, type_of(type), static_cast<std::uint64_t>(rows),
                      static_cast<std::uint64_t>(cols), matrix.pitch);
  Layout layout(made);
  const std::int32_t count = batch;
  IMBREX_CUBLASLT_TRY(layout_set, made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  IMBREX_CUBLASLT_TRY(layout_set, made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix.step, sizeof matrix.step);
  return layout;
}

void LibraryGemm::set_bias(const void* bias) const {
  IMBREX_CUBLASLT_TRY(desc_set, desc_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

void LibraryGemm::scale_rows() const {
#if CUBLAS_VERSION >= 120900
  const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  IMBREX_CUBLASLT_TRY(desc_set, desc_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
  IMBREX_CUBLASLT_TRY(desc_set, desc_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
#else
  IMBREX_EXPECTS(false, "scales row: this build has the headers of cuBLASLt {}; they take 12.9", CUBLAS_VERSION);
#endif
}

void LibraryGemm::set_scales(const void* a, const void* b) const {
  IMBREX_CUBLASLT_TRY(desc_set, desc_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b);
  IMBREX_CUBLASLT_TRY(desc_set, desc_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a);
}

void LibraryGemm::launch(const Addresses& o, void* workspace, cudaStream_t stream) const {
  if (bias_) set_bias(o.bias);
  if (scaled_) set_scales(o.a_scale, o.b_scale);
  const float one = 1, zero = 0;
  IMBREX_CUBLASLT_TRY(matmul, handle_, desc_.get(), &one, o.b, b_.get(), o.a, a_.get(), &zero, o.out, out_.get(), o.out,
                      out_.get(), &algo_, workspace, workspace_bytes_, stream);
}

}  // namespace imbrex::cuda
