#include "collectives/cuda/coded_kernels.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_bf16_any() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::bf16, AnyForm, AnyForm>()};
  return entries;
}

}  // namespace imbrex::cuda
