// The tiles that plans are chosen by, and the list of kernels that tests choose from, are those of the kernels.
#include "choose/kernel_tiles.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <tuple>

#include "execute/cuda/products/gemm.hpp"
#include "support/build_kernels.hpp"

namespace imbrex {
namespace {

// Beside what is made of the list's lines, a kernel's own constants say what it computes.
TEST(KernelTiles, AreThoseOfTheKernels) {
  std::size_t count = 0;
  const cuda::GemmKernel* const* kernels = cuda::tensor_core_kernels(count);
  if (count == 0) GTEST_SKIP() << "built without kernels on tensor cores";
  const auto listed = choose::kernel_tiles();
  ASSERT_EQ(count, listed.size());
  for (std::size_t i = 0; i < count; ++i) {
    const cuda::GemmKernel& k = *kernels[i];
    const cuda::KernelTile& v = listed[i];
    EXPECT_EQ(k.name, v.name);
    EXPECT_EQ(std::tuple(k.type, std::int64_t{k.shape.m}, std::int64_t{k.shape.n}, int{k.shape.cluster}),
              std::tuple(v.type, v.rows, v.cols, v.cluster))
        << v.name;
    EXPECT_EQ(k.shape.sharing == cuda::Sharing::k, v.shares_k) << v.name;
    EXPECT_EQ(k.anywhere, !v.hopper) << v.name;
    EXPECT_EQ(k.pingpong, std::string_view(v.name).starts_with("pingpong")) << v.name;
  }
}

// But for the workers, which only a GPU tells.
TEST(KernelTiles, AndTheListAreThoseOfTheKernels) {
  std::size_t count = 0;
  cuda::tensor_core_kernels(count);
  if (count == 0) GTEST_SKIP() << "built without kernels on tensor cores";
  test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  for (test::ListedKernel& k : list.kernels) k.workers = 0;
  const std::string listed = test::to_text(list);
  list.kernels = test::build_kernels();
  for (test::ListedKernel& k : list.kernels) k.workers = 0;
  EXPECT_EQ(listed, test::to_text(list));
}

}  // namespace
}  // namespace imbrex
