// torch's tensors and arguments, as the operators read them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"

namespace imbrex_torch {

/// A tensor, and what it says of itself. An empty one stands for an optional argument that was not given.
class Tensor {
 public:
  Tensor() = default;
  Tensor(AtenTensorHandle handle, const char* name) : handle_(handle), name_(name) {}
  Tensor(Tensor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), name_(other.name_), info_(other.info_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    std::swap(info_, other.info_);
    return *this;
  }
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  /// Reads sizes and the rest, which must come before all below. Throws where Imbrex has no such type or device.
  void read();

  /// The first half of it, which throws for nothing that a caller gave.
  void fetch();

  /// What a fetched tensor says of itself, except its address, in `form_words` numbers; false where it has too many
  /// dimensions for that.
  static constexpr int form_words = 7;
  bool write_form(std::int64_t* words) const;

  explicit operator bool() const { return handle_ != nullptr; }
  const char* name() const { return name_; }
  int dims() const { return info_.dims; }
  std::int64_t size(int dim) const { return info_.sizes[dim]; }
  std::int64_t stride(int dim) const { return info_.strides[dim]; }
  std::int64_t count() const;
  std::int32_t dtype() const { return info_.dtype; }  ///< torch's number
  imbrex_type type() const { return info_.type; }
  bool on_gpu() const { return info_.on_gpu; }
  int device_index() const { return info_.device_index; }
  void* data() const { return info_.data; }
  std::string shape() const;
  std::string device_name() const;

  imbrex_view view() const;

  /// Hands the tensor to torch as a result.
  StableIValue give() { return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr)); }

  /// A new tensor without gaps beside `like` on its device.
  static Tensor empty(std::span<const std::int64_t> sizes, imbrex_type type, const Tensor& like);

  /// An empty tensor with strides and torch's number of a type as given; only its address is read.
  static Tensor empty(int dims, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                      const Tensor& like);

 private:
  struct Info {
    const std::int64_t* sizes = nullptr;
    const std::int64_t* strides = nullptr;
    int dims = 0;
    std::int32_t dtype = 0, device = 0;  // torch's numbers
    imbrex_type type = IMBREX_BF16;
    bool on_gpu = false;
    int device_index = -1;
    void* data = nullptr;
  };

  AtenTensorHandle handle_ = nullptr;
  const char* name_ = "";
  Info info_;
};

/// "bf16" and so on.
const char* name_of(imbrex_type type);

/// torch's number of a type, and back; nothing for a type that Imbrex does not have.
std::int32_t dtype_of(imbrex_type type);
std::optional<imbrex_type> type_of(std::int32_t dtype);

/// A text of the user's for C, whose own end at a NUL. Refuses one that holds a NUL.
const char* for_c(const char* name, const std::string& text);

/// A text among an operator's arguments, where torch has it.
class Text {
 public:
  explicit Text(StableIValue value) : handle_(reinterpret_cast<StringHandle>(value)) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { torch_delete_string(handle_); }
  std::string_view view() const;

 private:
  StringHandle handle_;
};

/// Takes an operator's arguments in their order. What it returns owns what it holds, so that nothing is lost by an
/// error; it throws none itself.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : stack_(stack) {}

  Tensor tensor(const char* name) { return {reinterpret_cast<AtenTensorHandle>(*stack_++), name}; }
  Tensor optional_tensor(const char* name) {
    const auto held = optional();
    return held ? Tensor(reinterpret_cast<AtenTensorHandle>(*held), name) : Tensor();
  }
  std::int64_t integer() { return static_cast<std::int64_t>(*stack_++); }
  double number() { return number_of(*stack_++); }
  std::optional<double> optional_number() {
    const auto held = optional();
    return held ? std::optional(number_of(*held)) : std::nullopt;
  }
  std::optional<std::int32_t> optional_dtype() {
    const auto held = optional();
    return held ? std::optional(static_cast<std::int32_t>(*held)) : std::nullopt;
  }
  std::string text() { return text_of(*stack_++); }
  std::optional<std::string> optional_text() {
    const auto held = optional();
    return held ? std::optional(text_of(*held)) : std::nullopt;
  }

 private:
  std::unique_ptr<StableIValue> optional() {
    return std::unique_ptr<StableIValue>(reinterpret_cast<StableIValue*>(*stack_++));
  }
  static double number_of(StableIValue value);
  static std::string text_of(StableIValue value);

  StableIValue* stack_;
};

}  // namespace imbrex_torch
