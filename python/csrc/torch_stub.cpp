// Stands for libtorch_cpu.so when the operators are linked. Nothing here is ever called or installed.
extern "C" {
#define IMBREX_STUB(name) \
  void name() {}
IMBREX_STUB(aoti_torch_device_type_cpu)
IMBREX_STUB(aoti_torch_device_type_cuda)
IMBREX_STUB(aoti_torch_dtype_bfloat16)
IMBREX_STUB(aoti_torch_dtype_float16)
IMBREX_STUB(aoti_torch_dtype_float32)
IMBREX_STUB(aoti_torch_dtype_float8_e4m3fn)
IMBREX_STUB(aoti_torch_get_data_ptr)
IMBREX_STUB(aoti_torch_get_dim)
IMBREX_STUB(aoti_torch_get_sizes)
IMBREX_STUB(aoti_torch_get_strides)
IMBREX_STUB(aoti_torch_get_dtype)
IMBREX_STUB(aoti_torch_get_device_type)
IMBREX_STUB(aoti_torch_get_device_index)
IMBREX_STUB(aoti_torch_empty_strided)
IMBREX_STUB(aoti_torch_delete_tensor_object)
IMBREX_STUB(torch_string_length)
IMBREX_STUB(torch_string_c_str)
IMBREX_STUB(torch_delete_string)
IMBREX_STUB(aoti_torch_library_init_def)
IMBREX_STUB(aoti_torch_library_init_impl)
IMBREX_STUB(aoti_torch_library_def)
IMBREX_STUB(torch_library_impl)
}
