#include "collectives/cuda/coded/coded_entry.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_fp16() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::fp16, Usual<int8>, Usual<int8>>(),
                                       coded_entry<Type::fp16, Usual<int4>, Usual<int8>>(),
                                       coded_entry<Type::fp16, Usual<int4>, Usual<int4>>()};
  return entries;
}

}  // namespace imbrex::cuda
