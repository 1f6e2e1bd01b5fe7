// Atomic operations.
#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

/// `change(context, world's PE)`, at an element of the context's PE.
template <typename T, typename Change>
auto atomic(const char* name, shmem_ctx_t ctx, const char* argument, const T* address, int pe, Change&& change) {
  return call(name, [&](Process& p) {
    const std::uint32_t there = p.pe(ctx, pe);
    p.expect_on_host();
    p.expect_words(argument, address, 1, sizeof(T));
    return change(p.context(), there);
  });
}

template <typename T>
T fetch(const char* name, shmem_ctx_t ctx, const T* source, int pe) {
  return atomic(name, ctx, "source", source, pe,
                [&](Context<>& context, std::uint32_t there) { return context.atomic_fetch(source, there); });
}

template <typename T>
void set(const char* name, shmem_ctx_t ctx, T* dest, T value, int pe) {
  atomic(name, ctx, "dest", dest, pe,
         [&](Context<>& context, std::uint32_t there) { context.atomic_set(dest, value, there); });
}

template <typename T>
T compare_swap(const char* name, shmem_ctx_t ctx, T* dest, T cond, T value, int pe) {
  return atomic(name, ctx, "dest", dest, pe, [&](Context<>& context, std::uint32_t there) {
    return context.atomic_compare_swap(dest, cond, value, there);
  });
}

#define FETCH_AND_CHANGE(OPERATION)                                                           \
  template <typename T>                                                                       \
  T OPERATION(const char* name, shmem_ctx_t ctx, T* dest, T value, int pe) {                  \
    return atomic(name, ctx, "dest", dest, pe, [&](Context<>& context, std::uint32_t there) { \
      return context.atomic_##OPERATION(dest, value, there);                                  \
    });                                                                                       \
  }
FETCH_AND_CHANGE(swap)
FETCH_AND_CHANGE(fetch_add)
FETCH_AND_CHANGE(fetch_and)
FETCH_AND_CHANGE(fetch_or)
FETCH_AND_CHANGE(fetch_xor)

/// Where a result goes that is used later.
template <typename T>
T& later(const char* name, T* to) {
  call(name, [&](Process&) { expect_given("fetch", to); });
  return *to;
}

}  // namespace
}  // namespace imbrex::shmem::c

using namespace imbrex::shmem::c;

// Both forms of what fetches. VALUES: of the call, behind dest.
#define FETCHING(TYPE, NAME, PARAMETERS, CALL)                             \
  IMBREX_SHMEM_DEFINE_BOTH(TYPE, NAME, (PARAMETERS, int pe), return CALL;) \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME##_nbi, (TYPE * fetched, PARAMETERS, int pe), later(__func__, fetched) = CALL;)

#define PLAIN(TYPE, NAME, A)                                                                \
  FETCHING(TYPE, NAME##_atomic_fetch, const TYPE* source, fetch(__func__, ctx, source, pe)) \
  FETCHING(TYPE, NAME##_atomic_swap, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE value),        \
           swap(__func__, ctx, dest, value, pe))                                            \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME##_atomic_set, (TYPE * dest, TYPE value, int pe),      \
                           set(__func__, ctx, dest, value, pe);)
#define CHANGE(TYPE, NAME, OPERATION)                                                             \
  FETCHING(TYPE, NAME##_atomic_fetch_##OPERATION, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE value), \
           fetch_##OPERATION(__func__, ctx, dest, value, pe))                                     \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME##_atomic_##OPERATION, (TYPE * dest, TYPE value, int pe),    \
                           fetch_##OPERATION(__func__, ctx, dest, value, pe);)
#define ARITHMETIC(TYPE, NAME, A)                                                                               \
  PLAIN(TYPE, NAME, A)                                                                                          \
  FETCHING(TYPE, NAME##_atomic_compare_swap, IMBREX_SHMEM_ARGUMENTS(TYPE* dest, TYPE cond, TYPE value),         \
           compare_swap(__func__, ctx, dest, cond, value, pe))                                                  \
  FETCHING(TYPE, NAME##_atomic_fetch_inc, TYPE* dest, fetch_add(__func__, ctx, dest, static_cast<TYPE>(1), pe)) \
  IMBREX_SHMEM_DEFINE_BOTH(void, NAME##_atomic_inc, (TYPE * dest, int pe),                                      \
                           fetch_add(__func__, ctx, dest, static_cast<TYPE>(1), pe);)                           \
  CHANGE(TYPE, NAME, add)
#define BITS(TYPE, NAME, A) CHANGE(TYPE, NAME, and) CHANGE(TYPE, NAME, or) CHANGE(TYPE, NAME, xor)

IMBREX_SHMEM_NATIVE_FLOATS(PLAIN, )
IMBREX_SHMEM_ATOMIC_TYPES(ARITHMETIC, )
IMBREX_SHMEM_ATOMIC_BIT_TYPES(BITS, )
