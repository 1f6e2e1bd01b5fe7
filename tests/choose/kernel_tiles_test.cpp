// The tiles that plans are chosen by, and the list of kernels that tests choose from, are those of the kernels.
#include "choose/kernel_tiles.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

#include "execute/cuda/products/gemm.hpp"
#include "support/build_kernels.hpp"

namespace imbrex {
namespace {

// Beside what is made of the list's lines, a kernel's own constants say what it computes.
TEST(KernelTiles, AreThoseOfTheKernels) {
  const auto kernels = cuda::tensor_core_kernels();
  if (kernels.empty()) GTEST_SKIP() << "built without kernels on tensor cores";
  auto next = kernels.begin();
  for (const cuda::KernelTile& v : choose::kernel_tiles())
    for (const bool nxk : {false, true}) {
      const bool fp8 = v.type == Type::e4m3;  // whose B lies by columns only
      if (nxk && fp8) continue;
      ASSERT_NE(next, kernels.end()) << v.name;
      const cuda::GemmKernel& k = **next++;
      EXPECT_EQ(k.name, std::string(v.name) + (nxk ? " nxk" : ""));
      EXPECT_EQ(k.b_layout, nxk || fp8 ? Layout::column_major : Layout::row_major) << k.name;
      EXPECT_EQ(std::tuple(k.type, std::int64_t{k.shape.m}, std::int64_t{k.shape.n}, int{k.shape.cluster}),
                std::tuple(v.type, v.rows, v.cols, v.cluster))
          << v.name;
      EXPECT_EQ(k.shape.sharing == cuda::Sharing::k, v.shares_k) << v.name;
      EXPECT_EQ(k.anywhere, !v.hopper) << v.name;
      EXPECT_EQ(k.pingpong, std::string_view(v.name).starts_with("pingpong")) << v.name;
    }
  EXPECT_EQ(next, kernels.end());
}

// Not the workers, which only a GPU tells.
TEST(KernelTiles, AndTheListAreThoseOfTheKernels) {
  if (cuda::tensor_core_kernels().empty()) GTEST_SKIP() << "built without kernels on tensor cores";
  test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  for (test::ListedKernel& k : list.kernels) k.workers = 0;
  const std::string listed = test::to_text(list);
  list.kernels = test::build_kernels();
  for (test::ListedKernel& k : list.kernels) k.workers = 0;
  EXPECT_EQ(listed, test::to_text(list));
}

}  // namespace
}  // namespace imbrex
