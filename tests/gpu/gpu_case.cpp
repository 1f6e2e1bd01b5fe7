#include "gpu/gpu_case.hpp"

#include <cblas.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "base/convert.hpp"
#include "execute/cuda/cuda_execution.hpp"
#include "imbrex/error.hpp"
#include "ops/operands.hpp"
#include "ops/reference.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/device.hpp"

namespace imbrex::test {
namespace {

struct DeviceFree {
  void operator()(void* p) const { cudaFree(p); }
};
using DeviceMemory = std::unique_ptr<void, DeviceFree>;

DeviceMemory device_memory(std::size_t bytes) {
  void* p = nullptr;
  IMBREX_CUDA_TRY(cudaMalloc(&p, bytes));
  return DeviceMemory(p);
}

DeviceMemory to_device(const std::vector<std::byte>& bytes) {
  DeviceMemory memory = device_memory(bytes.size());
  IMBREX_CUDA_TRY(cudaMemcpy(memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  return memory;
}

}  // namespace

int gpus() { return runtime::device_count(); }

Outcome run_on_gpus(const Plan& plan, const GpuCase& c) {
  // Ranks compute their references at once; the BLAS must not start threads of its own in each.
  openblas_set_num_threads(1);
  Problem problem = plan.problem;
  RunRequest request;
  request.problem = problem;
  request.seed = c.seed;
  const auto operands = open_operands(request, problem);
  Outcome outcome;
  std::mutex lock;
  const auto body = [&](World& world) {
    try {
      const auto executor = make_cuda_executor(world, c.options);
      const auto execution = executor->prepare(plan);
      auto& cuda = dynamic_cast<cuda::CudaExecution&>(*execution);
      {
        const std::lock_guard guard(lock);
        outcome.kernel = cuda.kernel().name;
      }
      const Extent extent = shapes_of(problem).out;
      const auto count = static_cast<std::size_t>(extent.rows * extent.cols);
      const auto bytes = count * size_of(problem.type);
      const DeviceMemory a = to_device(operands->part(true, world.rank())),
                         b = to_device(operands->part(false, world.rank()));
      std::vector<DeviceMemory> outs;
      for (int q = 0; q < c.queued; ++q) outs.push_back(device_memory(bytes));
      const Reference reference = reference_of(plan, *operands, world.rank());
      std::vector<std::byte> first, got(bytes);
      std::vector<float> values(count);
      for (int i = 0; i < c.repeats; ++i) {
        for (auto& out : outs) IMBREX_CUDA_TRY(cudaMemset(out.get(), 0xff, bytes));
        IMBREX_CUDA_TRY(cudaDeviceSynchronize());
        for (auto& out : outs) cuda.enqueue({a.get(), b.get(), out.get()});
        cuda.finish();
        for (auto& out : outs) {
          IMBREX_CUDA_TRY(cudaMemcpy(got.data(), out.get(), bytes, cudaMemcpyDeviceToHost));
          to_float(problem.type, got.data(), values.data(), static_cast<std::int64_t>(count));
          const Comparison worst = compare(reference, values, problem.type, extent.cols);
          const std::lock_guard guard(lock);
          if (!first.empty() && got != first) ++outcome.differing;
          if (first.empty()) first = got;
          if (!(worst.worst <= outcome.worst)) {
            outcome.worst = worst.worst;
            outcome.message = "rank " + std::to_string(world.rank()) + " repeat " + std::to_string(i) + " (" +
                              std::to_string(worst.row) + ", " + std::to_string(worst.col) +
                              "): " + std::to_string(worst.result) + ", reference " + std::to_string(worst.value);
          }
        }
      }
      return 0;
    } catch (const Error& error) {
      {
        const std::lock_guard guard(lock);
        if (outcome.code == 0) {
          outcome.code = static_cast<int>(error.code());
          outcome.message = error.what() + (" [" + outcome.kernel + "]");
        }
      }
      world.fail(error.what());
      return static_cast<int>(error.code());
    }
  };
  const int code = run_threads(problem.ranks, {.heap_bytes = 1 << 20, .wait_limit = c.wait_limit}, body);
  outcome.code = std::max(outcome.code, code);
  return outcome;
}

}  // namespace imbrex::test
