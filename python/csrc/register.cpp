// Tells torch of the operators when this library is loaded.
#include <cstring>
#include <utility>

#include "errors.hpp"
#include "interface.hpp"
#include "kernels.hpp"
#include "schemas.hpp"

namespace imbrex_torch {
namespace {

#define IMBREX_PRODUCT_KERNELS(name, kind, sums) \
  {#name, name}, {#name "_out", name##_out}, {#name "_plain", name##_plain}, {#name "_plain_out", name##_plain_out},
constexpr std::pair<const char*, Kernel*> kernels[]{
    IMBREX_PRODUCTS(IMBREX_PRODUCT_KERNELS){"all_gather_matmuls", all_gather_matmuls},
    {"all_reduce", all_reduce},
    {"all_reduce_out", all_reduce_out},
    {"all_reduce_rms_norm", all_reduce_rms_norm},
    {"all_reduce_rms_norm_out", all_reduce_rms_norm_out},
};

// The libraries of torch stay for the life of the process, as this one does.
const bool registered = [] {
  TorchLibraryHandle definitions = nullptr;
  check_torch(aoti_torch_library_init_def("imbrex", __FILE__, __LINE__, &definitions));
  for (const char* schema : schemas) check_torch(aoti_torch_library_def(definitions, schema));
  for (const char* key : {"CPU", "CUDA"}) {
    TorchLibraryHandle implementations = nullptr;
    check_torch(aoti_torch_library_init_impl("imbrex", key, __FILE__, __LINE__, &implementations));
    for (const auto& [name, kernel] : kernels)
      check_torch(torch_library_impl(implementations, name, kernel, abi_version));
  }
  return true;
}();

}  // namespace
}  // namespace imbrex_torch

const char* imbrex_torch_schema(int32_t index) {
  using imbrex_torch::schemas;
  return index >= 0 && static_cast<std::size_t>(index) < schemas.size() ? schemas[static_cast<std::size_t>(index)]
                                                                        : nullptr;
}
