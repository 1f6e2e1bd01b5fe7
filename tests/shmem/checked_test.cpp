// Builds with IMBREX_SHMEM_CHECK: what a kernel does wrong is named, on the PE that does it, and ends all PEs.
#define IMBREX_SHMEM_CHECK
#include <gtest/gtest.h>

#include <cstdio>

#include "shmem/misuse.hpp"

namespace imbrex::shmem::test {
namespace {

// 7: the PE that did it was told what, and the others that it failed; else 1 or 8.
int expect_named(World& world, Misuse what) {
  Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
  auto* box = static_cast<std::uint64_t*>(heap.allocate(64));
  try {
    run_misuse(heap, nullptr, what, box);
  } catch (const Error& error) {
    const std::string said = error.what(), wanted = misuse_words[static_cast<int>(what)];
    const bool named = said.find(wanted) != std::string::npos && said.find("rank 1") != std::string::npos;
    if (!named)
      std::fprintf(stderr, "rank %d was told: %s\n  wanted: %s\n", world.rank(), said.c_str(), wanted.c_str());
    return named ? 7 : 8;
  }
  return 1;
}

TEST(ShmemChecked, MisuseIsNamed) {
  for (int what = 0; what < misuses; ++what) {
    const auto run = [&](World& world) { return expect_named(world, static_cast<Misuse>(what)); };
    const WorldOptions options{.heap_bytes = std::size_t{8} << 20, .wait_limit = 20};
    EXPECT_EQ(run_processes(3, options, run), 7) << what;
    EXPECT_EQ(run_threads(2, options, run), 7) << what;
  }
}

}  // namespace
}  // namespace imbrex::shmem::test
