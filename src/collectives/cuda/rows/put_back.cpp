#include "collectives/put_back.hpp"

#include <algorithm>

#include "collectives/cuda/rows/put_back_kernel.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/early_launch.hpp"

namespace imbrex::collectives {
namespace {

int current_gpu() {
  int gpu = 0;
  IMBREX_CUDA_TRY(cudaGetDevice(&gpu));
  return gpu;
}

/// That the GPU runs. Remembers the last answer, which costs more than a launch.
std::uint32_t blocks_at_once(int gpu, const void* kernel, std::uint32_t threads) {
  struct Known {
    const void* kernel = nullptr;
    std::uint32_t threads = 0, blocks = 0;
    int gpu = -1;
  };
  thread_local Known known;
  int sms = 0, blocks = 0;
  if (known.kernel == kernel && known.threads == threads && known.gpu == gpu) return known.blocks;
  IMBREX_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, gpu));
  IMBREX_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(threads), 0));
  known = {kernel, threads, static_cast<std::uint32_t>(std::max(sms * blocks, 1)), gpu};
  return known.blocks;
}

}  // namespace

void put_back_on_gpu(const RowWork& work, CudaStream stream) {
  const PackedLayout& l = work.layout;
  const auto packets = [&](std::int64_t elements) {
    return static_cast<std::uint32_t>(elements * static_cast<std::int64_t>(size_of(work.type)) / 16);
  };
  const bool halves = work.operation == RowOperation::silu_multiply, packed = l.first_rows != nullptr;
  // A thread's columns are those of the norms, whose order of squares follows from them.
  const RowShape shape = row_shape(halves ? l.cols / 2 : l.cols, work.type);
  PutBackArgs args{static_cast<const uint4*>(work.in),
                   static_cast<const uint4*>(work.residual),
                   static_cast<const uint4*>(work.operation == RowOperation::rms_norm ? work.weight : work.bias),
                   static_cast<uint4*>(work.residual_out),
                   static_cast<uint4*>(work.out),
                   l.first_rows,
                   static_cast<std::uint32_t>(l.rows),
                   packets(l.cols),
                   static_cast<std::uint32_t>(packed ? l.block_rows : l.rows),
                   packets(packed ? l.block_cols : l.cols),
                   static_cast<std::uint32_t>(packed ? l.cols / l.block_cols : 1),
                   static_cast<float>(l.cols),
                   work.eps};
  const void* kernel = put_back_kernel(work.type, work.operation, shape.batches);
  const int gpu = current_gpu();
  cudaLaunchAttribute attribute = cuda::early_launch(!runtime::is_shared(gpu));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(args.rows, blocks_at_once(gpu, kernel, shape.threads)));
  config.blockDim = dim3(shape.threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&args};
  IMBREX_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments));
}

}  // namespace imbrex::collectives
