// The driver's functions that the runtime lacks, found at run time: no binary links the driver, so that one built on a
// machine without a GPU runs on a machine with one.
#pragma once

#include <cuda.h>

#include "runtime/cuda/check.hpp"

namespace imbrex::runtime {

struct Driver {
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&::cuMemGetAllocationGranularity) get_granularity = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_address = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuStreamGetCtx) stream_context = nullptr;
  decltype(&::cuCtxPushCurrent) push_context = nullptr;
  decltype(&::cuCtxPopCurrent) pop_context = nullptr;
  decltype(&::cuCtxGetDevice) context_device = nullptr;
  decltype(&::cuStreamBatchMemOp) batch_mem_op = nullptr;
  decltype(&::cuTensorMapEncodeTiled) encode_tensor_map = nullptr;  ///< null: a driver older than CUDA 12
  decltype(&::cuCtxGetExecAffinity) context_affinity = nullptr;     ///< null: the driver has none
};

/// Throws Error(runtime_failure) where there is no driver, or one without a function.
const Driver& driver();

/// Throws Error(runtime_failure) naming `call` and the driver's error.
void check_driver(CUresult result, const char* call);

/// An attribute of the device with that number.
int device_attribute(int device, CUdevice_attribute attribute);

/// Number of the device that a stream belongs to. Before driver 12.5 it cannot be asked while the stream is captured.
int device_of(CUstream stream);

}  // namespace imbrex::runtime

#define IMBREX_DRIVER_TRY(function, ...) \
  ::imbrex::runtime::check_driver(::imbrex::runtime::driver().function(__VA_ARGS__), #function)
