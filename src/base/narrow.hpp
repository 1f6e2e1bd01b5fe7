// Numbers that must fit: conversions to smaller integers, and products that end at the largest one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

namespace imbrex::base {

/// Throws the Error of `narrow`.
[[noreturn]] void refuse_number(std::string_view what, std::int64_t value, std::int64_t least, std::uint64_t most);
[[noreturn]] void refuse_number(std::string_view what, std::uint64_t value, std::int64_t least, std::uint64_t most);

/// `value` as a `To`. Throws Error(invalid_input) if `To` does not hold it: "<what> = <value>: it must be from ... to
/// ...". Every conversion to a smaller type whose value a plan, a file or a caller decides goes through it.
template <std::integral To, std::integral From>
constexpr To narrow(From value, std::string_view what) {
  using Limits = std::numeric_limits<To>;
  if (!std::in_range<To>(value)) [[unlikely]] {
    using Wide = std::conditional_t<std::is_signed_v<From>, std::int64_t, std::uint64_t>;
    refuse_number(what, static_cast<Wide>(value), static_cast<std::int64_t>(Limits::min()),
                  static_cast<std::uint64_t>(Limits::max()));
  }
  return static_cast<To>(value);
}

/// The low bits of `value`, on purpose: of counters that wrap, and of hashes.
template <std::integral To, std::integral From>
constexpr To wrapped(From value) {
  return static_cast<To>(value);
}

/// A number that is not negative, as a place in a container.
template <std::integral From>
constexpr std::size_t index(From i) {
  return static_cast<std::size_t>(i);
}

/// What counts stop at: no 64-bit integer is larger.
inline constexpr std::int64_t uncountable = std::numeric_limits<std::int64_t>::max();

/// The product of numbers that are not negative, or `uncountable` where 64 bits do not hold it.
template <std::integral... Factors>
constexpr std::int64_t counted_product(Factors... factors) {
  std::int64_t product = 1;
  if (((factors == 0) || ...)) return 0;
  return (!__builtin_mul_overflow(product, factors, &product) && ...) ? product : uncountable;
}

/// The sum of numbers that are not negative, or `uncountable`.
template <std::integral... Terms>
constexpr std::int64_t counted_sum(Terms... terms) {
  std::int64_t sum = 0;
  return (!__builtin_add_overflow(sum, terms, &sum) && ...) ? sum : uncountable;
}

}  // namespace imbrex::base
