#include "base/files/file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/check.hpp"
#include "imbrex/file.hpp"

namespace imbrex {
namespace base {
namespace {

/// Throws for errno: a path that cannot be is bad input, a system that cannot write is a failure at run time.
[[noreturn]] void refuse(const std::string& path) {
  const int cause = errno;
  constexpr int paths_fault[] = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, EROFS, ELOOP, ENAMETOOLONG, ENXIO, ENODEV};
  const bool input = std::find(std::begin(paths_fault), std::end(paths_fault), cause) != std::end(paths_fault);
  throw Error(input ? ErrorCode::invalid_input : ErrorCode::runtime_failure,
              fmt::format("'{}' cannot be written: {}", path, std::strerror(cause)));
}

/// A write past the limit on a file's size fails, and sends SIGXFSZ to the thread: while this lives, it does not end
/// the process, as a full disk does not.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoSizeSignal() {
    const int cause = errno;
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&set_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = cause;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t set_, before_;
};

/// False, and errno, where not all of it could be written.
bool write_all(int descriptor, const void* data, std::size_t bytes) {
  const NoSizeSignal no_signal;
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, at, std::min(bytes, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

struct Parts {
  std::string folder, name;
};

Parts parts_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

/// What lies at a path; a link is not followed. `there` is false where nothing does.
struct Found {
  bool there = false;
  struct stat what {};

  bool folder() const { return there && S_ISDIR(what.st_mode); }
  bool file() const { return there && S_ISREG(what.st_mode); }
  bool in_place() const { return there && !file() && !folder(); }
};

Found find(const std::string& path) {
  Found found;
  found.there = ::lstat(path.c_str(), &found.what) == 0;
  if (!found.there && errno != ENOENT) refuse(path);
  return found;
}

/// A link, pipe or device that somebody else put where others may write would lead this user's data to where it must
/// not go, or keep the program waiting.
void expect_own(const std::string& path, const Found& found) {
  const std::string folder = parts_of(path).folder;
  struct stat around {};
  if (::stat(folder.c_str(), &around) != 0) refuse(path);
  const uid_t owner = found.what.st_uid;
  if (owner == ::geteuid() || owner == 0 || owner == around.st_uid) return;
  IMBREX_EXPECTS((around.st_mode & (S_IWGRP | S_IWOTH)) == 0,
                 "'{}': it is another user's link, pipe or device, in a folder that others may write to", path);
}

void expect_file_in(const std::string& path) {
  const auto [folder, name] = parts_of(path);
  IMBREX_EXPECTS(!name.empty() && name != "." && name != "..", "'{}': it is a folder", path);
  struct stat around {};
  const bool good = ::stat(folder.c_str(), &around) == 0 && S_ISDIR(around.st_mode);
  IMBREX_EXPECTS(good && ::access(folder.c_str(), W_OK) == 0, "'{}': '{}' is no folder that can be written to", path,
                 folder);
}

void write_in_place(const std::string& path, std::string_view bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) refuse(path);
  const bool written = write_all(descriptor, bytes.data(), bytes.size());
  const int cause = errno;
  const bool closed = ::close(descriptor) == 0;
  if (!written) errno = cause;
  if (!written || !closed) refuse(path);
}

}  // namespace

NewFile::NewFile(const std::string& path, Unborn unborn) : path_(path) {
  const auto [folder, name] = parts_of(path);
  name_ = name;
  if (name.empty()) {
    errno = EISDIR;
    fail();
  }
  folder_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) fail();
  try {
    struct stat old {};
    const bool there = ::fstatat(folder_, name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && S_ISDIR(old.st_mode)) {
      errno = EISDIR;
      fail();
    }
    replaces_ = there && S_ISREG(old.st_mode);
    const bool own = replaces_ && old.st_uid == ::geteuid();
    // No reader of another user's file finds more than that user granted, and no stranger grants anything.
    const unsigned granted = old.st_mode & 0777;
    open(unborn, !replaces_ ? 0666 : own ? granted : (granted & 0666) | 0600);
    if (!own) return;
    struct stat now {};
    const bool same_group =
        ::fstat(descriptor_, &now) == 0 &&
        (now.st_gid == old.st_gid || ::fchown(descriptor_, static_cast<uid_t>(-1), old.st_gid) == 0);
    // Where a file system has no permissions, there are none to keep.
    static_cast<void>(::fchmod(descriptor_, same_group ? granted : granted & ~070u));
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    temporary_.reset();
    ::close(folder_);
    throw;
  }
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  temporary_.reset();
  ::close(folder_);
}

void NewFile::open(Unborn unborn, unsigned mode) {
  if (unborn == Unborn::nameless) {
    descriptor_ = ::openat(folder_, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    // Without /proc it could not be given a name.
    if (descriptor_ >= 0 && ::access(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), F_OK) == 0) return;
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  temporary_ = std::make_unique<TemporaryName>(folder_);
  descriptor_ = temporary_->alone(
      [&] { return ::openat(folder_, temporary_->get(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode); });
  if (descriptor_ < 0) fail();
}

void NewFile::write(const void* data, std::size_t bytes) {
  if (!write_all(descriptor_, data, bytes)) fail();
}

void NewFile::sync() {
  if (::fdatasync(descriptor_) != 0) fail();
}

bool NewFile::link_as(const char* name) const {
  const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
  return ::linkat(AT_FDCWD, own.c_str(), folder_, name, AT_SYMLINK_FOLLOW) == 0;
}

bool NewFile::place() {
  if (!temporary_) {
    if (link_as(name_.c_str())) return true;
    if (errno != EEXIST) return false;
    // No link replaces a file, but a file with a name does.
    temporary_ = std::make_unique<TemporaryName>(folder_);
    if (temporary_->alone([&] { return link_as(temporary_->get()) ? 0 : -1; }) != 0) return false;
  } else {
    // Where files have names from the start, some file systems (NFS) say only now that the disk is full.
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) return false;
  }
  return temporary_->alone([&] { return ::renameat(folder_, temporary_->get(), folder_, name_.c_str()); }) == 0;
}

void NewFile::appear() {
  if (!place()) fail();
}

void NewFile::fail() const { refuse(path_); }

void expect_replaceable(const std::string& path) {
  IMBREX_EXPECTS(!find(path).folder(), "'{}': it is a folder", path);
  expect_file_in(path);
}

std::string add_line(const std::string& path, std::string_view line) noexcept {
  // A pipe without a reader is no reason to wait.
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) return std::strerror(errno);
  const ssize_t written = ::write(file, line.data(), line.size());
  const int why = errno;
  ::close(file);
  if (written < 0) return std::strerror(why);
  return static_cast<std::size_t>(written) == line.size() ? std::string() : "no space is left";
}

}  // namespace base

void write_file(const std::string& path, std::string_view bytes) {
  const base::Found found = base::find(path);
  if (found.in_place()) {
    base::expect_own(path, found);
    return base::write_in_place(path, bytes);
  }
  base::NewFile file(path);
  file.write(bytes.data(), bytes.size());
  if (file.replaces()) file.sync();
  file.appear();
}

void expect_writable(const std::string& path) {
  const base::Found found = base::find(path);
  IMBREX_EXPECTS(!found.folder(), "'{}': it is a folder", path);
  if (!found.in_place()) return base::expect_file_in(path);
  base::expect_own(path, found);
  IMBREX_EXPECTS(::access(path.c_str(), W_OK) == 0, "'{}': it cannot be written to: {}", path, std::strerror(errno));
}

}  // namespace imbrex
