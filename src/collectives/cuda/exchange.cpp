#include "collectives/cuda/exchange.hpp"

#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

const void* exchange_kernel_bf16(ExchangeKind kind, std::uint32_t ranks, bool report);
const void* exchange_kernel_fp16(ExchangeKind kind, std::uint32_t ranks, bool report);
const void* exchange_kernel_fp32(ExchangeKind kind, std::uint32_t ranks, bool report);

const void* exchange_kernel(ExchangeKind kind, Type type, std::uint32_t ranks, bool report) {
  return type == Type::bf16   ? exchange_kernel_bf16(kind, ranks, report)
         : type == Type::fp16 ? exchange_kernel_fp16(kind, ranks, report)
                              : exchange_kernel_fp32(kind, ranks, report);
}

void load_exchange_kernels() {
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all})
      for (const std::uint32_t ranks : {2u, 4u, max_comm_ranks})
        for (const bool report : {false, true}) {
          cudaFuncAttributes attributes{};
          IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, exchange_kernel(kind, type, ranks, report)));
        }
}

}  // namespace imbrex::cuda
