#include "program/operand_memory.hpp"

#include <algorithm>
#include <optional>

#include "execute/layout.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"
#include "runtime/cuda/device_memory.hpp"

namespace imbrex::program {
namespace {

constexpr unsigned char poison_byte = 0xff;  // NaN in every type

template <typename T>
const T* data_of(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

// Where the outputs go, by their places in outputs_of.
void set_outputs(Addresses& addresses, const std::vector<void*>& outputs, bool gathered) {
  const std::size_t products = outputs.size() - (gathered ? 1 : 0);
  addresses.out = outputs.front();
  for (std::size_t i = 1; i < products; ++i) addresses.more[i - 1].out = outputs[i];
  if (gathered) addresses.gathered = outputs.back();
}

HostValues spread(HostValues values, const Problem& problem) {
  for (const OperandInfo& info : operands_of(problem)) {
    if (info.name == "a") values.a = with_gaps(info, std::move(values.a));
    if (info.name == "b") values.b = with_gaps(info, std::move(values.b));
    for (int product = 1; product < plan::count_products(problem); ++product)
      if (auto& b = values.more[static_cast<std::size_t>(product) - 1].b; info.name == plan::name_of_b(product))
        b = with_gaps(info, std::move(b));
  }
  return values;
}

class HostOperands final : public OperandMemory {
 public:
  HostOperands(HostValues values, const Problem& problem)
      : OperandMemory(problem), values_(spread(std::move(values), problem)), gathered_(problem.gathered_a) {
    for (const OperandInfo& info : outputs_of(problem)) outputs_.emplace_back(info.bytes());
  }

  Addresses operands() override {
    Addresses addresses{values_.a.data(),      values_.b.data(),         nullptr,
                        data_of(values_.bias), data_of(values_.a_scale), data_of(values_.b_scale)};
    for (std::size_t i = 0; i < values_.more.size(); ++i)
      addresses.more[i] = {data_of(values_.more[i].b), data_of(values_.more[i].bias), nullptr};
    std::vector<void*> outputs;
    for (auto& output : outputs_) outputs.push_back(output.data());
    set_outputs(addresses, outputs, gathered_);
    return addresses;
  }
  void poison() override {
    for (auto& output : outputs_) std::fill(output.begin(), output.end(), std::byte{poison_byte});
  }
  const std::vector<std::byte>& output(std::size_t place) override { return outputs_[place]; }

 private:
  HostValues values_;
  bool gathered_;
  std::vector<std::vector<std::byte>> outputs_;
};

class DeviceOperands final : public OperandMemory {
 public:
  DeviceOperands(const HostValues& packed, const Problem& problem, std::shared_ptr<void> out)
      : OperandMemory(problem), gathered_(problem.gathered_a) {
    const HostValues values = spread(packed, problem);
    for (const OperandInfo& info : outputs_of(problem))
      if (outputs_.empty())
        outputs_.push_back(std::make_unique<runtime::DeviceMemory>(info.bytes(), std::move(out)));
      else
        outputs_.push_back(std::make_unique<runtime::DeviceMemory>(info.bytes()));
    upload(a_, values.a);
    upload(b_, values.b);
    upload(bias_, values.bias);
    upload(a_scale_, values.a_scale);
    upload(b_scale_, values.b_scale);
    for (std::size_t i = 0; i < more_.size(); ++i) {
      upload(more_[i].b, values.more[i].b);
      upload(more_[i].bias, values.more[i].bias);
    }
  }

  Addresses operands() override {
    Addresses addresses{at(a_), at(b_), nullptr, at(bias_), floats(a_scale_), floats(b_scale_)};
    for (std::size_t i = 0; i < more_.size(); ++i) addresses.more[i] = {at(more_[i].b), at(more_[i].bias), nullptr};
    std::vector<void*> outputs;
    for (const auto& output : outputs_) outputs.push_back(output->get());
    set_outputs(addresses, outputs, gathered_);
    return addresses;
  }
  void poison() override {
    for (const auto& output : outputs_) output->fill(poison_byte);
  }
  const std::vector<std::byte>& output(std::size_t place) override {
    outputs_[place]->download(host_);
    return host_;
  }

 private:
  using Memory = std::optional<runtime::DeviceMemory>;
  struct Further {
    Memory b, bias;
  };

  template <typename T>
  static void upload(Memory& memory, const std::vector<T>& values) {
    if (!values.empty()) memory.emplace(values.size() * sizeof(T)).upload(values.data());
  }
  static const void* at(const Memory& memory) { return memory ? memory->get() : nullptr; }
  static const float* floats(const Memory& memory) { return static_cast<const float*>(at(memory)); }

  Memory a_, b_, bias_, a_scale_, b_scale_;
  std::array<Further, max_products - 1> more_;
  bool gathered_;
  std::vector<std::unique_ptr<runtime::DeviceMemory>> outputs_;
  std::vector<std::byte> host_;
};

}  // namespace

std::vector<Operand> OperandMemory::named() {
  const Addresses addresses = operands();
  const std::vector<Buffer> buffers = plan::operand_buffers(problem_);
  std::vector<Operand> all;
  for (const OperandInfo& info : operands_of(problem_)) {
    int buffer = 0;
    while (buffers[static_cast<std::size_t>(buffer)].name != info.name) ++buffer;
    void* const data = info.role == OperandRole::output
                           ? execute::output_of(addresses, problem_, buffer)
                           : const_cast<void*>(execute::input_of(addresses, problem_, buffer));
    all.push_back({info.name, info.at(data)});
  }
  return all;
}

std::vector<OperandInfo> outputs_of(const Problem& problem) {
  std::vector<OperandInfo> outputs = operands_of(problem);
  std::erase_if(outputs, [](const OperandInfo& info) { return info.role == OperandRole::input; });
  return outputs;
}

std::vector<std::byte> with_gaps(const OperandInfo& info, std::vector<std::byte> values) {
  if (info.pitch == 0 || values.empty()) return values;
  std::vector<std::byte> spread(info.bytes(), std::byte{poison_byte});
  const auto size = static_cast<std::int64_t>(size_of(info.type));
  for (std::int64_t i = 0; i < info.lines(); ++i)
    std::copy_n(values.begin() + i * info.length() * size, info.length() * size,
                spread.begin() + i * info.pitch * size);
  return spread;
}

std::vector<std::byte> without_gaps(const OperandInfo& info, const std::vector<std::byte>& operand) {
  if (info.pitch == 0) return operand;
  const auto size = static_cast<std::int64_t>(size_of(info.type)), length = info.length() * size;
  std::vector<std::byte> values(static_cast<std::size_t>(info.lines() * length));
  for (std::int64_t i = 0; i < info.lines(); ++i)
    std::copy_n(operand.begin() + i * info.pitch * size, length, values.begin() + i * length);
  return values;
}

bool gaps_are_poison(const OperandInfo& info, const std::vector<std::byte>& operand) {
  if (info.pitch == 0) return true;
  const auto size = static_cast<std::int64_t>(size_of(info.type));
  for (std::int64_t i = 0; i + 1 < info.lines(); ++i)
    if (!std::all_of(operand.begin() + (i * info.pitch + info.length()) * size,
                     operand.begin() + (i + 1) * info.pitch * size,
                     [](std::byte b) { return b == std::byte{poison_byte}; }))
      return false;
  return true;
}

std::unique_ptr<OperandMemory> host_operands(HostValues values, const Problem& problem) {
  return std::make_unique<HostOperands>(std::move(values), problem);
}

std::unique_ptr<OperandMemory> device_operands(const HostValues& values, const Problem& problem,
                                               std::shared_ptr<void> out) {
  return std::make_unique<DeviceOperands>(values, problem, std::move(out));
}

}  // namespace imbrex::program
