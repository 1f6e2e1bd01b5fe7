// Packed matrices put back in rows on a GPU.
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <vector>

#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/skips.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/packed.hpp"
#include "imbrex/world.hpp"
#include "program/measure/random_bytes.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/packed_case.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::PackedCase, test::PackedResult;

std::size_t bytes_of(const View& view) {
  std::size_t count = size_of(view.type);
  for (int i = 0; i < view.dims; ++i) count *= static_cast<std::size_t>(view.extents[static_cast<std::size_t>(i)]);
  return count;
}

// The call on copies of its operands on the GPU, once, or `replays` times as a graph.
void gpu_call(const PackedCase& c, PackedLayout layout, std::vector<Operand> operands, int replays) {
  std::vector<cuda::RawMemory> memory;
  const std::vector<Operand> host = operands;
  const auto upload = [&](const void* from, std::size_t bytes) {
    memory.push_back(cuda::raw_memory(bytes));
    cuda::upload(memory.back().get(), from, bytes);
    return memory.back().get();
  };
  for (Operand& operand : operands) operand.view.data = upload(operand.view.data, bytes_of(operand.view));
  if (layout.first_rows != nullptr)
    layout.first_rows =
        static_cast<const std::int32_t*>(upload(layout.first_rows, c.first_rows.size() * sizeof(std::int32_t)));
  layout.device = Device::cuda;
  cudaStream_t stream = nullptr;
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (replays == 0) {
    put_back(c.operation, layout, operands, c.eps, stream);
  } else {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    put_back(c.operation, layout, operands, c.eps, stream);
    IMBREX_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
    IMBREX_CUDA_TRY(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < replays; ++i) IMBREX_CUDA_TRY(cudaGraphLaunch(ready, stream));
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
    IMBREX_CUDA_TRY(cudaGraphExecDestroy(ready));
    IMBREX_CUDA_TRY(cudaGraphDestroy(graph));
  }
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  IMBREX_CUDA_TRY(cudaStreamDestroy(stream));
  for (std::size_t i = 0; i < host.size(); ++i)
    IMBREX_CUDA_TRY(
        cudaMemcpy(host[i].view.data, operands[i].view.data, bytes_of(host[i].view), cudaMemcpyDeviceToHost));
}

PackedResult on_gpu(const PackedCase& c, bool in_rows = false, int replays = 0) {
  return test::put_back_case(
      c,
      [&](const PackedCase& same, const PackedLayout& layout, std::vector<Operand> operands) {
        gpu_call(same, layout, std::move(operands), replays);
      },
      in_rows);
}

void expect_right(const PackedCase& c) {
  const PackedResult result = on_gpu(c), host = test::put_back_case(c, test::host_call);
  EXPECT_EQ(test::fault_of(c, result), "") << c.text();
  if (c.operation == RowOperation::rms_norm) {
    EXPECT_EQ(result.out, host.out) << c.text();
    EXPECT_EQ(result.residual_out, host.residual_out) << c.text();
  }
  const PackedResult rows = on_gpu(c, true);
  EXPECT_EQ(result.out, rows.out) << c.text();
  EXPECT_EQ(result.residual_out, rows.residual_out) << c.text();
}

TEST(GpuPutBack, RandomCases) {
  NEEDS_GPUS(1);
  std::mt19937_64 random(test::seed_from_environment());
  for (int i = 0; i < test::cases(200) && !testing::Test::HasFailure(); ++i)
    expect_right(test::random_packed_case(random, 8));
}

// Rows as long as models have, in tiles that products have, and longer than registers hold.
TEST(GpuPutBack, LargeCases) {
  NEEDS_GPUS(1);
  for (const auto& [rows, cols, block_rows, block_cols] : {std::array<std::int64_t, 4>{1000, 4096, 1024, 128},
                                                           {333, 16384, 128, 256},
                                                           {40, 65536, 8, 192 * 8},
                                                           {3, 32, 2, 16}})
    for (const RowOperation operation :
         {RowOperation::copy, RowOperation::rms_norm, RowOperation::silu_multiply, RowOperation::gelu})
      for (const Type type : {Type::bf16, Type::fp16, Type::fp32}) {
        PackedCase c;
        c.operation = operation;
        c.type = type;
        c.rows = rows;
        c.cols = cols / block_cols * block_cols;
        c.block_rows = block_rows;
        c.block_cols = block_cols;
        if (c.cols / 8 % 2 != 0) continue;
        c.residual = operation == RowOperation::rms_norm;
        c.bias = operation == RowOperation::silu_multiply || operation == RowOperation::gelu;
        c.make();
        expect_right(c);
        if (testing::Test::HasFailure()) return;
      }
}

