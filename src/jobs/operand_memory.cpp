#include "jobs/operand_memory.hpp"

#include <algorithm>
#include <optional>

#include "runtime/cuda/device_memory.hpp"

namespace imbrex::jobs {
namespace {

constexpr unsigned char poison_byte = 0xff;  // NaN in every type

template <typename T>
const T* data_of(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

class HostOperands final : public OperandMemory {
 public:
  HostOperands(HostValues values, std::size_t out_bytes) : values_(std::move(values)), out_(out_bytes) {}

  Addresses operands() override {
    return {values_.a.data(),      values_.b.data(),         out_.data(),
            data_of(values_.bias), data_of(values_.a_scale), data_of(values_.b_scale)};
  }
  void poison() override { std::fill(out_.begin(), out_.end(), std::byte{poison_byte}); }
  const std::vector<std::byte>& output() override { return out_; }

 private:
  HostValues values_;
  std::vector<std::byte> out_;
};

class DeviceOperands final : public OperandMemory {
 public:
  DeviceOperands(const HostValues& values, std::size_t out_bytes, Executor& executor)
      : a_(values.a.size()), b_(values.b.size()), out_(out_bytes, executor.allocate_output(out_bytes)) {
    a_.upload(values.a);
    b_.upload(values.b);
    if (!values.bias.empty()) bias_.emplace(values.bias.size()).upload(values.bias);
    upload(a_scale_, values.a_scale);
    upload(b_scale_, values.b_scale);
  }

  Addresses operands() override {
    return {a_.get(), b_.get(), out_.get(), bias_ ? bias_->get() : nullptr, floats(a_scale_), floats(b_scale_)};
  }
  void poison() override { out_.fill(poison_byte); }
  const std::vector<std::byte>& output() override {
    out_.download(host_);
    return host_;
  }

 private:
  using Memory = std::optional<runtime::DeviceMemory>;

  static void upload(Memory& memory, const std::vector<float>& values) {
    if (!values.empty()) memory.emplace(values.size() * sizeof(float)).upload(values.data());
  }
  static const float* floats(const Memory& memory) {
    return memory ? static_cast<const float*>(memory->get()) : nullptr;
  }

  runtime::DeviceMemory a_, b_, out_;
  Memory bias_, a_scale_, b_scale_;
  std::vector<std::byte> host_;
};

}  // namespace

std::unique_ptr<OperandMemory> host_operands(HostValues values, std::size_t out_bytes) {
  return std::make_unique<HostOperands>(std::move(values), out_bytes);
}

std::unique_ptr<OperandMemory> device_operands(const HostValues& values, std::size_t out_bytes, Executor& executor) {
  return std::make_unique<DeviceOperands>(values, out_bytes, executor);
}

}  // namespace imbrex::jobs
