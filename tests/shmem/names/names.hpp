// Tests of OpenSHMEM's C names, by whatever implementation IMBREX_TEST_SHMEM is the header of. Every PE runs all of
// them; the first thing that is wrong ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include IMBREX_TEST_SHMEM

#define IMBREX_TEST_SHMEM_15 (SHMEM_MAJOR_VERSION > 1 || SHMEM_MINOR_VERSION >= 5)

namespace names {

inline int cases = 0;

inline void expect(bool holds, const char* what, const char* name, int line) {
  if (holds) return;
  std::fprintf(stderr, "PE %d, %s, line %d: %s does not hold\n", shmem_my_pe(), name, line, what);
  std::fflush(stderr);
  std::_Exit(1);
}

/// `name`: a variable, of the case.
#define NAMES_EXPECT(condition) ::names::expect((condition), #condition, name, __LINE__)

/// CASES(type, name) for each of the standard types that the specification has copies of.
#define NAMES_OF_TYPES(CASES)          \
  CASES(float, float)                  \
  CASES(double, double)                \
  CASES(long double, longdouble)       \
  CASES(char, char)                    \
  CASES(signed char, schar)            \
  CASES(short, short)                  \
  CASES(int, int)                      \
  CASES(long, long)                    \
  CASES(long long, longlong)           \
  CASES(unsigned char, uchar)          \
  CASES(unsigned short, ushort)        \
  CASES(unsigned int, uint)            \
  CASES(unsigned long, ulong)          \
  CASES(unsigned long long, ulonglong) \
  CASES(std::int8_t, int8)             \
  CASES(std::int16_t, int16)           \
  CASES(std::int32_t, int32)           \
  CASES(std::int64_t, int64)           \
  CASES(std::uint8_t, uint8)           \
  CASES(std::uint16_t, uint16)         \
  CASES(std::uint32_t, uint32)         \
  CASES(std::uint64_t, uint64)         \
  CASES(std::size_t, size)             \
  CASES(std::ptrdiff_t, ptrdiff)

inline int me() { return shmem_my_pe(); }
inline int size() { return shmem_n_pes(); }
inline int next() { return (me() + 1) % size(); }
inline int before() { return (me() + size() - 1) % size(); }

/// What PE `pe` has as element i: small, and not 0.
template <typename T>
T value(int pe, std::size_t i) {
  return static_cast<T>(static_cast<int>(static_cast<std::size_t>(pe) * 17 + i * 3) % 100 + 1);
}

/// Elements in the heap, 0 at first.
template <typename T>
class Shared {
 public:
  explicit Shared(std::size_t count) : data_(static_cast<T*>(shmem_calloc(count, sizeof(T)))) {
    if (data_ == nullptr) std::abort();
    shmem_barrier_all();  // Open MPI 4.1 clears it behind its own barrier
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { shmem_free(data_); }

  T* get() const { return data_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_;
};

void check_copies();
void check_atomics();
void check_waits();
void check_memory();
#if IMBREX_TEST_SHMEM_15
void check_teams();
void check_collectives();
void check_reductions();
void check_signals();
#endif

}  // namespace names
