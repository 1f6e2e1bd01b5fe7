#include "runtime/cuda/driver.hpp"

namespace imbrex::runtime {
namespace {

template <typename Function>
void find(Function& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  // All of these have had this form since CUDA 10.2.
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("the CUDA driver has no {}: {}", name, cudaGetErrorString(status)));
  function = reinterpret_cast<Function>(found);
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = [] {
    Driver d;
    find(d.get_error_string, "cuGetErrorString");
    find(d.device_get, "cuDeviceGet");
    find(d.device_get_attribute, "cuDeviceGetAttribute");
    find(d.get_granularity, "cuMemGetAllocationGranularity");
    find(d.create, "cuMemCreate");
    find(d.release, "cuMemRelease");
    find(d.reserve, "cuMemAddressReserve");
    find(d.free_address, "cuMemAddressFree");
    find(d.map, "cuMemMap");
    find(d.unmap, "cuMemUnmap");
    find(d.set_access, "cuMemSetAccess");
    find(d.export_handle, "cuMemExportToShareableHandle");
    find(d.import_handle, "cuMemImportFromShareableHandle");
    return d;
  }();
  return loaded;
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  throw Error(ErrorCode::runtime_failure,
              fmt::format("driver call {} failed: {}", call, text != nullptr ? text : "unknown error"));
}

int device_attribute(int device, CUdevice_attribute attribute) {
  CUdevice handle = 0;
  int value = 0;
  IMBREX_DRIVER_TRY(device_get, &handle, device);
  IMBREX_DRIVER_TRY(device_get_attribute, &value, attribute, handle);
  return value;
}

}  // namespace imbrex::runtime
