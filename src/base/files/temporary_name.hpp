// Names of temporary files.
#pragma once

#include <array>
#include <functional>

namespace imbrex::base {

/// An unguessable name in a folder. What has the name goes away with the object, and also when SIGTERM, SIGINT
/// or SIGHUP ends the process, unless the program handles or ignores that signal itself. So does it when the parent
/// ends and this thread asked for SIGKILL then: until the name is gone, it gets SIGTERM instead.
class TemporaryName {
 public:
  /// `folder` is an open descriptor, which outlives the object. Throws Error(runtime_failure).
  explicit TemporaryName(int folder);
  ~TemporaryName();
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const char* get() const noexcept;

  /// Calls `action`, which makes or renames the file of this name, and returns what it does. No signal's cleaning up
  /// falls into it; where one has begun, on another thread, this does not return.
  int alone(const std::function<int()>& action);

 private:
  struct Place;
  class Busy;
  friend struct Places;
  Place* place_;
  bool gentler_end_ = false;
};

}  // namespace imbrex::base
