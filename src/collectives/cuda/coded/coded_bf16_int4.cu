#include "collectives/cuda/coded/coded_entry.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_bf16_int4() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::bf16, Usual<int4>, Usual<int4>>(),
                                       coded_entry<Type::bf16, Usual<int4, true>, Usual<int4, true>>(),
                                       coded_entry<Type::bf16, Usual<int4>, Usual<int8>>(),
                                       coded_entry<Type::bf16, Usual<int4, true>, Usual<int8, true>>()};
  return entries;
}

}  // namespace imbrex::cuda
