// The part of torch's stable C interface that Imbrex' operators use, as torch 2.10 and later keep it. A test compares
// it with torch's own headers, so that building needs none of them.
#pragma once

#include <cstddef>
#include <cstdint>

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
class TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;  // 0: it worked

// One argument or result of an operator: a number, a handle, or the address of another one that is optional.
using StableIValue = uint64_t;

extern "C" {
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float8_e4m3fn();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_dtype_int64();
int32_t aoti_torch_dtype_int32();
int32_t aoti_torch_dtype_int16();
int32_t aoti_torch_dtype_int8();
int32_t aoti_torch_dtype_uint8();
int32_t aoti_torch_dtype_bool();

AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret_dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret_sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret_strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret_dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* ret_device_type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* ret_device_index);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle* ret_new_tensor);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);

AOTITorchError torch_string_length(StringHandle handle, size_t* length);
AOTITorchError torch_string_c_str(StringHandle handle, const char** data);
AOTITorchError torch_delete_string(StringHandle handle);

AOTITorchError aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line,
                                           TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_init_impl(const char* ns, const char* k, const char* file, uint32_t line,
                                            TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle self, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char* name,
                                  void (*fn)(StableIValue*, uint64_t, uint64_t), uint64_t extension_build_version);
}

namespace imbrex_torch {

// torch 2.10.0, in the form that torch_library_impl expects.
inline constexpr std::uint64_t abi_version = (2ULL << 56) | (10ULL << 48);

}  // namespace imbrex_torch
