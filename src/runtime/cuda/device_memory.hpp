// Memory of a GPU, for code that includes no CUDA header.
#pragma once

#include <cstddef>
#include <vector>

namespace imbrex::runtime {

/// Owns memory of the GPU that is the calling thread's. What its functions do is done when they return; they throw
/// Error(runtime_failure) naming the call that failed.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  void* get() const { return data_; }
  void fill(unsigned char byte);
  void upload(const std::vector<std::byte>& from);
  void download(std::vector<std::byte>& to) const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace imbrex::runtime
