// Waits and tests: every type and comparison, for words that come late.
#include <chrono>
#include <thread>

#include "names.hpp"

namespace names {
namespace {

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

template <typename T>
struct Waits {
  const char* name;
  void (*wait_until)(T*, int, T);
  int (*test)(T*, int, T);
  void (*p)(T*, T, int);
};

struct Row {
  int cmp, value, holds_for, fails_for;
};
constexpr Row rows[] = {{SHMEM_CMP_EQ, 5, 5, 4}, {SHMEM_CMP_NE, 0, 1, 0}, {SHMEM_CMP_GT, 5, 6, 5},
                        {SHMEM_CMP_GE, 5, 5, 4}, {SHMEM_CMP_LT, 5, 4, 5}, {SHMEM_CMP_LE, 5, 5, 6}};

template <typename T>
void check_wait(const Waits<T>& f) {
  const char* const name = f.name;
  Shared<T> word(1);
  for (const Row& row : rows) {
    f.p(word.get(), static_cast<T>(row.fails_for), me());
    shmem_barrier_all();
    NAMES_EXPECT(f.test(word.get(), row.cmp, static_cast<T>(row.value)) == 0);
    shmem_barrier_all();
    if (row.cmp == SHMEM_CMP_EQ) pause();
    f.p(word.get(), static_cast<T>(row.holds_for), next());
    f.wait_until(word.get(), row.cmp, static_cast<T>(row.value));
    NAMES_EXPECT(word[0] == static_cast<T>(row.holds_for));
    NAMES_EXPECT(f.test(word.get(), row.cmp, static_cast<T>(row.value)) != 0);
    shmem_barrier_all();
    cases += 2;
  }
}

/// What was put before a fence is there when the flag is.
void check_fence() {
  const char* const name = "shmem_fence, and shmem_long_wait_until behind it";
  constexpr std::size_t length = 500;
  Shared<long> data(length), flag(1), seen(1);
  long from[length];
  for (long round = 1; round <= 200; ++round) {
    for (long& element : from) element = round * 10 + me();
    shmem_long_put(data.get(), from, length, next());
    shmem_fence();
    shmem_long_p(flag.get(), round, next());
    shmem_long_wait_until(flag.get(), SHMEM_CMP_GE, round);
    for (std::size_t i = 0; i < length; ++i) NAMES_EXPECT(data[i] == round * 10 + before());
    shmem_long_p(seen.get(), round, before());
    shmem_long_wait_until(seen.get(), SHMEM_CMP_GE, round);  // the next one has read
  }
  ++cases;
}

#if IMBREX_TEST_SHMEM_15
template <typename T>
struct Several {
  const char* name;
  void (*wait_all)(T*, std::size_t, const int*, int, const T*);
  std::size_t (*wait_any)(T*, std::size_t, const int*, int, const T*);
  std::size_t (*wait_some)(T*, std::size_t, std::size_t*, const int*, int, const T*);
  int (*test_all)(T*, std::size_t, const int*, int, const T*);
  std::size_t (*test_any)(T*, std::size_t, const int*, int, const T*);
  std::size_t (*test_some)(T*, std::size_t, std::size_t*, const int*, int, const T*);
  void (*p)(T*, T, int);
};

/// Element 2 is left out. The elements of `wanted` are all 3 where the function takes one value.
template <typename T>
void check_several(const Several<T>& f, const T (&wanted)[5]) {
  const char* const name = f.name;
  const int status[5] = {0, 0, 1, 0, 0}, none[5] = {1, 1, 1, 1, 1};
  std::size_t indices[5];
  Shared<T> words(5);
  NAMES_EXPECT(f.test_all(words.get(), 5, status, SHMEM_CMP_EQ, wanted) == 0);
  NAMES_EXPECT(f.test_any(words.get(), 5, status, SHMEM_CMP_EQ, wanted) == SIZE_MAX);
  NAMES_EXPECT(f.test_some(words.get(), 5, indices, status, SHMEM_CMP_EQ, wanted) == 0);
  shmem_barrier_all();
  pause();
  f.p(words.get() + 3, wanted[3], next());
  NAMES_EXPECT(f.wait_any(words.get(), 5, status, SHMEM_CMP_EQ, wanted) == 3);
  NAMES_EXPECT(f.wait_some(words.get(), 5, indices, nullptr, SHMEM_CMP_EQ, wanted) == 1 && indices[0] == 3);
  NAMES_EXPECT(f.test_all(words.get(), 5, status, SHMEM_CMP_EQ, wanted) == 0);
  shmem_barrier_all();
  pause();
  for (const std::size_t i : {4, 0, 1}) f.p(words.get() + i, wanted[i], next());
  f.wait_all(words.get(), 5, status, SHMEM_CMP_EQ, wanted);
  NAMES_EXPECT(f.test_all(words.get(), 5, status, SHMEM_CMP_EQ, wanted) == 1);
  NAMES_EXPECT(f.test_all(words.get(), 5, nullptr, SHMEM_CMP_EQ, wanted) == 0);
  NAMES_EXPECT(f.test_some(words.get(), 5, indices, status, SHMEM_CMP_EQ, wanted) == 4 && indices[2] == 3);
  NAMES_EXPECT(f.test_any(words.get(), 5, nullptr, SHMEM_CMP_NE, wanted) == 2);
  // Nothing is waited for.
  f.wait_all(words.get(), 5, none, SHMEM_CMP_EQ, wanted);
  NAMES_EXPECT(f.wait_any(words.get(), 5, none, SHMEM_CMP_EQ, wanted) == SIZE_MAX);
  NAMES_EXPECT(f.wait_some(words.get(), 0, indices, nullptr, SHMEM_CMP_EQ, wanted) == 0);
  shmem_barrier_all();
  cases += 6;
}

#define SEVERAL_FORM(TYPE, NAME, FORM, VALUE, WANTED)                                                     \
  {                                                                                                       \
    const TYPE wanted[5] = WANTED;                                                                        \
    check_several<TYPE>({"shmem_" #NAME "_wait_until_all" #FORM " and the like",                          \
                         [](TYPE* v, std::size_t n, const int* s, int c, const TYPE* w) {                 \
                           shmem_##NAME##_wait_until_all##FORM(v, n, s, c, VALUE);                        \
                         },                                                                               \
                         [](TYPE* v, std::size_t n, const int* s, int c, const TYPE* w) {                 \
                           return shmem_##NAME##_wait_until_any##FORM(v, n, s, c, VALUE);                 \
                         },                                                                               \
                         [](TYPE* v, std::size_t n, std::size_t* i, const int* s, int c, const TYPE* w) { \
                           return shmem_##NAME##_wait_until_some##FORM(v, n, i, s, c, VALUE);             \
                         },                                                                               \
                         [](TYPE* v, std::size_t n, const int* s, int c, const TYPE* w) {                 \
                           return shmem_##NAME##_test_all##FORM(v, n, s, c, VALUE);                       \
                         },                                                                               \
                         [](TYPE* v, std::size_t n, const int* s, int c, const TYPE* w) {                 \
                           return shmem_##NAME##_test_any##FORM(v, n, s, c, VALUE);                       \
                         },                                                                               \
                         [](TYPE* v, std::size_t n, std::size_t* i, const int* s, int c, const TYPE* w) { \
                           return shmem_##NAME##_test_some##FORM(v, n, i, s, c, VALUE);                   \
                         },                                                                               \
                         [](TYPE* d, TYPE v, int pe) { shmem_##NAME##_p(d, v, pe); }},                    \
                        wanted);                                                                          \
  }
#define ALIKE \
  { 3, 3, 3, 3, 3 }
#define UNLIKE \
  { 1, 2, 3, 4, 5 }
#define SEVERAL_CASES(TYPE, NAME)       \
  SEVERAL_FORM(TYPE, NAME, , *w, ALIKE) \
  SEVERAL_FORM(TYPE, NAME, _vector, const_cast<TYPE*>(w), UNLIKE)
#else
#define SEVERAL_CASES(TYPE, NAME)
#endif

#define WAIT_CASES(TYPE, NAME)                                                                     \
  check_wait<TYPE>({"shmem_" #NAME "_wait_until and _test",                                        \
                    [](TYPE* word, int cmp, TYPE v) { shmem_##NAME##_wait_until(word, cmp, v); },  \
                    [](TYPE* word, int cmp, TYPE v) { return shmem_##NAME##_test(word, cmp, v); }, \
                    [](TYPE* d, TYPE v, int pe) { shmem_##NAME##_p(d, v, pe); }});                 \
  SEVERAL_CASES(TYPE, NAME)

}  // namespace

void check_waits() {
  WAIT_CASES(int, int)
  WAIT_CASES(long, long)
  WAIT_CASES(long long, longlong)
  WAIT_CASES(unsigned int, uint)
  WAIT_CASES(unsigned long, ulong)
  WAIT_CASES(unsigned long long, ulonglong)
  WAIT_CASES(std::int32_t, int32)
  WAIT_CASES(std::int64_t, int64)
  WAIT_CASES(std::uint32_t, uint32)
  WAIT_CASES(std::uint64_t, uint64)
  WAIT_CASES(std::size_t, size)
  WAIT_CASES(std::ptrdiff_t, ptrdiff)
  check_fence();
}

}  // namespace names
