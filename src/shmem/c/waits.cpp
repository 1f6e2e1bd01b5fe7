// Signals, waits and tests, of this PE's own memory; fences.
#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

static_assert(std::is_same_v<std::size_t, std::uint64_t> && none == SIZE_MAX);

Compare comparison(int cmp) {
  switch (cmp) {
    case SHMEM_CMP_EQ: return Compare::equal;
    case SHMEM_CMP_NE: return Compare::not_equal;
    case SHMEM_CMP_GT: return Compare::greater;
    case SHMEM_CMP_GE: return Compare::greater_equal;
    case SHMEM_CMP_LT: return Compare::less;
    case SHMEM_CMP_LE: return Compare::less_equal;
    default: break;
  }
  throw Error(ErrorCode::invalid_input, fmt::format("cmp = {}: there is no such comparison", cmp));
}

/// `body(context, comparison)`, for so many words.
template <typename T, typename Body>
auto look(const char* name, const char* argument, const T* words, std::size_t count, int cmp, Body&& body) {
  return call(name, [&](Process& p) {
    const Compare compare = comparison(cmp);
    p.expect_on_host();
    p.expect_words(argument, words, count, sizeof(T));
    return body(p.context(), compare);
  });
}

/// Runs `body`, where false says that a wait has failed.
template <typename T, typename Body>
void wait(const char* name, const char* argument, const T* words, std::size_t count, int cmp, Body&& body) {
  call(name, [&](Process& p) {
    const Compare compare = comparison(cmp);
    p.expect_on_host();
    p.expect_words(argument, words, count, sizeof(T));
    if (!body(p.context(), compare)) p.throw_failure();
  });
}

/// What is compared with: one value, or an array.
template <typename T>
void expect_values(std::size_t, T) {}
template <typename T>
void expect_values(std::size_t count, T* values) {
  if (count != 0) expect_given("cmp_values", values);
}
void expect_indices(std::size_t count, const std::size_t* indices) {
  if (count != 0) expect_given("indices", indices);
}

/// A fence, too: a context's own leaves it to the next store to release, which a put of bytes does not.
void quiet(const char* name, shmem_ctx_t ctx) {
  call(name, [&](Process& p) {
    static_cast<void>(p.team_of(ctx));
    p.context().quiet();
  });
}

}  // namespace
}  // namespace imbrex::shmem::c

using namespace imbrex::shmem;
using namespace imbrex::shmem::c;

uint64_t shmem_signal_fetch(const uint64_t* sig_addr) {
  return look(__func__, "sig_addr", sig_addr, 1, SHMEM_CMP_EQ,
              [&](Context<>& context, Compare) { return context.signal_fetch(sig_addr); });
}

uint64_t shmem_signal_wait_until(uint64_t* sig_addr, int cmp, uint64_t cmp_value) {
  uint64_t seen = 0;
  wait(__func__, "sig_addr", sig_addr, 1, cmp, [&](Context<>& context, Compare compare) {
    return context.wait(FaultKind::wait, context.pe(), sig_addr, cmp_value, seen,
                        [&] { return holds(seen = words::load_acquire(sig_addr), compare, cmp_value); });
  });
  return seen;
}

