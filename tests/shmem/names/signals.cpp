// Puts with signals: the data is there when the signal is.
#include "names.hpp"

#if IMBREX_TEST_SHMEM_15
namespace names {
namespace {

constexpr std::size_t length = 300;

/// T: what elements are; U: what the function takes.
template <typename U>
using PutSignal = void (*)(U*, const U*, std::size_t, std::uint64_t*, std::uint64_t, int, int);

template <typename T, typename U>
void check_put_signal(const char* name, PutSignal<U> put) {
  Shared<T> data(length);
  Shared<std::uint64_t> signals(2);  // of the data, and of the next one's having read it
  T from[length];
  for (const int operation : {SHMEM_SIGNAL_SET, SHMEM_SIGNAL_ADD}) {
    const std::uint64_t first = shmem_signal_fetch(signals.get()), freed = shmem_signal_fetch(signals.get() + 1);
    shmem_barrier_all();
    for (std::uint64_t round = 1; round <= 10; ++round) {
      for (std::size_t i = 0; i < length; ++i) from[i] = value<T>(me() + static_cast<int>(round), i);
      put(data.get(), from, length, signals.get(), operation == SHMEM_SIGNAL_SET ? first + round : 1, operation,
          next());
      NAMES_EXPECT(shmem_signal_wait_until(signals.get(), SHMEM_CMP_GE, first + round) == first + round);
      for (std::size_t i = 0; i < length; ++i) NAMES_EXPECT(data[i] == value<T>(before() + static_cast<int>(round), i));
      shmem_quiet();
      if (round % 2 == 0)
        shmem_signal_add(signals.get() + 1, 1, before());
      else
        shmem_signal_set(signals.get() + 1, freed + round, before());
      shmem_signal_wait_until(signals.get() + 1, SHMEM_CMP_GE, freed + round);
    }
    NAMES_EXPECT(shmem_signal_fetch(signals.get()) == first + 10);
    shmem_barrier_all();
    ++cases;
  }
  put(data.get(), from, 0, signals.get(), 77, SHMEM_SIGNAL_SET, next());
  NAMES_EXPECT(shmem_signal_wait_until(signals.get(), SHMEM_CMP_EQ, 77) == 77);
  shmem_barrier_all();
}

#define FORM(T, U, NAME)                                                                                              \
  check_put_signal<T, U>("shmem_" #NAME, [](U* d, const U* s, std::size_t n, std::uint64_t* sig, std::uint64_t value, \
                                            int op, int pe) { shmem_##NAME(d, s, n, sig, value, op, pe); });          \
  check_put_signal<T, U>("shmem_ctx_" #NAME,                                                                          \
                         [](U* d, const U* s, std::size_t n, std::uint64_t* sig, std::uint64_t value, int op,         \
                            int pe) { shmem_ctx_##NAME(SHMEM_CTX_DEFAULT, d, s, n, sig, value, op, pe); });
#define TYPE_CASES(TYPE, NAME) FORM(TYPE, TYPE, NAME##_put_signal) FORM(TYPE, TYPE, NAME##_put_signal_nbi)
#define SIZE_CASES(TYPE, NAME) FORM(TYPE, void, NAME##_signal) FORM(TYPE, void, NAME##_signal_nbi)

}  // namespace

void check_signals() {
  NAMES_OF_TYPES(TYPE_CASES)
  SIZE_CASES(std::uint8_t, put8)
  SIZE_CASES(std::uint16_t, put16)
  SIZE_CASES(std::uint32_t, put32)
  SIZE_CASES(std::uint64_t, put64)
  SIZE_CASES(long double, put128)
  SIZE_CASES(std::uint8_t, putmem)
}

}  // namespace names
#endif
