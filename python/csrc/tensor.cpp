#include "tensor.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace imbrex_torch {

imbrex_status& last_code() noexcept {
  thread_local imbrex_status code = IMBREX_OK;
  return code;
}

std::string& last_message() noexcept {
  thread_local std::string message;
  return message;
}

namespace {

// torch's numbers, asked for once: they are not part of its interface.
struct Numbers {
  std::array<std::int32_t, 4> types{aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(), aoti_torch_dtype_float32(),
                                    aoti_torch_dtype_float8_e4m3fn()};
  std::int32_t cpu = aoti_torch_device_type_cpu();
  std::int32_t cuda = aoti_torch_device_type_cuda();
};

const Numbers& numbers() {
  static const Numbers made;
  return made;
}

// What a message says of a dtype that no operator takes; nothing of those that are rarer.
std::string name_other(std::int32_t dtype) {
  using Ask = std::int32_t (*)();
  constexpr std::array<std::pair<Ask, const char*>, 7> others{{{aoti_torch_dtype_float64, "float64"},
                                                               {aoti_torch_dtype_int64, "int64"},
                                                               {aoti_torch_dtype_int32, "int32"},
                                                               {aoti_torch_dtype_int16, "int16"},
                                                               {aoti_torch_dtype_int8, "int8"},
                                                               {aoti_torch_dtype_uint8, "uint8"},
                                                               {aoti_torch_dtype_bool, "bool"}}};
  for (const auto& [ask, name] : others)
    if (ask() == dtype) return std::string(" is of torch.") + name;
  return {};
}

}  // namespace

const char* name_of(imbrex_type type) {
  constexpr std::array names{"bf16", "fp16", "fp32", "e4m3"};
  return names[static_cast<std::size_t>(type)];
}

std::int32_t dtype_of(imbrex_type type) { return numbers().types[static_cast<std::size_t>(type)]; }

std::optional<imbrex_type> type_of(std::int32_t dtype) {
  for (imbrex_type type : {IMBREX_BF16, IMBREX_FP16, IMBREX_FP32, IMBREX_E4M3})
    if (dtype_of(type) == dtype) return type;
  return std::nullopt;
}

void Tensor::fetch() {
  std::int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  std::int32_t index = 0;
  check_torch(aoti_torch_get_dim(handle_, &dims));
  check_torch(aoti_torch_get_sizes(handle_, &sizes));
  check_torch(aoti_torch_get_strides(handle_, &strides));
  check_torch(aoti_torch_get_dtype(handle_, &info_.dtype));
  check_torch(aoti_torch_get_device_type(handle_, &info_.device));
  check_torch(aoti_torch_get_device_index(handle_, &index));
  check_torch(aoti_torch_get_data_ptr(handle_, &info_.data));
  info_.sizes = sizes;
  info_.strides = strides;
  info_.dims = static_cast<int>(dims);
  info_.device_index = index;
}

bool Tensor::write_form(std::int64_t* words) const {
  constexpr int most = (form_words - 1) / 2;
  if (info_.dims > most) return false;
  words[0] = info_.dims | std::int64_t{info_.dtype} << 8 | std::int64_t{info_.device} << 24 |
             std::int64_t{info_.device_index} << 40;
  for (int i = 0; i < info_.dims; ++i) {
    words[1 + i] = info_.sizes[i];
    words[1 + most + i] = info_.strides[i];
  }
  return true;
}

void Tensor::read() {
  fetch();
  info_.on_gpu = info_.device == numbers().cuda;
  if (!info_.on_gpu && info_.device != numbers().cpu)
    refuse(std::string(name_) + ": it must be on the CPU or on a CUDA device");
  const auto type = type_of(info_.dtype);
  if (!type)
    refuse(std::string(name_) + name_other(info_.dtype) +
           ": its dtype must be torch.bfloat16, torch.float16, torch.float32 or torch.float8_e4m3fn");
  info_.type = *type;
  if (info_.dims > IMBREX_MOST_DIMS)
    refuse(std::string(name_) + " has " + std::to_string(info_.dims) + " dimensions: at most " +
           std::to_string(IMBREX_MOST_DIMS));
}

std::int64_t Tensor::count() const {
  std::int64_t result = 1;
  for (int i = 0; i < info_.dims; ++i) result *= info_.sizes[i];
  return result;
}

std::string Tensor::shape() const {
  std::string result;
  for (int i = 0; i < info_.dims; ++i) result += (i ? " x " : "") + std::to_string(info_.sizes[i]);
  return result.empty() ? "one element" : result;
}

std::string Tensor::device_name() const { return info_.on_gpu ? "cuda:" + std::to_string(info_.device_index) : "cpu"; }

imbrex_view Tensor::view() const {
  imbrex_view result{info_.data, info_.type, info_.dims, {}, {}};
  std::copy_n(info_.sizes, info_.dims, result.extents);
  std::copy_n(info_.strides, info_.dims, result.strides);
  return result;
}

Tensor Tensor::empty(std::span<const std::int64_t> sizes, imbrex_type type, const Tensor& like) {
  std::array<std::int64_t, IMBREX_MOST_DIMS> strides{};
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) strides[i] = std::exchange(stride, stride * sizes[i]);
  Tensor result = empty(static_cast<int>(sizes.size()), sizes.data(), strides.data(), dtype_of(type), like);
  result.read();
  return result;
}

Tensor Tensor::empty(int dims, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                     const Tensor& like) {
  AtenTensorHandle made = nullptr;
  check_torch(aoti_torch_empty_strided(dims, sizes, strides, dtype, like.info_.device, like.info_.device_index, &made));
  Tensor result(made, "out");
  check_torch(aoti_torch_get_data_ptr(made, &result.info_.data));
  return result;
}

std::string_view Text::view() const {
  const char* data = "";
  std::size_t length = 0;
  torch_string_c_str(handle_, &data);
  torch_string_length(handle_, &length);
  return {data, length};
}

double Arguments::number_of(StableIValue value) {
  double result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

const char* for_c(const char* name, const std::string& text) {
  if (text.find('\0') != std::string::npos)
    refuse(std::string(name) + " is '" + text.c_str() + "' with a NUL character, which it must not hold");
  return text.c_str();
}

std::string Arguments::text_of(StableIValue value) { return std::string(Text(value).view()); }

}  // namespace imbrex_torch
