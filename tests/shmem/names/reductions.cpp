// Reductions and scans: every type and operation, to another place and in place, beside a serial answer.
#include <type_traits>

#include "names.hpp"

#if IMBREX_TEST_SHMEM_15
namespace names {
namespace {

template <typename T>
using Reduce = int (*)(shmem_team_t, T*, const T*, std::size_t);

constexpr std::size_t most = 20000;  // goes in several pieces

/// Small, so that sums are exact in every type, and products wrap or are.
template <typename T>
T small(int pe, std::size_t i) {
  return static_cast<T>(static_cast<int>((static_cast<std::size_t>(pe) + i) % 3 + 1));
}

/// `combine` folds the members' elements in their order. Members `first` to `end` - 1 of `own`.
template <typename T, typename Combine>
void check(const char* name, Reduce<T> reduce, Combine combine, int scan = 0) {
  Shared<T> from(most), to(most + 1);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{13}, most}) {
    for (const bool in_place : {false, true}) {
      for (std::size_t i = 0; i < count; ++i) (in_place ? to : from)[i] = small<T>(me(), i);
      to[count] = static_cast<T>(77);
      shmem_barrier_all();
      NAMES_EXPECT(reduce(SHMEM_TEAM_WORLD, to.get(), in_place ? to.get() : from.get(), count) == 0);
      const int end = scan == 0 ? size() : scan == 1 ? me() + 1 : me();
      for (std::size_t i = 0; i < count; ++i) {
        T expected = end == 0 ? T{} : small<T>(0, i);
        for (int pe = 1; pe < end; ++pe) expected = combine(expected, small<T>(pe, i));
        NAMES_EXPECT(to[i] == expected);
      }
      NAMES_EXPECT(to[count] == static_cast<T>(77));
      shmem_barrier_all();
    }
  }
  ++cases;
}

template <typename T>
T sum(T a, T b) {
  return static_cast<T>(a + b);
}
template <typename T>
T product(T a, T b) {
  return static_cast<T>(a * b);
}

#define BITS(TYPE, NAME)                                                \
  check<TYPE>("shmem_" #NAME "_and_reduce", shmem_##NAME##_and_reduce,  \
              [](TYPE a, TYPE b) { return static_cast<TYPE>(a & b); }); \
  check<TYPE>("shmem_" #NAME "_or_reduce", shmem_##NAME##_or_reduce,    \
              [](TYPE a, TYPE b) { return static_cast<TYPE>(a | b); }); \
  check<TYPE>("shmem_" #NAME "_xor_reduce", shmem_##NAME##_xor_reduce,  \
              [](TYPE a, TYPE b) { return static_cast<TYPE>(a ^ b); });
#define NUMBERS(TYPE, NAME)                                                              \
  check<TYPE>("shmem_" #NAME "_sum_reduce", shmem_##NAME##_sum_reduce, sum<TYPE>);       \
  check<TYPE>("shmem_" #NAME "_prod_reduce", shmem_##NAME##_prod_reduce, product<TYPE>); \
  check<TYPE>("shmem_" #NAME "_sum_inscan", shmem_##NAME##_sum_inscan, sum<TYPE>, 1);    \
  check<TYPE>("shmem_" #NAME "_sum_exscan", shmem_##NAME##_sum_exscan, sum<TYPE>, 2);
#define ORDERED(TYPE, NAME)                                                                                           \
  check<TYPE>("shmem_" #NAME "_max_reduce", shmem_##NAME##_max_reduce, [](TYPE a, TYPE b) { return a < b ? b : a; }); \
  check<TYPE>("shmem_" #NAME "_min_reduce", shmem_##NAME##_min_reduce, [](TYPE a, TYPE b) { return b < a ? b : a; }); \
  NUMBERS(TYPE, NAME)

/// Sums and products of integers wrap, also of signed ones.
void check_wraps() {
  const char* const name = "shmem_int_prod_reduce that wraps";
  Shared<int> from(1), to(1);
  from[0] = 0x10001;
  shmem_barrier_all();
  shmem_int_prod_reduce(SHMEM_TEAM_WORLD, to.get(), from.get(), 1);
  unsigned expected = 1;
  for (int pe = 0; pe < size(); ++pe) expected *= 0x10001u;
  NAMES_EXPECT(static_cast<unsigned>(to[0]) == expected);
  shmem_barrier_all();
  ++cases;
}

}  // namespace

void check_reductions() {
  BITS(unsigned char, uchar)
  BITS(unsigned short, ushort)
  BITS(unsigned int, uint)
  BITS(unsigned long, ulong)
  BITS(unsigned long long, ulonglong)
  BITS(std::int8_t, int8)
  BITS(std::int16_t, int16)
  BITS(std::int32_t, int32)
  BITS(std::int64_t, int64)
  BITS(std::uint8_t, uint8)
  BITS(std::uint16_t, uint16)
  BITS(std::uint32_t, uint32)
  BITS(std::uint64_t, uint64)
  BITS(std::size_t, size)
  ORDERED(float, float)
  ORDERED(double, double)
  ORDERED(long double, longdouble)
  ORDERED(char, char)
  ORDERED(signed char, schar)
  ORDERED(short, short)
  ORDERED(int, int)
  ORDERED(long, long)
  ORDERED(long long, longlong)
  ORDERED(unsigned char, uchar)
  ORDERED(unsigned short, ushort)
  ORDERED(unsigned int, uint)
  ORDERED(unsigned long, ulong)
  ORDERED(unsigned long long, ulonglong)
  ORDERED(std::int8_t, int8)
  ORDERED(std::int16_t, int16)
  ORDERED(std::int32_t, int32)
  ORDERED(std::int64_t, int64)
  ORDERED(std::uint8_t, uint8)
  ORDERED(std::uint16_t, uint16)
  ORDERED(std::uint32_t, uint32)
  ORDERED(std::uint64_t, uint64)
  ORDERED(std::size_t, size)
  ORDERED(std::ptrdiff_t, ptrdiff)
  NUMBERS(std::complex<double>, complexd)
  NUMBERS(std::complex<float>, complexf)
  check_wraps();
}

}  // namespace names
#endif
