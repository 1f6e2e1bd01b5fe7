// Puts and gets: every type and size, on the default context and on one of their own.
#include "names.hpp"

namespace names {
namespace {

template <typename T>
using Copy = void (*)(shmem_ctx_t, T*, const T*, std::size_t, int);
template <typename T>
using Strided = void (*)(shmem_ctx_t, T*, const T*, std::ptrdiff_t, std::ptrdiff_t, std::size_t, int);

constexpr std::size_t length = 40;

void finish(shmem_ctx_t ctx) {
  shmem_ctx_quiet(ctx);
  shmem_barrier_all();
}

/// Every PE puts to the next; the last element is not to change. T: what elements are; U: what the function takes.
template <typename T, typename U>
void check_put(const char* name, shmem_ctx_t ctx, Copy<U> put) {
  Shared<T> to(length + 1);
  T from[length];
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, length}) {
    for (std::size_t i = 0; i < length; ++i) from[i] = value<T>(me() + static_cast<int>(count), i);
    put(ctx, to.get(), from, count, next());
    finish(ctx);
    for (std::size_t i = 0; i < count; ++i) NAMES_EXPECT(to[i] == value<T>(before() + static_cast<int>(count), i));
    NAMES_EXPECT(to[count] == T{});
    shmem_barrier_all();
  }
  ++cases;
}

template <typename T, typename U>
void check_get(const char* name, shmem_ctx_t ctx, Copy<U> get) {
  Shared<T> from(length);
  for (std::size_t i = 0; i < length; ++i) from[i] = value<T>(me(), i);
  shmem_barrier_all();
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, length}) {
    T to[length + 1]{};
    get(ctx, to, from.get(), count, next());
    shmem_ctx_quiet(ctx);
    for (std::size_t i = 0; i < count; ++i) NAMES_EXPECT(to[i] == value<T>(next(), i));
    NAMES_EXPECT(to[count] == T{});
  }
  shmem_barrier_all();
  ++cases;
}

/// Every third element comes from every second one.
template <typename T, typename U>
void check_iput(const char* name, shmem_ctx_t ctx, Strided<U> put) {
  constexpr std::size_t count = 9;
  Shared<T> to(length);
  T from[2 * count];
  for (std::size_t i = 0; i < 2 * count; ++i) from[i] = value<T>(me(), i);
  put(ctx, to.get(), from, 3, 2, count, next());
  finish(ctx);
  for (std::size_t i = 0; i < length; ++i)
    NAMES_EXPECT(to[i] == (i % 3 == 0 && i / 3 < count ? value<T>(before(), i / 3 * 2) : T{}));
  shmem_barrier_all();
  ++cases;
}

template <typename T, typename U>
void check_iget(const char* name, shmem_ctx_t ctx, Strided<U> get) {
  constexpr std::size_t count = 9;
  Shared<T> from(2 * count);
  for (std::size_t i = 0; i < 2 * count; ++i) from[i] = value<T>(me(), i);
  shmem_barrier_all();
  T to[length]{};
  get(ctx, to, from.get(), 3, 2, count, next());
  shmem_ctx_quiet(ctx);
  for (std::size_t i = 0; i < length; ++i)
    NAMES_EXPECT(to[i] == (i % 3 == 0 && i / 3 < count ? value<T>(next(), i / 3 * 2) : T{}));
  shmem_barrier_all();
  ++cases;
}

template <typename T>
void check_one(const char* name, shmem_ctx_t ctx, void (*p)(shmem_ctx_t, T*, T, int),
               T (*g)(shmem_ctx_t, const T*, int)) {
  Shared<T> word(2);
  p(ctx, word.get(), value<T>(me(), 5), next());
  finish(ctx);
  NAMES_EXPECT(word[0] == value<T>(before(), 5) && word[1] == T{});
  NAMES_EXPECT(g(ctx, word.get(), next()) == value<T>(me(), 5));
  shmem_barrier_all();
  cases += 2;
}

