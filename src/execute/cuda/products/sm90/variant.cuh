// One line of variants.def, compiled: CMake makes a source of each, since each takes half a minute.
#pragma once

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

template <int Rows, int Cols, BlockCluster Mode, bool Pingpong, Type T>
constexpr GemmKernel sm90_variant(const char* name) {
  return sm90_kernel<Sm90Config<Rows, Cols, Mode.blocks, Pingpong, typename Sm90Operand<T>::Element,
                                Mode.shares_k ? Sharing::k : Sharing::b>>(name);
}

}  // namespace imbrex::cuda

#define IMBREX_SM90(order, rows, columns, shared, type)                                                             \
  namespace imbrex::cuda {                                                                                          \
  extern const GemmKernel IMBREX_SYMBOL_SM90(order, rows, columns, shared, type);                                   \
  const GemmKernel IMBREX_SYMBOL_SM90(order, rows, columns, shared, type) =                                         \
      sm90_variant<rows, columns, mode::shared, schedule::order, Type::type>(IMBREX_NAME_SM90(order, rows, columns, \
                                                                                              shared, type));       \
  }
