// Lines of variants.def, compiled, each for both layouts of B: CMake puts some to a source, since reading CUTLASS takes
// as long as a variant.
#pragma once

#include <array>

#include "execute/cuda/products/sm90/launch.cuh"
#include "execute/cuda/products/variants.hpp"

namespace imbrex::cuda {

template <Type T>
struct Sm90Operand;
template <>
struct Sm90Operand<Type::bf16> {
  using Element = cutlass::bfloat16_t;
};
template <>
struct Sm90Operand<Type::fp16> {
  using Element = cutlass::half_t;
};
template <>
struct Sm90Operand<Type::e4m3> {
  using Element = cutlass::float_e4m3_t;
};

/// Schedules of variants.def.
namespace schedule {
inline constexpr bool pingpong = true, cooperative = false;
}

template <int Rows, int Cols, BlockCluster Mode, bool Pingpong, Type T, Layout BLayout>
using Sm90VariantConfig = Sm90Config<Rows, Cols, Mode.blocks, Pingpong, typename Sm90Operand<T>::Element, BLayout,
                                     Mode.shares_k ? Sharing::k : Sharing::b>;

/// A kernel for each layout of B that the type takes.
template <int Rows, int Cols, BlockCluster Mode, bool Pingpong, Type T>
constexpr auto sm90_variant(const char* name, const char* name_nxk) {
  constexpr auto by_columns = Layout::column_major, by_rows = Layout::row_major;
  if constexpr (T == Type::e4m3)
    return std::array{sm90_kernel<Sm90VariantConfig<Rows, Cols, Mode, Pingpong, T, by_columns>>(name)};
  else
    return std::array{sm90_kernel<Sm90VariantConfig<Rows, Cols, Mode, Pingpong, T, by_rows>>(name),
                      sm90_kernel<Sm90VariantConfig<Rows, Cols, Mode, Pingpong, T, by_columns>>(name_nxk)};
}

}  // namespace imbrex::cuda

#define IMBREX_SM90(order, rows, columns, shared, type)                                                 \
  namespace imbrex::cuda {                                                                              \
  namespace {                                                                                           \
  constexpr auto kernels_##order##_##rows##x##columns##_##shared##_##type =                             \
      sm90_variant<rows, columns, mode::shared, schedule::order, Type::type>(                           \
          IMBREX_NAME_SM90(order, rows, columns, shared, type),                                         \
          IMBREX_NAME_SM90(order, rows, columns, shared, type) " nxk");                                 \
  }                                                                                                     \
  extern const GemmKernels IMBREX_SYMBOL_SM90(order, rows, columns, shared, type);                      \
  const GemmKernels IMBREX_SYMBOL_SM90(order, rows, columns, shared,                                    \
                                       type)(kernels_##order##_##rows##x##columns##_##shared##_##type); \
  }
