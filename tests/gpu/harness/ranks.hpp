// Where the ranks of GPU tests run, and how what they say reaches the test: they may be processes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "imbrex/world.hpp"

/// For tests whose ranks write into the test's own memory, or wait for each other by it.
#define NEEDS_THREADS \
  if (imbrex::test::ranks_are_processes()) GTEST_SKIP() << "its ranks share memory: they have to be threads"

namespace imbrex::test {

/// IMBREX_TEST_RANKS is "processes"; else ranks are threads. Then this process does not use CUDA, so that it can be
/// forked.
bool ranks_are_processes();

/// Memory that this process and those that it forks later share.
std::shared_ptr<void> shared_memory(std::size_t bytes);

/// Makes so many objects.
template <typename T>
class SharedArray {
 public:
  static_assert(std::is_trivially_destructible_v<T>);
  explicit SharedArray(std::size_t count) : memory_(shared_memory(count * sizeof(T))), count_(count) {
    for (std::size_t i = 0; i < count; ++i) new (begin() + i) T();
  }
  T* begin() const { return static_cast<T*>(memory_.get()); }
  T* end() const { return begin() + count_; }
  T& operator[](std::size_t i) const { return begin()[i]; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t count_;
};

/// What went wrong, on any rank: lines that ranks add, threads or processes, and the test reads when they have ended.
class Trouble {
 public:
  Trouble();
  void add(std::string_view what);
  /// Cut where they are long, and the first few hundred.
  std::vector<std::string> list() const;

 private:
  struct Lines;
  std::shared_ptr<void> memory_;
  Lines& lines() const { return *static_cast<Lines*>(memory_.get()); }
};

/// Fails for a code, and for the first of what went wrong.
void expect_none(int code, const Trouble& trouble);

/// run_threads or run_processes. Expectations that fail in a rank's process fail the test, with their messages.
int on_world(int ranks, const WorldOptions& options, const std::function<int(World&)>& body);

}  // namespace imbrex::test
