// What the list of kernels lets choose without a GPU is what the executor chooses on one.
#include <gtest/gtest.h>

#include <vector>

#include "gpu/harness/gpu_case.hpp"
#include "runtime/cuda/device.hpp"
#include "support/build_kernels.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// A GPU with another number of SMs has other workers.
TEST(KernelList, HasTheWorkersOfAnH200) {
  NEEDS_OWN_GPUS(1);
  const Gpu& gpu = runtime::gpu_of(0);
  if (gpu.major != 9 || gpu.sms != 132) GTEST_SKIP() << "the list is for Hopper with 132 SMs, not for an " << gpu.name;
  test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  const std::string listed = test::to_text(list);
  list.kernels = test::build_kernels();
  EXPECT_EQ(listed, test::to_text(list)) << "bench/kernel_list.cpp says how to write the list anew";
}

std::vector<test::RandomCase> products() {
  std::vector<test::RandomCase> cases;
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, Type type, Knobs knobs) {
    knobs.transport = Transport::store;
    knobs.partial = output_type(type);
    Problem problem{Operator::gemm_reduce_scatter, m, n, k, 1, type};
    for (const Layout layout : {Layout::row_major, Layout::column_major}) {
      if (layout == Layout::column_major && type == Type::e4m3) continue;
      problem.b_layout = layout;
      for (knobs.cluster = 0; knobs.cluster <= 2; ++knobs.cluster) cases.push_back({problem, Strategy::fused, knobs});
    }
  };
  for (Type type : {Type::bf16, Type::fp16, Type::e4m3}) {
    for (std::int64_t tile_n : {64, 128, 192, 224, 256}) add(4096, 4096, 1024, type, {.tile_n = tile_n});
    for (std::int64_t tile_n : {32, 64, 128, 192}) add(64, 4096, 1024, type, {.tile_m = 64, .tile_n = tile_n});
    for (std::int64_t tile_m : {64, 128}) add(64, 4096, 1024, type, {.tile_m = tile_m, .tile_n = 64, .cluster_k = 2});
    add(300, 300, 1001, type, {});  // rows that are no multiples of 16 bytes
  }
  add(256, 256, 256, Type::fp32, {});
  return cases;
}

TEST(KernelList, ChoosesAsTheExecutor) {
  NEEDS_OWN_GPUS(1);
  const int code = run_threads(1, {}, [&](World& world) {
    const auto executor = make_cuda_executor(world, {});
    const test::KernelList list{"this GPU", runtime::gpu_of(0).major, test::build_kernels(), nullptr};
    for (const test::RandomCase& c : products()) {
      const auto execution =
          executor->prepare_tasks([&] { return plan::make_rank_tasks(c.problem, c.strategy, c.knobs, 0); });
      const auto tasks = plan::make_rank_tasks(c.problem, c.strategy, c.knobs, 0);
      EXPECT_EQ(execution->kernel_name(), test::kernel_of(*tasks, list)) << test::describe(c);
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
