#include "collectives/cuda/coded_kernels.cuh"

namespace imbrex::cuda {

std::span<const CodedEntry> coded_fp32() {
  using enum CodeFormat;
  static const CodedEntry entries[] = {coded_entry<Type::fp32, AnyForm, AnyForm>()};
  return entries;
}

}  // namespace imbrex::cuda
