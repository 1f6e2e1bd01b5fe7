#include "runtime/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/check.hpp"

namespace imbrex::runtime {
namespace {

// A file that shrank would turn its users' accesses into SIGBUS. The last seal keeps the others.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The signal that a file would send, were it asked to send any (O_ASYNC), which none of ours is. Other files have 0.
constexpr int own_mark = 64;

}  // namespace

FileDescriptor::File FileDescriptor::file_of(int fd) noexcept {
  struct stat status {};
  if (fstat(fd, &status) != 0) return {};
  return {status.st_dev, status.st_ino, fcntl(fd, F_GETSIG) == own_mark};
}

void FileDescriptor::mark() noexcept {
  if (fd_ < 0) return;
  const int cause = errno;  // callers look at it
  fcntl(fd_, F_SETSIG, own_mark);
  file_ = file_of(fd_);
  errno = cause;
}

bool FileDescriptor::is_own() const noexcept {
  if (fd_ < 0) return false;
  const int cause = errno;
  const bool own = fcntl(fd_, F_GETFD) >= 0 && file_of(fd_) == file_;
  errno = cause;
  return own;
}

void FileDescriptor::close() noexcept {
  if (is_own()) ::close(fd_);
  fd_ = -1;
}

int FileDescriptor::above_standard(int fd) {
  const int other = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  const int cause = errno;
  ::close(fd);
  if (other < 0)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("cannot give descriptor {} a number above 2: {}", fd, std::strerror(cause)));
  return other;
}

FileDescriptor SharedMemory::create_file(const char* label, std::size_t bytes) {
  FileDescriptor file(IMBREX_SYSTEM(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  IMBREX_SYSTEM(ftruncate(file.get(), static_cast<off_t>(bytes)));
  IMBREX_SYSTEM(fcntl(file.get(), F_ADD_SEALS, seals));
  return file;
}

SharedMemory::SharedMemory(const FileDescriptor& file, std::size_t bytes) {
  // In this order: what is sealed has the size that it will have.
  const int sealed = fcntl(file.get(), F_GET_SEALS);
  if (sealed < 0 || (sealed & seals) != seals)
    throw Error(ErrorCode::runtime_failure,
                "a shared memory file is not sealed: any process that has it could resize it");
  struct stat status {};
  IMBREX_SYSTEM(fstat(file.get(), &status));
  if (static_cast<std::size_t>(status.st_size) != bytes)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("a shared memory file has {} bytes: it must have {}", status.st_size, bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("cannot map {} bytes of shared memory: {}; is the address space limited (ulimit -v)?",
                            bytes, std::strerror(errno)));
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
}

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, bytes_);
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void zero_shared(std::byte* begin, std::size_t bytes) noexcept {
  const std::size_t page = page_bytes();
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t head = std::min(bytes, (page - address % page) % page);
  const std::size_t pages = (bytes - head) / page * page;
  std::memset(begin, 0, head);
  // Punches a hole; where that is refused, writing zeros is as right, only slower.
  if (pages && madvise(begin + head, pages, MADV_REMOVE) != 0) std::memset(begin + head, 0, pages);
  std::memset(begin + head + pages, 0, bytes - head - pages);
}

}  // namespace imbrex::runtime
