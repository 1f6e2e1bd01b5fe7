#include "runtime/libraries/shared_library.hpp"

#include <dlfcn.h>

namespace imbrex::runtime {

SharedLibrary::SharedLibrary(const std::string& name) : name_(name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return;
  const char* text = dlerror();
  const std::string reason = text != nullptr ? text : "unknown error";
#if defined(IMBREX_CUDA_LIBRARY_DIR)
  handle_ = dlopen((IMBREX_CUDA_LIBRARY_DIR "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
#endif
  if (handle_ == nullptr)
    throw Error(
        ErrorCode::runtime_failure,
        fmt::format("{} cannot be loaded ({}); install it, or name its folder in LD_LIBRARY_PATH", name, reason));
}

void* SharedLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace imbrex::runtime
