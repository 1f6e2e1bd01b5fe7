// Reductions and scans of hosts, in the members' order, so that all members get the same bits.
#include <algorithm>
#include <memory>

#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{64} << 10;  // what lies in the caches beside its sum

template <Reduction reduction, typename T>
T combined(const T& a, const T& b) {
  // Integers wrap; those of C do not, where they are signed.
  if constexpr (std::is_integral_v<T> && (reduction == Reduction::sum || reduction == Reduction::product)) {
    const auto wide_a = static_cast<std::uint64_t>(a), wide_b = static_cast<std::uint64_t>(b);
    return static_cast<T>(reduction == Reduction::sum ? wide_a + wide_b : wide_a * wide_b);
  } else if constexpr (reduction == Reduction::sum) {
    return a + b;
  } else if constexpr (reduction == Reduction::product) {
    return a * b;
  } else {
    return collectives::combine(reduction, a, b);
  }
}

/// The elements of the members below `end`, combined.
template <Reduction reduction, typename T>
void fold(Process& p, const Team& team, T* into, const T* source, std::size_t count, std::uint32_t end) {
  const auto buffer = std::make_unique<T[]>(count);
  for (std::uint32_t member = 0; member < end; ++member) {
    T* to = member == 0 ? into : buffer.get();
    p.read(to, source, count * sizeof(T), team.pe(member));
    if (member != 0)
      for (std::size_t i = 0; i < count; ++i) into[i] = combined<reduction>(into[i], buffer[i]);
  }
}

/// Each member combines its part of the elements and puts it to all.
template <Reduction reduction, typename T>
int reduce(const char* name, shmem_team_t handle, T* dest, const T* source, std::size_t count) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    p.expect_held("dest", dest, count, sizeof(T));
    p.expect_held("source", source, count, sizeof(T));
    p.heap().barrier(team);  // all sources are there
    const std::size_t each = (count + team.size - 1) / team.size;
    const std::size_t begin = std::min(count, each * team.me), end = std::min(count, begin + each);
    constexpr std::size_t most = std::max<std::size_t>(1, chunk_bytes / sizeof(T));
    const auto sum = std::make_unique<T[]>(std::min(most, end - begin));
    for (std::size_t i = begin; i < end; i += most) {
      const std::size_t some = std::min(most, end - i);
      fold<reduction>(p, team, sum.get(), source + i, some, team.size);
      for (std::uint32_t member = 0; member < team.size; ++member)
        p.write(dest + i, sum.get(), some * sizeof(T), team.pe(member));
    }
    p.heap().barrier(team);
    return 0;
  });
}

/// The sum of the members before this one and, where `inclusive`, its own.
template <bool inclusive, typename T>
int scan(const char* name, shmem_team_t handle, T* dest, const T* source, std::size_t count) {
  return call(name, [&](Process& p) {
    const Team team = p.team(handle);
    p.expect_held("dest", dest, count, sizeof(T));
    p.expect_held("source", source, count, sizeof(T));
    p.heap().barrier(team);
    const auto sum = std::make_unique<T[]>(count);
    fold<Reduction::sum>(p, team, sum.get(), source, count, team.me + (inclusive ? 1 : 0));
    p.heap().barrier(team);  // no PE reads what may be the destination any more
    p.write(dest, sum.get(), count * sizeof(T), static_cast<std::uint32_t>(p.heap().pe()));
    return 0;
  });
}

}  // namespace
}  // namespace imbrex::shmem::c

using namespace imbrex::shmem;
using namespace imbrex::shmem::c;

#define DEFINE(TYPE, NAME, OPERATION, CALL)                                                           \
  int shmem_##NAME##_##OPERATION(shmem_team_t team, TYPE* dest, const TYPE* source, size_t nreduce) { \
    return CALL(__func__, team, dest, source, nreduce);                                               \
  }
#define BITS(TYPE, NAME, A)                                  \
  DEFINE(TYPE, NAME, and_reduce, reduce<Reduction::bit_and>) \
  DEFINE(TYPE, NAME, or_reduce, reduce<Reduction::bit_or>)   \
  DEFINE(TYPE, NAME, xor_reduce, reduce<Reduction::bit_xor>)
#define ORDERED(TYPE, NAME, A)                               \
  DEFINE(TYPE, NAME, max_reduce, reduce<Reduction::maximum>) \
  DEFINE(TYPE, NAME, min_reduce, reduce<Reduction::minimum>)
#define NUMBERS(TYPE, NAME, A)                                \
  DEFINE(TYPE, NAME, sum_reduce, reduce<Reduction::sum>)      \
  DEFINE(TYPE, NAME, prod_reduce, reduce<Reduction::product>) \
  DEFINE(TYPE, NAME, sum_inscan, scan<true>)                  \
  DEFINE(TYPE, NAME, sum_exscan, scan<false>)

IMBREX_SHMEM_BIT_TYPES(BITS, )
IMBREX_SHMEM_TYPES(ORDERED, )
IMBREX_SHMEM_TYPES(NUMBERS, )
IMBREX_SHMEM_COMPLEX_TYPES(NUMBERS, )
