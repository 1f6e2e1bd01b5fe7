#include "collectives/cuda/exchange/exchange_kernels.cuh"

namespace imbrex::cuda {

const void* exchange_kernel_fp32(ExchangeKind kind, std::uint32_t ranks, bool report) {
  return exchange_kernel_of<Type::fp32>(kind, ranks, report);
}

}  // namespace imbrex::cuda
