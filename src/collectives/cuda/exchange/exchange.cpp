// A communicator's exchanges of blocks.
#include "collectives/cuda/exchange/exchange.hpp"

#include <algorithm>

#include "collectives/cuda/cuda_collectives.hpp"
#include "collectives/cuda/wire/sizes.hpp"
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

void CudaCollectives::exchange(ExchangeKind kind, const void* in, void* out, std::int64_t count, Type type,
                               cudaStream_t stream, const ExchangeKnobs& knobs) {
  IMBREX_EXPECTS(knobs.blocks <= max_comm_blocks, "{} blocks: at most {}", knobs.blocks, max_comm_blocks);
  expect_blocks(kind, in, out, count, type);
  if (count == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  if (comm_.ranks == 1 && !knobs.report) {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    if (out != in) IMBREX_CUDA_TRY(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream));
    return;
  }
  // Stretches of blocks that the slots hold, one call each.
  const std::uint64_t most = slot_bytes();
  for (std::uint64_t at = 0; at < bytes; at += most) {
    ExchangeArgs args{comm_,
                      static_cast<const std::byte*>(in) + at,
                      static_cast<std::byte*>(out) + at,
                      std::min<std::uint64_t>(most, bytes - at),
                      bytes,
                      0,
                      at > 0};
    args.source_stride = ceil_div(args.bytes, 256) * 256;
    const std::uint64_t packets = ceil_div(args.bytes, packet_size);
    const std::uint32_t threads = packets <= 64 * 128 ? 128 : most_exchange_threads;
    launch(exchange_kernel(kind, type, comm_.ranks, knobs.report),
           own_blocks(knobs.blocks, blocks_for(packets, threads, usual_blocks_)), threads, &args, stream);
  }
}

}  // namespace imbrex::cuda
