#include "program/sparse/reference.hpp"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/check.hpp"
#include "program/sparse/cusparse.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::program::sparse {
namespace {

// An object of the library, which `destroy` ends.
template <typename Handle, typename Destroy>
class Owned {
 public:
  explicit Owned(Destroy destroy) : destroy_(destroy) {}
  ~Owned() {
    if (handle != nullptr) destroy_(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Handle handle = nullptr;

 private:
  Destroy destroy_;
};

template <typename T>
std::unique_ptr<runtime::DeviceMemory> uploaded(const std::vector<T>& values) {
  auto memory = std::make_unique<runtime::DeviceMemory>(values.size() * sizeof(T));
  memory->upload(static_cast<const void*>(values.data()));
  return memory;
}

}  // namespace

template <typename T>
Reference<T> solve_by_library(const Triangular& system, const std::vector<T>& right, int repeat,
                              const std::function<double(const std::function<void()>&)>& seconds_of) {
  constexpr cudaDataType type = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_64F;
  const Cusparse& library = cusparse();
  const std::int64_t rows = system.rows, entries = system.entries() + rows;
  IMBREX_EXPECTS(entries <= std::numeric_limits<std::int32_t>::max(),
                 "cuSPARSE: {} entries: at most 2^31 - 1, as wider numbers are not what it is fastest with", entries);
  std::vector<std::int32_t> begin(system.begin.size()), column;
  std::vector<T> value;
  column.reserve(static_cast<std::size_t>(entries)), value.reserve(static_cast<std::size_t>(entries));
  for (std::size_t row = 0; row < system.diagonal.size(); ++row) {
    for (auto e = static_cast<std::size_t>(system.begin[row]); e < static_cast<std::size_t>(system.begin[row + 1]);
         ++e) {
      column.push_back(static_cast<std::int32_t>(system.column[e]));
      value.push_back(static_cast<T>(system.value[e]));
    }
    column.push_back(static_cast<std::int32_t>(row));
    value.push_back(static_cast<T>(system.diagonal[row]));
    begin[row + 1] = static_cast<std::int32_t>(column.size());
  }
  const auto begins = uploaded(begin);
  const auto columns = uploaded(column);
  const auto values = uploaded(value);
  const auto b = uploaded(right);
  runtime::DeviceMemory x(right.size() * sizeof(T));

  Owned<cusparseHandle_t, decltype(library.destroy)> context(library.destroy);
  Owned<cusparseSpMatDescr_t, decltype(library.destroy_matrix)> matrix(library.destroy_matrix);
  Owned<cusparseDnVecDescr_t, decltype(library.destroy_vector)> from(library.destroy_vector),
      to(library.destroy_vector);
  Owned<cusparseSpSVDescr_t, decltype(library.solve_destroy)> solve(library.solve_destroy);
  IMBREX_CUSPARSE_TRY(create, &context.handle);
  IMBREX_CUSPARSE_TRY(create_csr, &matrix.handle, rows, rows, entries, begins->get(), columns->get(), values->get(),
                      CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, type);
  auto fill = CUSPARSE_FILL_MODE_LOWER;
  auto diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
  IMBREX_CUSPARSE_TRY(matrix_set, matrix.handle, CUSPARSE_SPMAT_FILL_MODE, &fill, sizeof fill);
  IMBREX_CUSPARSE_TRY(matrix_set, matrix.handle, CUSPARSE_SPMAT_DIAG_TYPE, &diagonal, sizeof diagonal);
  IMBREX_CUSPARSE_TRY(create_vector, &from.handle, rows, b->get(), type);
  IMBREX_CUSPARSE_TRY(create_vector, &to.handle, rows, x.get(), type);
  IMBREX_CUSPARSE_TRY(solve_create, &solve.handle);

  const T one = 1;
  std::size_t bytes = 0;
  IMBREX_CUSPARSE_TRY(solve_buffer_size, context.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix.handle,
                      from.handle, to.handle, type, CUSPARSE_SPSV_ALG_DEFAULT, solve.handle, &bytes);
  runtime::DeviceMemory buffer(std::max<std::size_t>(bytes, 16));
  Reference<T> reference;
  int version = 0;
  IMBREX_CUSPARSE_TRY(get_version, context.handle, &version);
  reference.library = fmt::format("cuSPARSE {}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  reference.analysis_seconds = seconds_of([&] {
    IMBREX_CUSPARSE_TRY(solve_analysis, context.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix.handle,
                        from.handle, to.handle, type, CUSPARSE_SPSV_ALG_DEFAULT, solve.handle, buffer.get());
  });
  for (int i = 0; i < repeat; ++i)
    reference.seconds.push_back(seconds_of([&] {
      IMBREX_CUSPARSE_TRY(solve, context.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix.handle, from.handle,
                          to.handle, type, CUSPARSE_SPSV_ALG_DEFAULT, solve.handle);
    }));
  reference.solution.resize(right.size());
  x.download(static_cast<void*>(reference.solution.data()));
  return reference;
}

template Reference<float> solve_by_library(const Triangular&, const std::vector<float>&, int,
                                           const std::function<double(const std::function<void()>&)>&);
template Reference<double> solve_by_library(const Triangular&, const std::vector<double>&, int,
                                            const std::function<double(const std::function<void()>&)>&);

}  // namespace imbrex::program::sparse