TEST(GpuPutBack, GraphsReplay) {
  NEEDS_GPUS(1);
  std::mt19937_64 random(test::seed_from_environment() + 1);
  for (int i = 0; i < 10; ++i) {
    const PackedCase c = test::random_packed_case(random, 8);
    EXPECT_EQ(on_gpu(c, false, 20).out, on_gpu(c).out) << c.text();
  }
}

TEST(GpuPutBack, RefusesWhatTheGpuDoesNotTake) {
  NEEDS_GPUS(1);
  const cuda::RawMemory memory = cuda::raw_memory(4096);
  std::vector<float> host(64);
  const auto refusal = [&](const PackedLayout& layout, const void* in) {
    try {
      put_back(
          RowOperation::copy, layout,
          {{"in", View::vector(in, Type::fp32, layout.rows * layout.cols)},
           {"out", View::vector(static_cast<std::byte*>(memory.get()) + 2048, Type::fp32, layout.rows * layout.cols)}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(PackedLayout::in_rows(4, 16, Device::cuda), memory.get()), "");
  EXPECT_EQ(refusal(PackedLayout::in_rows(4, 15, Device::cuda), memory.get()),
            "a row of 15 elements: on GPUs it must be a multiple of 16 bytes");
  EXPECT_NE(refusal(PackedLayout::in_rows(4, 16, Device::cuda), host.data()).find("is not in a GPU's memory"),
            std::string::npos);
  EXPECT_NE(refusal(PackedLayout::in_rows(4, 16, Device::cuda), static_cast<std::byte*>(memory.get()) + 4)
                .find("it must be aligned to 16 bytes"),
            std::string::npos);
  const std::vector<std::int32_t> rows(4);
  EXPECT_NE(refusal({4, 16, 4, 4, rows.data(), Device::cuda}, memory.get()).find("layout.first_rows at "),
            std::string::npos);
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

// One rank: what an operator leaves packed, put back, is what it gives in rows.
TEST(GpuPutBack, OfAnOperator) {
  NEEDS_GPUS(1);
  const int code = run_threads(1, {.heap_bytes = 1 << 20, .wait_limit = 60}, [](World& world) {
    for (const Type type : {Type::bf16, Type::fp16}) {
      GemmShape shape{.m = 1100, .n = 1024, .k = 256, .type = type};
      OperatorOptions options;
      options.device = Device::cuda;
      options.strategy = Strategy::signaled;
      GemmAllReduce in_rows(world, shape, options);
      shape.packed = true;
      GemmAllReduce packed(world, shape, options);
      const PackedLayout layout = packed.packed_layout();
      if (layout.device != Device::cuda || layout.cols != 1024) return 1;
      const auto upload = [&](std::int64_t count, std::uint64_t seed) {
        const std::vector<std::byte> values = program::random_bytes(count, type, seed);
        cuda::RawMemory memory = cuda::raw_memory(values.size());
        cuda::upload(memory.get(), values.data(), values.size());
        return memory;
      };
      const std::size_t bytes = static_cast<std::size_t>(shape.m * shape.n) * size_of(type);
      const cuda::RawMemory a = upload(shape.m * shape.k, 1), b = upload(shape.k * shape.n, 2),
                            y = cuda::raw_memory(bytes), z = cuda::raw_memory(bytes), back = cuda::raw_memory(bytes);
      const auto run = [&](GemmOperator& op, void* out) {
        op.run({op.operand("a", a.get()), op.operand("b", b.get()), op.operand("out", out)});
      };
      for (int i = 0; i < 3; ++i) run(in_rows, y.get()), run(packed, z.get());
      put_back(
          RowOperation::copy, layout,
          {{"in", packed.operand("out", z.get()).view}, {"out", View::matrix(back.get(), type, shape.m, shape.n)}});
      packed.synchronize();
      const auto values = [&](const cuda::RawMemory& memory) {
        std::vector<std::byte> host(bytes);
        IMBREX_CUDA_TRY(cudaMemcpy(host.data(), memory.get(), bytes, cudaMemcpyDeviceToHost));
        return host;
      };
      if (values(back) != values(y)) return 2;
      if (values(z) == values(y)) return 3;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
