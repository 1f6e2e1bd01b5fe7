// Beginning and end, memory, teams and contexts.
#include <cstring>

#include "shmem/c/process.hpp"

namespace imbrex::shmem::c {
namespace {

constexpr std::size_t least_alignment = 8;

int begin_once(const char* name, int requested) {
  try {
    IMBREX_EXPECTS(requested >= SHMEM_THREAD_SINGLE && requested <= SHMEM_THREAD_MULTIPLE,
                   "requested = {}: there is no such level of threads", requested);
    return begin(std::min<int>(requested, SHMEM_THREAD_SERIALIZED)).thread_level();
  } catch (...) {
    end_by_exception(name);
  }
}

void* allocate(const char* name, std::size_t size, std::size_t alignment) {
  return call(name, [&](Process& p) { return p.allocate(size, alignment); });
}

int contexts_in(const shmem_team_config_t* config, long mask) {
  IMBREX_EXPECTS((mask & ~static_cast<long>(SHMEM_TEAM_NUM_CONTEXTS)) == 0,
                 "config_mask = {:#x}: {:#x} is its only bit", mask, static_cast<int>(SHMEM_TEAM_NUM_CONTEXTS));
  if (mask == 0) return 0;
  expect_given("config", config);
  IMBREX_EXPECTS(config->num_contexts >= 0, "num_contexts = {}: it must not be negative", config->num_contexts);
  return config->num_contexts;
}

/// A team of the parent's members, on those; false where there can be no more teams, on all members of the parent.
bool split(Process& p, const Team& parent, int start, int stride, int size, int contexts, shmem_team_t& made) {
  made = SHMEM_TEAM_INVALID;
  try {
    const std::optional<Team> team = p.heap().split_strided(parent, start, stride, size);
    if (team) made = p.add(*team, contexts);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::runtime_failure) throw;
    p.world().throw_if_failed();
    return false;
  }
}

void* pointer(const char* name, shmem_team_t team, const void* dest, int pe) {
  return call(name, [&](Process& p) { return p.heap().pointer(dest, static_cast<int>(p.pe(p.team(team), pe))); });
}

int make_context(const char* name, shmem_team_t team, long options, shmem_ctx_t* ctx) {
  return call(name, [&](Process& p) {
    constexpr long known = SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE;
    expect_given("ctx", ctx);
    IMBREX_EXPECTS((options & ~known) == 0, "options = {:#x}: their bits are {:#x}", options, known);
    *ctx = SHMEM_CTX_INVALID;
    if (team == SHMEM_TEAM_INVALID) return -1;
    static_cast<void>(p.team(team));
    *ctx = p.add_context(team);
    return 0;
  });
}

}  // namespace
}  // namespace imbrex::shmem::c

imbrex::shmem::Heap& imbrex::shmem::heap() { return c::process().heap(); }

using namespace imbrex::shmem;
using namespace imbrex::shmem::c;

void shmem_init() { begin_once(__func__, SHMEM_THREAD_SINGLE); }

int shmem_init_thread(int requested, int* provided) {
  const int level = begin_once(__func__, requested);
  call(__func__, [&](Process&) { expect_given("provided", provided); });
  *provided = level;
  return 0;
}

void shmem_finalize() {
  call(__func__, [](Process&) { finish(); });
}

void shmem_global_exit(int status) {
  try {
    end_by_exit(process(), status);
  } catch (...) {
    end_by_exception(__func__);
  }
}

void shmem_query_thread(int* provided) {
  call(__func__, [&](Process& p) {
    expect_given("provided", provided);
    *provided = p.thread_level();
  });
}

void shmem_query_initialized(int* initialized) { *initialized = is_running() ? 1 : 0; }

int shmem_my_pe() {
  return call(__func__, [](Process& p) { return p.heap().pe(); });
}

int shmem_n_pes() {
  return call(__func__, [](Process& p) { return p.heap().pes(); });
}

void shmem_info_get_version(int* major, int* minor) {
  *major = SHMEM_MAJOR_VERSION;
  *minor = SHMEM_MINOR_VERSION;
}

