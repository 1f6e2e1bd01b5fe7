// Atomic operations as values: what a transport does to a word that it reaches by loads and stores, `operation(word)`,
// and what it is to store where it cannot, `next(what is there)`.
#pragma once

#include <type_traits>

#include "imbrex/device/shmem/words.hpp"

namespace imbrex::shmem::operations {

template <Atomic T>
struct Set {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::store(word, value), T{}; }
  IMBREX_DEVICE T next(T) const { return value; }
};

/// Integers wrap, as the atomic additions of GPUs and CPUs do.
template <Atomic T>
IMBREX_DEVICE constexpr T wrapping_sum(T x, T y) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) + static_cast<std::make_unsigned_t<T>>(y));
  else
    return x + y;
}

template <Atomic T>
struct Swap {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::swap(word, value); }
  IMBREX_DEVICE T next(T) const { return value; }
};

template <Integer T>
struct CompareSwap {
  T expected, value;
  IMBREX_DEVICE T operator()(T* word) const { return words::compare_swap(word, expected, value); }
  IMBREX_DEVICE T next(T there) const { return there == expected ? value : there; }
};

template <Atomic T>
struct FetchAdd {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::fetch_add(word, value); }
  IMBREX_DEVICE T next(T there) const { return wrapping_sum(there, value); }
};

/// An atomic operation without a result.
template <Atomic T>
struct Add {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::add(word, value), T{}; }
  IMBREX_DEVICE T next(T there) const { return wrapping_sum(there, value); }
};

template <Integer T>
struct FetchAnd {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::fetch_and(word, value); }
  IMBREX_DEVICE T next(T there) const { return static_cast<T>(there & value); }
};

template <Integer T>
struct FetchOr {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::fetch_or(word, value); }
  IMBREX_DEVICE T next(T there) const { return static_cast<T>(there | value); }
};

template <Integer T>
struct FetchXor {
  T value;
  IMBREX_DEVICE T operator()(T* word) const { return words::fetch_xor(word, value); }
  IMBREX_DEVICE T next(T there) const { return static_cast<T>(there ^ value); }
};

}  // namespace imbrex::shmem::operations
