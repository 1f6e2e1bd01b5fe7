// Owners of what the operating system lends: file descriptors, and memory that processes share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace imbrex::runtime {

/// Owns a file descriptor. Never 0 to 2, which a program may have closed and still print to: one that has such a number
/// is given another, closed on exec. A program may also close what it does not own, all descriptors above some number,
/// and open files of its own that get the same numbers. These are left alone.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd >= 0 && fd <= 2 ? above_standard(fd) : fd) { mark(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), file_(other.file_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Whether the number still stands for the file that it was taken for, which only this object closes: no program has
  /// closed or replaced it. False where there is none.
  bool is_own() const noexcept;
  void close() noexcept;

 private:
  // What tells a file from others. Those that have no name may share device and inode; so all are marked.
  struct File {
    std::uint64_t device = 0, inode = 0;
    bool marked = false;

    bool operator==(const File&) const = default;
  };

  static File file_of(int fd) noexcept;
  void mark() noexcept;
  /// Closes `fd`. Throws Error(runtime_failure) where there is no other.
  static int above_standard(int fd);

  int fd_ = -1;
  File file_;
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
