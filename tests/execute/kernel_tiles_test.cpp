// The tiles that plans are chosen by, and the list of kernels that tests choose from, are those of the kernels.
#include "choose/kernel_tiles.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "execute/cuda/products/gemm.hpp"
#include "support/build_kernels.hpp"

namespace imbrex {
namespace {

using Tile = std::tuple<Type, std::int64_t, std::int64_t, int, bool, bool>;

TEST(KernelTiles, AreThoseOfTheKernels) {
  std::size_t count = 0;
  const cuda::GemmKernel* const* kernels = cuda::tensor_core_kernels(count);
  if (count == 0) GTEST_SKIP() << "built without kernels on tensor cores";
  std::set<Tile> listed, there;
  for (const choose::KernelTile& t : choose::kernel_tiles())
    listed.insert({t.type, t.rows, t.cols, t.cluster, t.shares_k, t.hopper});
  for (std::size_t i = 0; i < count; ++i) {
    const cuda::GemmKernel& k = *kernels[i];
    there.insert({k.type, k.shape.m, k.shape.n, k.shape.cluster, k.shape.sharing == cuda::Sharing::k, !k.anywhere});
  }
  EXPECT_EQ(listed, there);
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
