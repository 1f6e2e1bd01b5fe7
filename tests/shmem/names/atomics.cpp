// Atomic operations: every type, and all PEs at one word.
#include "names.hpp"

namespace names {
namespace {

constexpr int turns = 200;

/// What every atomic type has.
template <typename T>
struct Plain {
  const char* name;
  T (*fetch)(const T*, int);
  void (*set)(T*, T, int);
  T (*swap)(T*, T, int);
};

template <typename T>
void check_plain(const Plain<T>& f) {
  const char* const name = f.name;
  Shared<T> word(1);
  f.set(word.get(), value<T>(me(), 1), next());
  shmem_barrier_all();
  NAMES_EXPECT(word[0] == value<T>(before(), 1));
  NAMES_EXPECT(f.fetch(word.get(), next()) == value<T>(me(), 1));
  shmem_barrier_all();
  NAMES_EXPECT(f.swap(word.get(), value<T>(me(), 2), next()) == value<T>(me(), 1));
  shmem_barrier_all();
  NAMES_EXPECT(word[0] == value<T>(before(), 2));
  // A token goes round: swaps lose none of those that PEs bring.
  shmem_barrier_all();
  f.set(word.get(), static_cast<T>(0), me());
  shmem_barrier_all();
  T held = static_cast<T>(me() + 1);
  for (int i = 0; i < turns; ++i) held = f.swap(word.get(), held, 0);
  Shared<T> tokens(static_cast<std::size_t>(size()) + 1);
  f.set(tokens.get() + me(), held, 0);
  shmem_barrier_all();
  if (me() == 0) {
    double sum = static_cast<double>(word[0]);
    for (int pe = 0; pe < size(); ++pe) sum += static_cast<double>(tokens[static_cast<std::size_t>(pe)]);
    NAMES_EXPECT(sum == size() * (size() + 1) / 2);
  }
  shmem_barrier_all();
  cases += 3;
}

template <typename T>
struct Arithmetic {
  const char* name;
  T (*compare_swap)(T*, T, T, int);
  T (*fetch_inc)(T*, int);
  void (*inc)(T*, int);
  T (*fetch_add)(T*, T, int);
  void (*add)(T*, T, int);
  T (*fetch)(const T*, int);
};

template <typename T>
void check_arithmetic(const Arithmetic<T>& f) {
  const char* const name = f.name;
  const auto pes = static_cast<T>(size());
  Shared<T> words(6);
  constexpr bool swaps = IMBREX_TEST_SHMEM_15 || sizeof(T) == 8;  // Open MPI 4.1 stores 8 bytes of 4, and dies
  // All at PE 0's words.
  T last = 0;
  for (int i = 0; i < turns; ++i) {
    const T seen = f.fetch_inc(words.get(), 0);
    NAMES_EXPECT(i == 0 || seen > last);
    last = seen;
    f.inc(words.get() + 1, 0);
    f.fetch_add(words.get() + 2, static_cast<T>(2), 0);
    f.add(words.get() + 3, static_cast<T>(me() + 1), 0);
    if (!swaps) continue;
    T expected = f.fetch(words.get() + 4, 0);
    for (T there; (there = f.compare_swap(words.get() + 4, expected, static_cast<T>(expected + 3), 0)) != expected;)
      expected = there;
  }
  shmem_barrier_all();
  if (me() == 0) {
    NAMES_EXPECT(words[0] == pes * turns && words[1] == pes * turns && words[2] == 2 * pes * turns);
    NAMES_EXPECT(words[3] == pes * (pes + 1) / 2 * turns && words[4] == (swaps ? 3 * pes * turns : 0));
  }
  NAMES_EXPECT(words[5] == 0);
  if (swaps) NAMES_EXPECT(f.compare_swap(words.get() + 5, 1, 2, next()) == 0);
  shmem_barrier_all();
  // Values of all bits, which wrap.
  f.add(words.get() + 5, static_cast<T>(-1), next());
  shmem_barrier_all();
  NAMES_EXPECT(words[5] == static_cast<T>(-1));
  NAMES_EXPECT(f.fetch_add(words.get() + 5, 1, me()) == static_cast<T>(-1) && words[5] == 0);
  shmem_barrier_all();
  cases += 5;
}

template <typename T>
struct Bits {
  const char* name;
  T (*fetch_and)(T*, T, int);
  void (*do_and)(T*, T, int);
  T (*fetch_or)(T*, T, int);
  void (*do_or)(T*, T, int);
  T (*fetch_xor)(T*, T, int);
  void (*do_xor)(T*, T, int);
};

/// Each PE has a low and a high bit of its own in PE 0's words.
template <typename T>
void check_bits(const Bits<T>& f) {
  const char* const name = f.name;
  Shared<T> words(2);
  const auto low_of = [](int pe) { return static_cast<T>(T{1} << pe); };
  const auto high_of = [](int pe) { return static_cast<T>(T{1} << (static_cast<int>(sizeof(T)) * 8 - 2 - pe)); };
  const T low = low_of(me()), high = high_of(me());
  T lows = 0, highs = 0;
  for (int pe = 0; pe < size(); ++pe)
    lows = static_cast<T>(lows | low_of(pe)), highs = static_cast<T>(highs | high_of(pe));
  f.do_or(words.get() + 1, high, 0);
  f.do_xor(words.get() + 1, low, 0);
  shmem_barrier_all();
  if (me() == 0) NAMES_EXPECT(words[1] == (lows | highs));
  shmem_barrier_all();
  f.do_and(words.get() + 1, static_cast<T>(~high), 0);
  shmem_barrier_all();
  if (me() == 0) NAMES_EXPECT(words[1] == lows);
  cases += 3;
#if IMBREX_TEST_SHMEM_15  // Open MPI 4.1 does nothing
  NAMES_EXPECT((f.fetch_or(words.get(), low, 0) & low) == 0);
  NAMES_EXPECT((f.fetch_xor(words.get(), high, 0) & (low | high)) == low);
  shmem_barrier_all();
  if (me() == 0) NAMES_EXPECT(words[0] == (lows | highs));
  shmem_barrier_all();
  NAMES_EXPECT((f.fetch_and(words.get(), static_cast<T>(~low), 0) & (low | high)) == (low | high));
  shmem_barrier_all();
  if (me() == 0) NAMES_EXPECT(words[0] == highs);
  cases += 3;
#endif
  shmem_barrier_all();
}

#if IMBREX_TEST_SHMEM_15
/// Forms that fetch later leave what the others return.
#define NBI_CASES(TYPE, NAME)                                                   \
  {                                                                             \
    const char* const name = "shmem_" #NAME "_atomic_..._nbi";                  \
    Shared<TYPE> word(1);                                                       \
    TYPE seen[5];                                                               \
    shmem_##NAME##_atomic_set(word.get(), 7, next());                           \
    shmem_##NAME##_atomic_fetch_nbi(&seen[0], word.get(), next());              \
    shmem_quiet();                                                              \
    shmem_##NAME##_atomic_compare_swap_nbi(&seen[1], word.get(), 7, 9, next()); \
    shmem_quiet();                                                              \
    shmem_##NAME##_atomic_swap_nbi(&seen[2], word.get(), 20, next());           \
    shmem_quiet();                                                              \
    shmem_##NAME##_atomic_fetch_inc_nbi(&seen[3], word.get(), next());          \
    shmem_quiet();                                                              \
    shmem_##NAME##_atomic_fetch_add_nbi(&seen[4], word.get(), 9, next());       \
    shmem_quiet();                                                              \
    NAMES_EXPECT(seen[0] == 7 && seen[1] == 7 && seen[2] == 9);                 \
    NAMES_EXPECT(seen[3] == 20 && seen[4] == 21);                               \
    NAMES_EXPECT(shmem_##NAME##_atomic_fetch(word.get(), next()) == 30);        \
    shmem_barrier_all();                                                        \
    cases += 5;                                                                 \
  }
#define NBI_BIT_CASES(TYPE, NAME)                                                \
  {                                                                              \
    const char* const name = "shmem_" #NAME "_atomic_fetch_or_nbi and the like"; \
    Shared<TYPE> word(1);                                                        \
    TYPE seen[3];                                                                \
    shmem_##NAME##_atomic_fetch_or_nbi(&seen[0], word.get(), 6, next());         \
    shmem_quiet();                                                               \
    shmem_##NAME##_atomic_fetch_and_nbi(&seen[1], word.get(), 12, next());       \
    shmem_quiet();                                                               \
    shmem_##NAME##_atomic_fetch_xor_nbi(&seen[2], word.get(), 5, next());        \
    shmem_quiet();                                                               \
    NAMES_EXPECT(seen[0] == 0 && seen[1] == 6 && seen[2] == 4);                  \
    NAMES_EXPECT(shmem_##NAME##_atomic_fetch(word.get(), next()) == 1);          \
    shmem_barrier_all();                                                         \
    cases += 3;                                                                  \
  }
#else
#define NBI_CASES(TYPE, NAME)
#define NBI_BIT_CASES(TYPE, NAME)
#endif

// With contexts, the default one is given by its name.
#define PLAIN_CASES(TYPE, NAME)                                                                         \
  check_plain<TYPE>({"shmem_" #NAME "_atomic_fetch, _set and _swap",                                    \
                     [](const TYPE* s, int pe) { return shmem_##NAME##_atomic_fetch(s, pe); },          \
                     [](TYPE* d, TYPE v, int pe) { shmem_##NAME##_atomic_set(d, v, pe); },              \
                     [](TYPE* d, TYPE v, int pe) { return shmem_##NAME##_atomic_swap(d, v, pe); }});    \
  check_plain<TYPE>(                                                                                    \
      {"shmem_ctx_" #NAME "_atomic_fetch, _set and _swap",                                              \
       [](const TYPE* s, int pe) { return shmem_ctx_##NAME##_atomic_fetch(SHMEM_CTX_DEFAULT, s, pe); }, \
       [](TYPE* d, TYPE v, int pe) { shmem_ctx_##NAME##_atomic_set(SHMEM_CTX_DEFAULT, d, v, pe); },     \
       [](TYPE* d, TYPE v, int pe) { return shmem_ctx_##NAME##_atomic_swap(SHMEM_CTX_DEFAULT, d, v, pe); }});
#define ARITHMETIC_FORM(TYPE, PREFIX, NAME, ...)                                                              \
  check_arithmetic<TYPE>(                                                                                     \
      {"shmem_" #PREFIX #NAME "_atomic_...",                                                                  \
       [](TYPE* d, TYPE c, TYPE v, int pe) {                                                                  \
         return shmem_##PREFIX##NAME##_atomic_compare_swap(__VA_ARGS__ d, c, v, pe);                          \
       },                                                                                                     \
       [](TYPE* d, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch_inc(__VA_ARGS__ d, pe); },            \
       [](TYPE* d, int pe) { shmem_##PREFIX##NAME##_atomic_inc(__VA_ARGS__ d, pe); },                         \
       [](TYPE* d, TYPE v, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch_add(__VA_ARGS__ d, v, pe); }, \
       [](TYPE* d, TYPE v, int pe) { shmem_##PREFIX##NAME##_atomic_add(__VA_ARGS__ d, v, pe); },              \
       [](const TYPE* s, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch(__VA_ARGS__ s, pe); }});
#define BITS_FORM(TYPE, PREFIX, NAME, ...)                                                                    \
  check_bits<TYPE>(                                                                                           \
      {"shmem_" #PREFIX #NAME "_atomic_fetch_and and the like",                                               \
       [](TYPE* d, TYPE v, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch_and(__VA_ARGS__ d, v, pe); }, \
       [](TYPE* d, TYPE v, int pe) { shmem_##PREFIX##NAME##_atomic_and(__VA_ARGS__ d, v, pe); },              \
       [](TYPE* d, TYPE v, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch_or(__VA_ARGS__ d, v, pe); },  \
       [](TYPE* d, TYPE v, int pe) { shmem_##PREFIX##NAME##_atomic_or(__VA_ARGS__ d, v, pe); },               \
       [](TYPE* d, TYPE v, int pe) { return shmem_##PREFIX##NAME##_atomic_fetch_xor(__VA_ARGS__ d, v, pe); }, \
       [](TYPE* d, TYPE v, int pe) { shmem_##PREFIX##NAME##_atomic_xor(__VA_ARGS__ d, v, pe); }});
#define COMMA ,
#define ARITHMETIC_CASES(TYPE, NAME)                         \
  PLAIN_CASES(TYPE, NAME)                                    \
  ARITHMETIC_FORM(TYPE, , NAME, )                            \
  ARITHMETIC_FORM(TYPE, ctx_, NAME, SHMEM_CTX_DEFAULT COMMA) \
  NBI_CASES(TYPE, NAME)
#define BIT_CASES(TYPE, NAME)                          \
  BITS_FORM(TYPE, , NAME, )                            \
  BITS_FORM(TYPE, ctx_, NAME, SHMEM_CTX_DEFAULT COMMA) \
  NBI_BIT_CASES(TYPE, NAME)

}  // namespace

void check_atomics() {
  PLAIN_CASES(float, float)
  PLAIN_CASES(double, double)
  ARITHMETIC_CASES(int, int)
  ARITHMETIC_CASES(long, long)
  ARITHMETIC_CASES(long long, longlong)
  ARITHMETIC_CASES(unsigned int, uint)
  ARITHMETIC_CASES(unsigned long, ulong)
  ARITHMETIC_CASES(unsigned long long, ulonglong)
#if IMBREX_TEST_SHMEM_15  // Open MPI 4.1 lacks them
  ARITHMETIC_CASES(std::int32_t, int32)
  ARITHMETIC_CASES(std::int64_t, int64)
  ARITHMETIC_CASES(std::uint32_t, uint32)
  ARITHMETIC_CASES(std::uint64_t, uint64)
  ARITHMETIC_CASES(std::size_t, size)
  ARITHMETIC_CASES(std::ptrdiff_t, ptrdiff)
#endif
  BIT_CASES(unsigned int, uint)
  BIT_CASES(unsigned long, ulong)
  BIT_CASES(unsigned long long, ulonglong)
  BIT_CASES(std::int32_t, int32)
  BIT_CASES(std::int64_t, int64)
  BIT_CASES(std::uint32_t, uint32)
  BIT_CASES(std::uint64_t, uint64)
}

}  // namespace names
