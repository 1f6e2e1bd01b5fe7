// Writing whole files; include/imbrex/file.hpp has the contract.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/temporary_name.hpp"

namespace imbrex::base {

/// A file that appears under its name once it is whole. It replaces atomically what has the name, a link too, which is
/// not followed. Until then it has no name, or, where the file system cannot do that, a TemporaryName in the same
/// folder.
class NewFile {
 public:
  enum class Unborn { nameless, named };

  /// Errors are those of write_file. `unborn` is for tests.
  explicit NewFile(const std::string& path, Unborn unborn = Unborn::nameless);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Appends.
  void write(const void* data, std::size_t bytes);

  /// Whether there was a file of its name when it was begun.
  bool replaces() const noexcept { return replaces_; }

  /// Waits until the data is on disk.
  void sync();

  /// The last call.
  void appear();

 private:
  void open(Unborn unborn, unsigned mode);
  bool link_as(const char* name) const;
  bool place();
  [[noreturn]] void fail() const;

  std::string path_, name_;
  int folder_ = -1, descriptor_ = -1;
  bool replaces_ = false;
  std::unique_ptr<TemporaryName> temporary_;
};

/// Adds a short line to the end of a file, which may not be there yet, by one write: lines of several processes stay
/// whole. Returns why it was not added; empty if it was.
std::string add_line(const std::string& path, std::string_view line) noexcept;

/// expect_writable for what a NewFile replaces: a link is not followed.
void expect_replaceable(const std::string& path);

}  // namespace imbrex::base