// FORM: of the context's function. VALUE: one, or an array.
#define SEVERAL(TYPE, NAME, FORM, ...)                                                                                 \
  void shmem_##NAME##_wait_until_all##FORM(TYPE* ivars, size_t nelems, const int* status, int cmp, __VA_ARGS__) {      \
    wait(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                             \
      expect_values(nelems, value);                                                                                    \
      return context.wait_until_all##FORM(ivars, nelems, status, compare, value);                                      \
    });                                                                                                                \
  }                                                                                                                    \
  size_t shmem_##NAME##_wait_until_any##FORM(TYPE* ivars, size_t nelems, const int* status, int cmp, __VA_ARGS__) {    \
    size_t found = SIZE_MAX;                                                                                           \
    wait(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                             \
      expect_values(nelems, value);                                                                                    \
      return context.wait_until_any##FORM(ivars, nelems, status, compare, value, found);                               \
    });                                                                                                                \
    return found;                                                                                                      \
  }                                                                                                                    \
  size_t shmem_##NAME##_wait_until_some##FORM(TYPE* ivars, size_t nelems, size_t* indices, const int* status, int cmp, \
                                              __VA_ARGS__) {                                                           \
    size_t found = 0;                                                                                                  \
    wait(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                             \
      expect_values(nelems, value);                                                                                    \
      expect_indices(nelems, indices);                                                                                 \
      return context.wait_until_some##FORM(ivars, nelems, indices, status, compare, value, found);                     \
    });                                                                                                                \
    return found;                                                                                                      \
  }                                                                                                                    \
  int shmem_##NAME##_test_all##FORM(TYPE* ivars, size_t nelems, const int* status, int cmp, __VA_ARGS__) {             \
    return look(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                      \
      expect_values(nelems, value);                                                                                    \
      return context.test_all##FORM(ivars, nelems, status, compare, value) ? 1 : 0;                                    \
    });                                                                                                                \
  }                                                                                                                    \
  size_t shmem_##NAME##_test_any##FORM(TYPE* ivars, size_t nelems, const int* status, int cmp, __VA_ARGS__) {          \
    return look(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                      \
      expect_values(nelems, value);                                                                                    \
      return context.test_any##FORM(ivars, nelems, status, compare, value);                                            \
    });                                                                                                                \
  }                                                                                                                    \
  size_t shmem_##NAME##_test_some##FORM(TYPE* ivars, size_t nelems, size_t* indices, const int* status, int cmp,       \
                                        __VA_ARGS__) {                                                                 \
    return look(__func__, "ivars", ivars, nelems, cmp, [&](Context<>& context, Compare compare) {                      \
      expect_values(nelems, value);                                                                                    \
      expect_indices(nelems, indices);                                                                                 \
      return context.test_some##FORM(ivars, nelems, indices, status, compare, value);                                  \
    });                                                                                                                \
  }

#define WAITS(TYPE, NAME, A)                                                                                      \
  void shmem_##NAME##_wait_until(TYPE* ivar, int cmp, TYPE value) {                                               \
    wait(__func__, "ivar", ivar, 1, cmp,                                                                          \
         [&](Context<>& context, Compare compare) { return context.wait_until(ivar, compare, value); });          \
  }                                                                                                               \
  int shmem_##NAME##_test(TYPE* ivar, int cmp, TYPE value) {                                                      \
    return look(__func__, "ivar", ivar, 1, cmp,                                                                   \
                [&](Context<>& context, Compare compare) { return context.test(ivar, compare, value) ? 1 : 0; }); \
  }                                                                                                               \
  SEVERAL(TYPE, NAME, , TYPE value)                                                                               \
  SEVERAL(TYPE, NAME, _vector, TYPE* value)

IMBREX_SHMEM_ATOMIC_TYPES(WAITS, )

// ---------------------------------------------------------------------------------------------------- fences

void shmem_fence() { quiet(__func__, SHMEM_CTX_DEFAULT); }
void shmem_ctx_fence(shmem_ctx_t ctx) { quiet(__func__, ctx); }
void shmem_quiet() { quiet(__func__, SHMEM_CTX_DEFAULT); }
void shmem_ctx_quiet(shmem_ctx_t ctx) { quiet(__func__, ctx); }

IMBREX_SHMEM_DEFINE_BOTH(void, pe_quiet, (const int* target_pes, size_t npes), call(__func__, [&](Process& p) {
                           p.expect_addresses("target_pes", target_pes, npes, sizeof(int));
                           for (size_t i = 0; i < npes; ++i) p.context().pe_quiet(p.pe(ctx, target_pes[i]));
                         });)
