// From the structures, numbers and texts of c.h to what the library takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "c/error.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/options.hpp"
#include "imbrex/packed.hpp"
#include "imbrex/types.hpp"
#include "runtime/agreement.hpp"
#include "runtime/calls.hpp"

namespace imbrex::c {

/// Throw Error(invalid_input) naming the number and those that there are.
Type type_of(imbrex_type type);
Device device_of(imbrex_device device);
int kind_of(std::int32_t kind, int count, const char* what);         ///< 0 to count - 1
int small_of(std::int32_t given, int otherwise, const char* field);  ///< not negative; `otherwise` for 0

imbrex_type number_of(Type type);
imbrex_device number_of(Device device);
imbrex_view view_of(const View& view);

inline constexpr std::size_t first_report = 56;

/// The bytes that the caller's version of a structure has, then zeros. `first_size` is what its first version
/// had. Throws Error(invalid_input) for fewer, and for more where this library would miss what they say.
void read_structure(void* to, std::size_t size, std::size_t first_size, const void* given, const char* name);

template <typename T>
T structure_of(const T* given, std::size_t first_size, const char* name) {
  expect_given(given, name);
  T result;
  read_structure(&result, sizeof result, first_size, given, name);
  return result;
}

/// As structure_of, and zeros for null.
template <typename T>
T options_of(const T* given, std::size_t first_size, const char* name) {
  return given == nullptr ? T{} : structure_of(given, first_size, name);
}

/// Writes as much of `from` as the caller's version of the structure has.
template <typename T>
void write_structure(T* to, T from, std::size_t first_size, const char* name) {
  expect_given(to, name);
  IMBREX_EXPECTS(to->size >= first_size, "{}.size = {}: it must be sizeof({}), {} or more", name, to->size, name,
                 first_size);
  from.size = to->size;
  std::memcpy(to, &from, to->size < sizeof from ? to->size : sizeof from);
}

/// What `parse` makes of a text; nothing for null.
template <typename Parse>
auto parsed(const char* text, Parse&& parse) -> std::optional<decltype(parse(std::string_view()))> {
  if (text == nullptr) return std::nullopt;
  return parse(std::string_view(text));
}

/// The operands of one call, on the stack unless there are many.
class CallOperands {
 public:
  /// More than any operator has except embeddings of many tables: for others, this is told from a count that was
  /// forgotten.
  static constexpr std::size_t few = 16;

  /// Throws Error(invalid_input) for what no Operand can be, and for more than `most`.
  CallOperands(const imbrex_operand* operands, std::size_t count, std::size_t most = few);

  std::span<const Operand> list() const {
    if (!many_.empty()) return many_;
    return {std::launder(reinterpret_cast<const Operand*>(memory_.data())), count_};
  }

 private:
  alignas(Operand) std::array<std::byte, few * sizeof(Operand)> memory_;
  std::size_t count_ = 0;
  std::vector<Operand> many_;
};

/// Converts the arguments of what the ranks make together. Where that fails, every rank's making fails: each one's
/// begins with an agreement.
template <typename Convert>
auto converted(World& world, Convert&& convert) {
  try {
    return convert();
  } catch (...) {
    runtime::agree(world, [&]() -> runtime::Terms { throw; });
    throw;
  }
}

/// As write_structure.
void write_layout(imbrex_packed_layout* to, const PackedLayout& layout);

/// A call with operands of C, at most `most`. Where they cannot be converted, `refuse` gets the error.
template <typename Refuse, typename Call>
void call_or(Refuse&& refuse, const imbrex_operand* operands, std::size_t count, std::size_t most, Call&& run) {
  const CallOperands given = [&] {
    try {
      return CallOperands(operands, count, most);
    } catch (const Error& error) {
      refuse(error);
      throw;
    }
  }();
  run(Operands(given.list()));
}

/// Runs the call as `guarded` does; a refusal here counts as the operator's own.
template <typename Call>
void call(runtime::Calls& calls, const imbrex_operand* operands, std::size_t count, Call&& run) {
  call_or([&](const Error& error) { calls.refuse(error); }, operands, count, CallOperands::few,
          std::forward<Call>(run));
}

}  // namespace imbrex::c
