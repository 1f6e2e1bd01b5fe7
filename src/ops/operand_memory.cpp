#include "ops/operand_memory.hpp"

#include <algorithm>
#include <optional>

#include "runtime/cuda/device_memory.hpp"

namespace imbrex {
namespace {

constexpr unsigned char poison_byte = 0xff;  // NaN in every type

class HostOperands final : public OperandMemory {
 public:
  HostOperands(std::vector<std::byte> a, std::vector<std::byte> b, std::vector<std::byte> bias, std::size_t out_bytes)
      : a_(std::move(a)), b_(std::move(b)), bias_(std::move(bias)), out_(out_bytes) {}

  Operands operands() override { return {a_.data(), b_.data(), out_.data(), bias_.empty() ? nullptr : bias_.data()}; }
  void poison() override { std::fill(out_.begin(), out_.end(), std::byte{poison_byte}); }
  const std::vector<std::byte>& output() override { return out_; }

 private:
  std::vector<std::byte> a_, b_, bias_, out_;
};

class DeviceOperands final : public OperandMemory {
 public:
  DeviceOperands(const std::vector<std::byte>& a, const std::vector<std::byte>& b, const std::vector<std::byte>& bias,
                 std::size_t out_bytes, Executor& executor)
      : a_(a.size()), b_(b.size()), out_(out_bytes, executor.allocate_output(out_bytes)) {
    a_.upload(a);
    b_.upload(b);
    if (!bias.empty()) bias_.emplace(bias.size()).upload(bias);
  }

  Operands operands() override { return {a_.get(), b_.get(), out_.get(), bias_ ? bias_->get() : nullptr}; }
  void poison() override { out_.fill(poison_byte); }
  const std::vector<std::byte>& output() override {
    out_.download(host_);
    return host_;
  }

 private:
  runtime::DeviceMemory a_, b_, out_;
  std::optional<runtime::DeviceMemory> bias_;
  std::vector<std::byte> host_;
};

}  // namespace

std::unique_ptr<OperandMemory> host_operands(std::vector<std::byte> a, std::vector<std::byte> b,
                                             std::vector<std::byte> bias, std::size_t out_bytes) {
  return std::make_unique<HostOperands>(std::move(a), std::move(b), std::move(bias), out_bytes);
}

std::unique_ptr<OperandMemory> device_operands(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                               const std::vector<std::byte>& bias, std::size_t out_bytes,
                                               Executor& executor) {
  return std::make_unique<DeviceOperands>(a, b, bias, out_bytes, executor);
}

}  // namespace imbrex
