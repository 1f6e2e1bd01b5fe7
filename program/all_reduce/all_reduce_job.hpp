// What jobs about all-reduces share: the ranks' tensors, memory where the device works, and the verdict on results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/npy.hpp"
#include "imbrex/world.hpp"
#include "program/all_reduce/run_all_reduce.hpp"
#include "program/reference.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::program {

/// The ranks' tensors, stacked by rank: from a file, or a seed.
class StackedTensors {
 public:
  StackedTensors(const AllReduceRequest& request, const NpyFile* file, std::int64_t rows, std::int64_t cols)
      : request_(request), file_(file), rows_(rows), cols_(cols) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t count() const { return rows_ * cols_; }

  /// A rank's elements.
  std::vector<std::byte> elements(int rank) const;
  /// The rank's elements as floats.
  std::vector<float> values(int rank) const;

 private:
  const AllReduceRequest& request_;
  const NpyFile* file_;
  std::int64_t rows_, cols_;
};

/// Elements where the device works.
class DeviceTensor {
 public:
  DeviceTensor(Device device, std::vector<std::byte> elements);

  void* get() { return memory_ ? memory_->get() : host_.data(); }
  /// Makes all elements NaN.
  void poison();
  /// Also waits for the device.
  const std::vector<std::byte>& read();

 private:
  std::vector<std::byte> host_;
  std::unique_ptr<runtime::DeviceMemory> memory_;
};

/// What one rank tells the others about its result. Trivially copyable.
struct Verdict {
  Comparison worst;
  std::uint64_t hash = 0;
  int differs = -1;  ///< repeat whose bits differ from the first one's

  void note(int repeat, std::uint64_t hash_of_outputs);
};

/// Collective, on every rank alike: whether all ranks' results are right, or were not checked. Completes the result;
/// `value` and `bound` name what elements are compared with.
bool judge(World& world, const AllReduceRequest& request, const Verdict& own, const char* value, const char* bound,
           AllReduceResult& result);

/// Collective: the seconds that `call`, and what it enqueued on the device, took on the slowest rank.
double seconds_of(World& world, Device device, const std::function<void()>& call);

/// With request.rms_norm. What a rank does.
int run_rms_norm(World& world, const AllReduceRequest& request, Device device, const StackedTensors& source,
                 const std::function<void(const AllReduceResult&)>& report);

/// Throws Error(invalid_input) for files and options that do not go with request.rms_norm.
void expect_rms_norm(const AllReduceRequest& request, std::int64_t rows, std::int64_t cols);

}  // namespace imbrex::program
