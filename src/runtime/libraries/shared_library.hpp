// Libraries found at run time: a binary starts where they are missing, and says so when they are needed.
#pragma once

#include <string>

#include "base/check.hpp"

namespace imbrex::runtime {

class SharedLibrary {
 public:
  /// Loads `name` from where the system looks for libraries, else from where a build with CUDA found its toolkit.
  /// Throws Error(runtime_failure) naming it. It stays loaded.
  explicit SharedLibrary(const std::string& name);

  /// Sets `function` to the symbol's address. Throws Error(runtime_failure) naming library and symbol.
  template <typename Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address(symbol));
    if (function == nullptr)
      throw Error(ErrorCode::runtime_failure, fmt::format("{} has no {}: it is too old", name_, symbol));
  }
  /// Null where the library lacks it.
  template <typename Function>
  void find_optional(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace imbrex::runtime