void shmem_info_get_name(char* name) { std::strcpy(name, SHMEM_VENDOR_STRING); }

int shmem_pe_accessible(int pe) {
  return call(__func__, [&](Process& p) { return pe >= 0 && pe < p.heap().pes() ? 1 : 0; });
}

int shmem_addr_accessible(const void* addr, int pe) {
  return call(__func__, [&](Process& p) { return pe >= 0 && pe < p.heap().pes() && p.heap().holds(addr, 1) ? 1 : 0; });
}

// ---------------------------------------------------------------------------------------------------- memory

void* shmem_malloc(size_t size) { return allocate(__func__, size, 256); }

void* shmem_malloc_with_hints(size_t size, long hints) {
  return call(__func__, [&](Process& p) {
    constexpr long known = SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE;
    IMBREX_EXPECTS((hints & ~known) == 0, "hints = {:#x}: their bits are {:#x}", hints, known);
    return p.allocate(size, 256);
  });
}

void* shmem_calloc(size_t count, size_t size) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) bytes = ~size_t{0};  // so much no heap has
  return allocate(__func__, bytes, 256);
}

void* shmem_align(size_t alignment, size_t size) {
  return call(__func__, [&](Process& p) {
    IMBREX_EXPECTS(alignment >= least_alignment, "alignment = {}: it must be {} or more", alignment, least_alignment);
    return p.allocate(size, alignment);
  });
}

void* shmem_realloc(void* ptr, size_t size) {
  return call(__func__, [&](Process& p) -> void* {
    if (ptr == nullptr) return p.allocate(size, 256);
    const size_t before = p.bytes_of(ptr);
    void* own = p.allocate(size, 256);  // all PEs are here
    if (own == nullptr && size != 0) return nullptr;
    const auto me = static_cast<std::uint32_t>(p.heap().pe());
    if (own != nullptr) p.write(own, ptr, std::min(before, size), me);
    p.release(ptr);
    return own;
  });
}

void shmem_free(void* ptr) {
  call(__func__, [&](Process& p) { p.release(ptr); });
}

void* shmem_ptr(const void* dest, int pe) { return pointer(__func__, SHMEM_TEAM_WORLD, dest, pe); }

void* shmem_team_ptr(shmem_team_t team, const void* dest, int pe) {
  if (team == SHMEM_TEAM_INVALID) return nullptr;
  return pointer(__func__, team, dest, pe);
}

// ----------------------------------------------------------------------------------------------------- teams

int shmem_team_my_pe(shmem_team_t team) {
  return call(__func__,
              [&](Process& p) { return team == SHMEM_TEAM_INVALID ? -1 : static_cast<int>(p.team(team).me); });
}

int shmem_team_n_pes(shmem_team_t team) {
  return call(__func__,
              [&](Process& p) { return team == SHMEM_TEAM_INVALID ? -1 : static_cast<int>(p.team(team).size); });
}

int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team) {
  return call(__func__, [&](Process& p) {
    if (src_team == SHMEM_TEAM_INVALID || dest_team == SHMEM_TEAM_INVALID) return -1;
    const Team &from = p.team(src_team), &to = p.team(dest_team);
    if (src_pe < 0 || src_pe >= static_cast<int>(from.size)) return -1;
    for (std::uint32_t member = 0; member < to.size; ++member)
      if (to.pe(member) == from.pe(static_cast<std::uint32_t>(src_pe))) return static_cast<int>(member);
    return -1;
  });
}

int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t* config) {
  return call(__func__, [&](Process& p) {
    if (team == SHMEM_TEAM_INVALID) return -1;
    const int contexts = p.contexts_of(team);
    shmem_team_config_t asked{};
    static_cast<void>(contexts_in(&asked, config_mask));
    if (config_mask == 0) return 0;
    expect_given("config", config);
    config->num_contexts = contexts;
    return 0;
  });
}

