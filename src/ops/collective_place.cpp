#include "ops/collective_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.hpp"
#include "ops/world_gpus.hpp"
#include "runtime/agreement.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "runtime/one_process.hpp"

namespace imbrex {

CollectiveObject::Place::Place(World& world, Device wanted) : calls(runtime::calls_of(world)) {
  runtime::expect_one_host(world, "a collective");
  runtime::agree(world, [&] {
    return runtime::Terms("a collective").add("device", name_of(wanted)).add("IMBREX_CHECK_CALLS", calls.checked());
  });
  if (wanted == Device::cpu) return;
  why_cpu = ops::why_no_gpus(world);
  if (why_cpu.empty()) device = Device::cuda;
  IMBREX_EXPECTS(wanted != Device::cuda || device == Device::cuda, "device cuda: {}", why_cpu);
}

void CollectiveObject::Place::expect_no_stream(CudaStream stream) {
  IMBREX_EXPECTS(stream == nullptr, "a stream of CUDA is given, and this collective works on the CPU");
}

CollectiveObject::CollectiveObject(std::unique_ptr<Place> place) : place_(std::move(place)) {}

CollectiveObject::~CollectiveObject() = default;

Device CollectiveObject::device() const { return place_->device; }

const std::string& CollectiveObject::why_cpu() const { return place_->why_cpu; }

void CollectiveObject::Place::made() {
  if (device == Device::cuda) gpu = runtime::current_gpu();
}

void CollectiveObject::Place::enroll(std::function<void(std::int64_t)> stand_in) {
  member = std::make_unique<runtime::CallMember>(
      calls, [stand_in = std::move(stand_in)](const runtime::CallNote& call) { stand_in(call.size); });
}

std::shared_ptr<void> CollectiveObject::Place::scratch(std::size_t bytes) const {
  auto host = std::make_shared<std::vector<std::byte>>(std::max<std::size_t>(bytes, 1), std::byte{0xff});
  void* const data = host->data();
  if (device == Device::cpu) return {std::move(host), data};
  runtime::select_gpu(gpu);
  auto memory = std::make_shared<runtime::DeviceMemory>(host->size());
  memory->upload(data);
  void* const there = memory->get();
  return {std::move(memory), there};
}

void CollectiveObject::Place::expect_here(const Operands& operands) {
  if (device == Device::cpu) return;
  known.resize(std::max(known.size(), operands.size()));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& [name, view] = operands[i];
    if (view.data == known[i] || view.data == nullptr) continue;
    IMBREX_EXPECTS(runtime::on_gpu(view.data, gpu), "operand {} at {} is not in a GPU's memory", name, view.data);
    known[i] = view.data;
  }
}

namespace ops {
namespace {

void expect_fits(const Operand& operand, Type type) {
  const auto& [name, view] = operand;
  const std::int64_t elements = elements_of(view);
  IMBREX_EXPECTS(view.data != nullptr || elements == 0, "operand {}: its address is null", name);
  IMBREX_EXPECTS(view.type == type, "operand {} is of type {}; it must be {}", name, name_of(view.type), name_of(type));
  IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(view.data) % size_of(type) == 0,
                 "operand {} at {}: it must be aligned to its elements of {} bytes", name, view.data, size_of(type));
  std::int64_t step = 1;
  for (auto i = static_cast<std::size_t>(view.dims); i-- > 0; step *= view.extents[i])
    IMBREX_EXPECTS(view.extents[i] <= 1 || view.strides[i] == step,
                   "operand {}: extent {} has a stride of {} elements; it must be {}, as operands have no gaps", name,
                   i, view.strides[i], step);
}

}  // namespace

std::int64_t elements_of(const View& view) {
  IMBREX_EXPECTS(view.dims >= 0 && static_cast<std::size_t>(view.dims) <= View::most_dims,
                 "an operand has {} extents; there may be 0 to {}", view.dims, View::most_dims);
  constexpr std::int64_t most = std::int64_t{1} << 40;
  std::int64_t count = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.dims); ++i) {
    const std::int64_t extent = view.extents[i];
    IMBREX_EXPECTS(extent >= 0 && (extent == 0 || count <= most / extent),
                   "an operand has an extent of {}: extents are not negative, and their product is at most 2^40",
                   extent);
    count *= extent;
  }
  return count;
}

CollectiveOperands::CollectiveOperands(const Operands& operands, Type type, std::span<const std::string_view> names,
                                       std::optional<Type> weight_type)
    : operands_(operands), names_(names) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    IMBREX_EXPECTS(std::find(names.begin(), names.end(), operands[i].name) != names.end(),
                   "operand {}: this collective has no operand of that name; its operands are {}", operands[i].name,
                   fmt::join(names, ", "));
    for (std::size_t j = 0; j < i; ++j)
      IMBREX_EXPECTS(operands[j].name != operands[i].name, "operand {} is given twice", operands[i].name);
    expect_fits(operands[i], operands[i].name == "weight" ? weight_type.value_or(type) : type);
  }
}

void expect_count(std::string_view name, std::int64_t count, std::int64_t max_count) {
  IMBREX_EXPECTS(count <= max_count, "operand {} holds {} elements for each rank; this object is for up to {}", name,
                 count, max_count);
}

void expect_apart(const View& in, const View& out, const InPlace& in_place) {
  const auto from = reinterpret_cast<std::uintptr_t>(in.data), to = reinterpret_cast<std::uintptr_t>(out.data);
  const auto bytes = [](const View& v) { return static_cast<std::size_t>(elements_of(v)) * size_of(v.type); };
  const bool overlap = from < to + bytes(out) && to < from + bytes(in);
  const auto block = [](std::uintptr_t part, std::uintptr_t whole, std::size_t size) {
    return size != 0 && part >= whole && (part - whole) % size == 0;
  };
  const bool placed =
      (in_place.same && from == to) || block(from, to, in_place.in_of_out) || block(to, from, in_place.out_of_in);
  IMBREX_EXPECTS(!overlap || placed, "operand out at {} overlaps operand in at {}: they must be apart{}{}", out.data,
                 in.data, in_place.rule.empty() ? "" : ", or ", in_place.rule);
}

const View* CollectiveOperands::find(std::string_view name) const {
  for (const Operand& operand : operands_)
    if (operand.name == name) return &operand.view;
  return nullptr;
}

const View& CollectiveOperands::at(std::string_view name) const {
  const View* view = find(name);
  IMBREX_EXPECTS(view != nullptr, "operand {} is missing; this collective's operands are {}", name,
                 fmt::join(names_, ", "));
  return *view;
}

}  // namespace ops
}  // namespace imbrex
