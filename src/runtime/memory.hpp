// Owners of what the operating system lends: file descriptors, and memory that processes share.
#pragma once

#include <cstddef>
#include <utility>

namespace imbrex::runtime {

/// Owns a file descriptor. Never 0 to 2, which a program may have closed and still print to: one that has such a number
/// is given another, closed on exec.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd >= 0 && fd <= 2 ? above_standard(fd) : fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  /// Closes `fd`. Throws Error(runtime_failure) where there is no other.
  static int above_standard(int fd);

  int fd_ = -1;
};

/// Owns a mapping of a memory file of `bytes` bytes, shared with every process that maps the same file.
class SharedMemory {
 public:
  /// Makes a memory file (no name anywhere; gone with its last user) of zeroed bytes, taken on first touch.
  static FileDescriptor create_file(const char* label, std::size_t bytes);

  SharedMemory() = default;
  /// Throws Error(runtime_failure) unless the file has exactly `bytes` bytes and is sealed against resizing: the touch
  /// of what it has not, or has no more, would kill the process.
  SharedMemory(const FileDescriptor& file, std::size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

std::size_t page_bytes();

/// Zeroes memory of a SharedMemory. Whole pages go back to the operating system.
void zero_shared(std::byte* begin, std::size_t bytes) noexcept;

}  // namespace imbrex::runtime
