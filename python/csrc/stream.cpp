#include "stream.hpp"

#include <dlfcn.h>

namespace imbrex_torch {
namespace {

template <typename Function>
Function* find(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

}  // namespace

void* current_stream(int device_index) {
  static auto* const get =
      find<AOTITorchError(std::int32_t, void**)>("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  if (!get) fail(IMBREX_RUNTIME_FAILURE, "this torch has no CUDA: its libtorch_cuda.so is not loaded");
  void* stream = nullptr;
  check_torch(get(device_index, &stream));
  return stream;
}

bool is_capturing(void* stream) {
  static auto* const query = find<int(void*, int*)>("libcuda.so.1", "cuStreamIsCapturing");
  int status = 0;
  return query && query(stream, &status) == 0 && status != 0;
}

}  // namespace imbrex_torch
