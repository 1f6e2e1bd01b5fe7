#include "collectives/cuda/exchange/exchange_kernels.cuh"

namespace imbrex::cuda {

const void* exchange_kernel_fp16(ExchangeKind kind, std::uint32_t ranks, bool report) {
  return exchange_kernel_of<Type::fp16>(kind, ranks, report);
}

}  // namespace imbrex::cuda