// The functions that have no context are called as if they had.
#define COPY_CASES(CHECK, T, U, OPERATION)                                                                   \
  CHECK<T, U>("shmem_" #OPERATION, SHMEM_CTX_DEFAULT,                                                        \
              [](shmem_ctx_t, U* d, const U* s, std::size_t n, int pe) { shmem_##OPERATION(d, s, n, pe); }); \
  CHECK<T, U>("shmem_ctx_" #OPERATION, ctx,                                                                  \
              [](shmem_ctx_t c, U* d, const U* s, std::size_t n, int pe) { shmem_ctx_##OPERATION(c, d, s, n, pe); });
#define STRIDED_CASES(CHECK, T, U, OPERATION)                                                                      \
  CHECK<T, U>("shmem_" #OPERATION, SHMEM_CTX_DEFAULT,                                                              \
              [](shmem_ctx_t, U* d, const U* s, std::ptrdiff_t dst, std::ptrdiff_t sst, std::size_t n, int pe) {   \
                shmem_##OPERATION(d, s, dst, sst, n, pe);                                                          \
              });                                                                                                  \
  CHECK<T, U>("shmem_ctx_" #OPERATION, ctx,                                                                        \
              [](shmem_ctx_t c, U* d, const U* s, std::ptrdiff_t dst, std::ptrdiff_t sst, std::size_t n, int pe) { \
                shmem_ctx_##OPERATION(c, d, s, dst, sst, n, pe);                                                   \
              });
#define TYPE_CASES(TYPE, NAME)                                                           \
  COPY_CASES(check_put, TYPE, TYPE, NAME##_put)                                          \
  COPY_CASES(check_put, TYPE, TYPE, NAME##_put_nbi)                                      \
  COPY_CASES(check_get, TYPE, TYPE, NAME##_get)                                          \
  COPY_CASES(check_get, TYPE, TYPE, NAME##_get_nbi)                                      \
  STRIDED_CASES(check_iput, TYPE, TYPE, NAME##_iput)                                     \
  STRIDED_CASES(check_iget, TYPE, TYPE, NAME##_iget)                                     \
  check_one<TYPE>(                                                                       \
      "shmem_" #NAME "_p and _g", SHMEM_CTX_DEFAULT,                                     \
      [](shmem_ctx_t, TYPE* d, TYPE v, int pe) { shmem_##NAME##_p(d, v, pe); },          \
      [](shmem_ctx_t, const TYPE* s, int pe) { return shmem_##NAME##_g(s, pe); });       \
  check_one<TYPE>(                                                                       \
      "shmem_ctx_" #NAME "_p and _g", ctx,                                               \
      [](shmem_ctx_t c, TYPE* d, TYPE v, int pe) { shmem_ctx_##NAME##_p(c, d, v, pe); }, \
      [](shmem_ctx_t c, const TYPE* s, int pe) { return shmem_ctx_##NAME##_g(c, s, pe); });

struct Wide {
  Wide() = default;
  explicit Wide(int value) : low(static_cast<std::uint64_t>(value)), high(~low) {}
  bool operator==(const Wide&) const = default;
  std::uint64_t low = 0, high = 0;
};

#define SIZE_CASES(TYPE, BITS)                       \
  COPY_CASES(check_put, TYPE, void, put##BITS)       \
  COPY_CASES(check_put, TYPE, void, put##BITS##_nbi) \
  COPY_CASES(check_get, TYPE, void, get##BITS)       \
  COPY_CASES(check_get, TYPE, void, get##BITS##_nbi) \
  STRIDED_CASES(check_iput, TYPE, void, iput##BITS)  \
  STRIDED_CASES(check_iget, TYPE, void, iget##BITS)

void check_all(shmem_ctx_t ctx) {
  NAMES_OF_TYPES(TYPE_CASES)
  SIZE_CASES(std::uint8_t, 8)
  SIZE_CASES(std::uint16_t, 16)
  SIZE_CASES(std::uint32_t, 32)
  SIZE_CASES(std::uint64_t, 64)
  SIZE_CASES(Wide, 128)
  COPY_CASES(check_put, std::uint8_t, void, putmem)
  COPY_CASES(check_put, std::uint8_t, void, putmem_nbi)
  COPY_CASES(check_get, std::uint8_t, void, getmem)
  COPY_CASES(check_get, std::uint8_t, void, getmem_nbi)
}

}  // namespace

void check_copies() {
  shmem_ctx_t ctx;
  if (shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) != 0) std::abort();
  check_all(ctx);
  shmem_ctx_destroy(ctx);
}

}  // namespace names
