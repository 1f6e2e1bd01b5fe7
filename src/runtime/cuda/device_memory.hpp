// Memory of a GPU, for code that includes no CUDA header.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

struct CUstream_st;

namespace imbrex::runtime {

/// Memory of the GPU that is the calling thread's. What its functions do is done when they return; they throw
/// Error(runtime_failure) naming the call that failed.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  /// Shares memory that exists.
  DeviceMemory(std::size_t bytes, std::shared_ptr<void> data) : data_(std::move(data)), bytes_(bytes) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// As the constructor, where other threads may be capturing streams.
  static std::unique_ptr<DeviceMemory> beside_captures(std::size_t bytes);

  /// Bytes of the current GPU that are free.
  static std::size_t left();

  /// Waits for all that this process has enqueued on the GPU.
  static void synchronize();

  void* get() const { return data_.get(); }
  void fill(unsigned char byte);
  void upload(const std::vector<std::byte>& from);
  /// All of it.
  void upload(const void* from);
  void download(std::vector<std::byte>& to) const;
  void download(void* to) const;
  /// The first `width` bytes of each of `rows` stretches of `pitch` bytes, to such stretches. What is between stays.
  void download_rows(void* to, std::size_t rows, std::size_t width, std::size_t pitch) const;

 private:
  std::shared_ptr<void> data_;
  std::size_t bytes_;
};

/// The number of the GPU that is the calling thread's.
int current_gpu();

/// Its SMs, of which CUDA's MPS may have left this process a part.
int multiprocessors_of(int gpu);

/// Makes a GPU the calling thread's.
void select_gpu(int gpu);

/// For a thread of the library's own: from now on it may use CUDA while others capture in global mode, as
/// AsksDuringCaptures says.
void use_during_captures();

/// Whether a stream of that GPU, which becomes the calling thread's, is being captured.
bool is_captured(CUstream_st* stream, int gpu);

/// Whether `p` lies in memory that CUDA allocated on a GPU or manages. Throws Error(invalid_input) if it was allocated
/// on another one than `gpu`.
bool on_gpu(const void* p, int gpu);

}  // namespace imbrex::runtime
