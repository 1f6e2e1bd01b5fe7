#include "runtime/cuda/driver.hpp"

namespace imbrex::runtime {
namespace {

template <typename Function>
cudaError_t find_optional(Function& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  // All of these have had this form since CUDA 11.4.
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  const bool there = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
  function = there ? reinterpret_cast<Function>(found) : nullptr;
  return status;
}

template <typename Function>
void find(Function& function, const char* name) {
  const cudaError_t status = find_optional(function, name);
  if (function == nullptr)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("the CUDA driver has no {}: {}", name, cudaGetErrorString(status)));
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
    find(d.stream_context, "cuStreamGetCtx");
    find(d.push_context, "cuCtxPushCurrent");
    find(d.pop_context, "cuCtxPopCurrent");
    find(d.context_device, "cuCtxGetDevice");
    find(d.batch_mem_op, "cuStreamBatchMemOp");
    if (find_optional(d.encode_tensor_map, "cuTensorMapEncodeTiled") != cudaSuccess) cudaGetLastError();
    if (find_optional(d.context_affinity, "cuCtxGetExecAffinity") != cudaSuccess) cudaGetLastError();
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

// NOTE: cuStreamGetDevice says it at once, but not of a stream that is being captured: asking ends the capture.
int device_of(CUstream stream) {
  CUcontext context = nullptr;
  IMBREX_DRIVER_TRY(stream_context, stream, &context);
  IMBREX_DRIVER_TRY(push_context, context);
  CUdevice device = 0;
  const CUresult result = driver().context_device(&device);
  driver().pop_context(&context);
  check_driver(result, "context_device");
  return device;
}

}  // namespace imbrex::runtime
