#include "collectives/cuda/coded/coded_entry.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_bf16_int8() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::bf16, Usual<int8>, Usual<int8>>(),
                                       coded_entry<Type::bf16, Usual<int8, true>, Usual<int8, true>>(),
                                       coded_entry<Type::bf16, Usual<fp8>, Usual<fp8>>()};
  return entries;
}

}  // namespace imbrex::cuda