int shmem_team_split_strided(shmem_team_t parent, int start, int stride, int size, const shmem_team_config_t* config,
                             long config_mask, shmem_team_t* new_team) {
  return call(__func__, [&](Process& p) {
    expect_given("new_team", new_team);
    *new_team = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return -1;
    const Team from = p.team(parent);
    return split(p, from, start, stride, size, contexts_in(config, config_mask), *new_team) ? 0 : -1;
  });
}

int shmem_team_split_2d(shmem_team_t parent, int xrange, const shmem_team_config_t* xaxis_config, long xaxis_mask,
                        shmem_team_t* xaxis_team, const shmem_team_config_t* yaxis_config, long yaxis_mask,
                        shmem_team_t* yaxis_team) {
  return call(__func__, [&](Process& p) {
    expect_given("xaxis_team", xaxis_team);
    expect_given("yaxis_team", yaxis_team);
    *xaxis_team = *yaxis_team = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return -1;
    const Team from = p.team(parent);
    IMBREX_EXPECTS(xrange >= 1, "xrange = {}: it must be 1 or more", xrange);
    const int xcontexts = contexts_in(xaxis_config, xaxis_mask), ycontexts = contexts_in(yaxis_config, yaxis_mask);
    const int members = static_cast<int>(from.size), columns = std::min(xrange, members);
    const int rows = (members + columns - 1) / columns;
    bool well = true;
    // Each split is collective: all members of the parent make all rows and all columns, and keep their own.
    const auto make = [&](int start, int stride, int size, int contexts, shmem_team_t& own) {
      shmem_team_t made = SHMEM_TEAM_INVALID;
      well = well && split(p, from, start, stride, size, contexts, made);
      if (made != SHMEM_TEAM_INVALID) own = made;
    };
    for (int y = 0; y < rows; ++y)
      make(y * columns, 1, std::min(columns, members - y * columns), xcontexts, *xaxis_team);
    for (int x = 0; x < columns; ++x) make(x, columns, (members - x + columns - 1) / columns, ycontexts, *yaxis_team);
    if (well) return 0;
    for (shmem_team_t* team : {xaxis_team, yaxis_team}) {
      if (*team != SHMEM_TEAM_INVALID) p.remove(*team);
      *team = SHMEM_TEAM_INVALID;
    }
    return -1;
  });
}

void shmem_team_destroy(shmem_team_t team) {
  if (team == SHMEM_TEAM_INVALID) return;
  call(__func__, [&](Process& p) { p.remove(team); });
}

// -------------------------------------------------------------------------------------------------- contexts

int shmem_ctx_create(long options, shmem_ctx_t* ctx) { return make_context(__func__, SHMEM_TEAM_WORLD, options, ctx); }

int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t* ctx) {
  return make_context(__func__, team, options, ctx);
}

int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t* team) {
  return call(__func__, [&](Process& p) {
    expect_given("team", team);
    *team = ctx == SHMEM_CTX_INVALID ? SHMEM_TEAM_INVALID : p.team_of(ctx);
    return ctx == SHMEM_CTX_INVALID ? -1 : 0;
  });
}

void shmem_ctx_destroy(shmem_ctx_t ctx) {
  if (ctx == SHMEM_CTX_INVALID) return;
  call(__func__, [&](Process& p) { p.remove_context(ctx); });
}

void shmem_ctx_session_start(shmem_ctx_t ctx, long options, const shmem_ctx_session_config_t* config,
                             long config_mask) {
  call(__func__, [&](Process& p) {
    static_cast<void>(p.team_of(ctx));
    IMBREX_EXPECTS((options & ~static_cast<long>(SHMEM_CTX_SESSION_BATCH)) == 0,
                   "options = {:#x}: {:#x} is their only bit", options, static_cast<int>(SHMEM_CTX_SESSION_BATCH));
    if (config_mask != 0) expect_given("config", config);
  });
}

void shmem_ctx_session_stop(shmem_ctx_t ctx) {
  call(__func__, [&](Process& p) { static_cast<void>(p.team_of(ctx)); });
}
