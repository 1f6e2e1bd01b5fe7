#include "collectives/cuda/coded/coded_entry.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_bf16_odd() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::bf16, Usual<int6>, Usual<int6>>(),
                                       coded_entry<Type::bf16, Usual<int5>, Usual<int5>>(),
                                       coded_entry<Type::bf16, Usual<int3>, Usual<int3>>()};
  return entries;
}

}  // namespace imbrex::cuda
