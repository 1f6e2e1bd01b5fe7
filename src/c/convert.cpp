#include "c/convert.hpp"

#include <algorithm>
#include <type_traits>

#include "imbrex/integers.hpp"

namespace imbrex::c {
namespace {

static_assert(static_cast<int>(Type::bf16) == IMBREX_BF16 && static_cast<int>(Type::fp16) == IMBREX_FP16 &&
              static_cast<int>(Type::fp32) == IMBREX_FP32 && static_cast<int>(Type::e4m3) == IMBREX_E4M3);
static_assert(static_cast<int>(Device::automatic) == IMBREX_AUTOMATIC && static_cast<int>(Device::cpu) == IMBREX_CPU &&
              static_cast<int>(Device::cuda) == IMBREX_CUDA);
static_assert(type_int8 == static_cast<Type>(IMBREX_INT8) && type_int32 == static_cast<Type>(IMBREX_INT32) &&
              type_int64 == static_cast<Type>(IMBREX_INT64));
static_assert(View::most_dims == IMBREX_MOST_DIMS);
static_assert(std::is_trivially_destructible_v<Operand>);

View read_view(const imbrex_operand& operand) {
  const imbrex_view& given = operand.view;
  IMBREX_EXPECTS((given.type >= IMBREX_BF16 && given.type <= IMBREX_E4M3) ||
                     (given.type >= IMBREX_INT8 && given.type <= IMBREX_INT64),
                 "operand {} is of type {}; types are 0 (bf16) to 3 (e4m3), and 16 (int8) to 18 (int64)", operand.name,
                 given.type);
  View view{given.data, static_cast<Type>(given.type), given.dims, {}, {}};
  for (int i = 0; i < std::min<int>(given.dims, IMBREX_MOST_DIMS); ++i) {
    const auto at = static_cast<std::size_t>(i);
    view.extents[at] = given.extents[at];
    view.strides[at] = given.strides[at];
  }
  return view;
}

}  // namespace

Type type_of(imbrex_type type) {
  IMBREX_EXPECTS(type >= IMBREX_BF16 && type <= IMBREX_E4M3,
                 "type = {}: it must be 0 (bf16), 1 (fp16), 2 (fp32) or 3 (e4m3)", type);
  return static_cast<Type>(type);
}

Device device_of(imbrex_device device) {
  IMBREX_EXPECTS(device >= IMBREX_AUTOMATIC && device <= IMBREX_CUDA,
                 "device = {}: it must be 0 (automatic), 1 (cpu) or 2 (cuda)", device);
  return static_cast<Device>(device);
}

int kind_of(std::int32_t kind, int count, const char* what) {
  IMBREX_EXPECTS(kind >= 0 && kind < count, "{} = {}: it must be from 0 to {}", what, kind, count - 1);
  return kind;
}

int small_of(std::int32_t given, int otherwise, const char* field) {
  IMBREX_EXPECTS(given >= 0, "{} = {}: it must not be negative", field, given);
  return given == 0 ? otherwise : given;
}

imbrex_type number_of(Type type) { return static_cast<imbrex_type>(type); }
imbrex_device number_of(Device device) { return static_cast<imbrex_device>(device); }

imbrex_view view_of(const View& view) {
  imbrex_view result{view.data, number_of(view.type), view.dims, {}, {}};
  std::copy(view.extents.begin(), view.extents.end(), result.extents);
  std::copy(view.strides.begin(), view.strides.end(), result.strides);
  return result;
}

void read_structure(void* to, std::size_t size, std::size_t first_size, const void* given, const char* name) {
  std::size_t told = 0;
  std::memcpy(&told, given, sizeof told);
  IMBREX_EXPECTS(told >= first_size, "{}.size = {}: it must be sizeof({}), {} or more", name, told, name, first_size);
  constexpr std::size_t most = 4096;  // more is no size, but what lay there
  IMBREX_EXPECTS(told <= most, "{}.size = {}: it must be sizeof({})", name, told, name);
  const auto* bytes = static_cast<const std::byte*>(given);
  IMBREX_EXPECTS(told <= size || std::all_of(bytes + size, bytes + told, [](std::byte b) { return b == std::byte{0}; }),
                 "{}.size = {}: this library, {}, knows {} bytes of it; the bytes after them must be zero", name, told,
                 imbrex_version(), size);
  std::memset(to, 0, size);
  std::memcpy(to, given, std::min(told, size));
}

CallOperands::CallOperands(const imbrex_operand* operands, std::size_t count, std::size_t most) {
  IMBREX_EXPECTS(operands != nullptr || count == 0, "operands is null, and count is {}", count);
  IMBREX_EXPECTS(count <= most, "count = {}: no call takes more than {} operands", count, most);
  if (count > few) many_.reserve(count);
  for (; count_ < count; ++count_) {
    const imbrex_operand& operand = operands[count_];
    IMBREX_EXPECTS(operand.name != nullptr, "operands[{}].name is null", count_);
    const Operand made{operand.name, read_view(operand)};
    if (count > few)
      many_.push_back(made);
    else
      ::new (static_cast<void*>(memory_.data() + count_ * sizeof(Operand))) Operand(made);
  }
}

}  // namespace imbrex::c
