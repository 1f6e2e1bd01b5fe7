// Sizes, counts and strides at the ends of their types: a call does what fits, or refuses on every PE, and stores
// nowhere else. Each case has a world of its own, of processes that this one forks.
//
// usage: shmem_extremes [PES]

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "imbrex/shmem.h"

namespace {

__extension__ typedef unsigned __int128 Wide;
using Arguments = std::vector<std::uint64_t>;

constexpr std::size_t heap_bytes = std::size_t{1} << 20, block_bytes = 256;
constexpr std::uint64_t two_to(int bits) { return std::uint64_t{1} << bits; }

int pes = 2;

// ------------------------------------------------------------------------------------------------ what is right

enum class Outcome : std::uint8_t { fine, refused, unknown };  // unknown: a legal call on memory that is not there

Outcome worst(Outcome a, Outcome b) {
  if (a == Outcome::refused || b == Outcome::refused) return Outcome::refused;
  return a == Outcome::unknown ? a : b;
}

/// What becomes of so many elements in the heap, whose blocks are small.
Outcome in_heap(Wide elements, Wide size) {
  if (elements * size <= block_bytes) return Outcome::fine;
  return elements * size > heap_bytes ? Outcome::refused : Outcome::unknown;
}
/// What becomes of so many in this process's own memory.
Outcome in_process(Wide elements, Wide size) {
  if (elements * size <= block_bytes) return Outcome::fine;
  return elements * size >= Wide{1} << 64 ? Outcome::refused : Outcome::unknown;
}
Wide span(Wide blocks, Wide each, Wide stride) {
  return blocks == 0 || each == 0 ? Wide{0} : (blocks - 1) * stride + each;
}
bool is_negative(std::uint64_t value) { return static_cast<std::int64_t>(value) < 0; }
bool is_stride(std::uint64_t value) { return value != 0 && !is_negative(value); }

// ---------------------------------------------------------------------------------------------------- the calls

// A PE's, when a case runs: blocks in the heap, what others' blocks are to keep, and memory outside of the heap.
int *to, *from;
std::uint64_t *signals, *guards[3];
int here[block_bytes / sizeof(int)];
std::size_t indices[block_bytes];

struct Call {
  std::string name;
  std::size_t arguments;
  Outcome (*expected)(const Arguments&);
  bool (*make)(const Arguments&);  // whether what it returns is right
};

std::ptrdiff_t signed_of(std::uint64_t value) { return static_cast<std::ptrdiff_t>(value); }

#define COUNTED(NAME, EXPECTED, ...)                                                            \
  {                                                                                             \
#NAME, 1, [](const Arguments& a) -> Outcome { const Wide n = a[0]; return EXPECTED; },        \
        [](const Arguments& a) { const std::size_t n = a[0]; shmem_##NAME(__VA_ARGS__); return true; } \
  }
#define WAITS(FORM, VALUES)                                                                             \
  COUNTED(int_wait_until_all##FORM, in_heap(n, 4), to, n, nullptr, SHMEM_CMP_EQ, VALUES),               \
      COUNTED(int_wait_until_any##FORM, in_heap(n, 4), to, n, nullptr, SHMEM_CMP_EQ, VALUES),           \
      COUNTED(int_wait_until_some##FORM, in_heap(n, 4), to, n, indices, nullptr, SHMEM_CMP_EQ, VALUES), \
      COUNTED(int_test_all##FORM, in_heap(n, 4), to, n, nullptr, SHMEM_CMP_EQ, VALUES),                 \
      COUNTED(int_test_any##FORM, in_heap(n, 4), to, n, nullptr, SHMEM_CMP_EQ, VALUES),                 \
      COUNTED(int_test_some##FORM, in_heap(n, 4), to, n, indices, nullptr, SHMEM_CMP_EQ, VALUES)

/// Strides must be positive where anything moves.
Outcome moved(const Arguments& a, std::uint64_t stride, std::uint64_t other, Wide count, Wide size, bool heap_first) {
  if (count == 0) return Outcome::fine;
  if (!is_stride(stride) || !is_stride(other)) return Outcome::refused;
  static_cast<void>(a);
  const Outcome first = in_heap(span(count, 1, heap_first ? stride : other), size);
  return worst(first, in_process(span(count, 1, heap_first ? other : stride), size));
}

/// Blocks in the heap, which must not overlap there; on the other side one behind the other.
Outcome blocks(const Arguments& a, Wide size) {
  if (a[1] == 0 || a[2] == 0) return Outcome::fine;
  if (!is_stride(a[0]) || a[0] < a[1]) return Outcome::refused;
  return worst(in_heap(span(a[2], a[1], a[0]), size), in_process(span(a[2], a[1], 1), size));
}

Outcome all_to_all(std::uint64_t dst, std::uint64_t sst, Wide count, Wide size) {
  if (!is_stride(dst) || !is_stride(sst)) return Outcome::refused;
  const Wide all = count * static_cast<unsigned>(pes);
  return worst(in_heap(span(all, 1, dst), size), in_heap(span(all, 1, sst), size));
}

Outcome memory(Wide) { return Outcome::fine; }
/// Null where there is nothing, or too little; else it is given back.
bool right(void* given, Wide bytes) {
  const bool well = (given != nullptr) == (bytes != 0 && bytes <= heap_bytes);
  shmem_free(given);
  return well;
}

const Call calls[] = {
    COUNTED(int_put, in_heap(n, 4), to, here, n, 0),
    COUNTED(int_put_nbi, in_heap(n, 4), to, here, n, 0),
    COUNTED(putmem, in_heap(n, 1), to, here, n, 0),
    COUNTED(put128, in_heap(n, 16), to, here, n, 0),
    COUNTED(int_get, in_heap(n, 4), here, from, n, 0),
    COUNTED(int_get_nbi, in_heap(n, 4), here, from, n, 0),
    COUNTED(getmem, in_heap(n, 1), here, from, n, 0),
    COUNTED(get64_nbi, in_heap(n, 8), here, from, n, 0),
    COUNTED(int_put_signal, in_heap(n, 4), to, here, n, signals, 1, SHMEM_SIGNAL_SET, 0),
    COUNTED(put128_signal_nbi, in_heap(n, 16), to, here, n, signals, 1, SHMEM_SIGNAL_ADD, 0),
    COUNTED(putmem_signal, in_heap(n, 1), to, here, n, signals, 1, SHMEM_SIGNAL_SET, 0),
    COUNTED(int_broadcast, in_heap(n, 4), SHMEM_TEAM_WORLD, to, from, n, 0),
    COUNTED(broadcastmem, in_heap(n, 1), SHMEM_TEAM_WORLD, to, from, n, 0),
    COUNTED(int_collect, in_heap(n* static_cast<unsigned>(pes), 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(collectmem, in_heap(n* static_cast<unsigned>(pes), 1), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(int_fcollect, in_heap(n* static_cast<unsigned>(pes), 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(fcollectmem, in_heap(n* static_cast<unsigned>(pes), 1), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(int_alltoall, in_heap(n* static_cast<unsigned>(pes), 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(alltoallmem, in_heap(n* static_cast<unsigned>(pes), 1), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(int_sum_reduce, in_heap(n, 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(int_max_reduce, in_heap(n, 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(uint_and_reduce, in_heap(n, 4), SHMEM_TEAM_WORLD, reinterpret_cast<unsigned*>(to),
            reinterpret_cast<unsigned*>(from), n),
    COUNTED(int_sum_inscan, in_heap(n, 4), SHMEM_TEAM_WORLD, to, from, n),
    COUNTED(int_sum_exscan, in_heap(n, 4), SHMEM_TEAM_WORLD, to, from, n),
    WAITS(, 0),
    WAITS(_vector, here),
    COUNTED(pe_quiet, in_process(n, 4), here, n),
    {"malloc", 1, [](const Arguments& a) { return memory(a[0]); },
     [](const Arguments& a) { return right(shmem_malloc(a[0]), a[0]); }},
    {"malloc_with_hints", 1, [](const Arguments& a) { return memory(a[0]); },
     [](const Arguments& a) { return right(shmem_malloc_with_hints(a[0], SHMEM_MALLOC_SIGNAL_REMOTE), a[0]); }},
    {"realloc", 1, [](const Arguments& a) { return memory(a[0]); },
     [](const Arguments& a) {
       void* const before = shmem_malloc(8);
       void* const after = shmem_realloc(before, a[0]);
       const bool well = right(after, a[0]);
       if (after == nullptr && a[0] != 0) shmem_free(before);  // it is as it was
       return well;
     }},
    {"calloc", 2, [](const Arguments& a) { return memory(Wide{a[0]} * a[1]); },
     [](const Arguments& a) { return right(shmem_calloc(a[0], a[1]), Wide{a[0]} * a[1]); }},
    {"align", 2,
     [](const Arguments& a) {
       return a[0] >= 8 && a[0] <= 4096 && (a[0] & (a[0] - 1)) == 0 ? Outcome::fine : Outcome::refused;
     },
     [](const Arguments& a) { return right(shmem_align(a[0], a[1]), a[1]); }},
    {"int_iput by dst", 2, [](const Arguments& a) { return moved(a, a[0], 1, a[1], 4, true); },
     [](const Arguments& a) { return shmem_int_iput(to, here, signed_of(a[0]), 1, a[1], 0), true; }},
    {"int_iput by sst", 2, [](const Arguments& a) { return moved(a, 1, a[0], a[1], 4, true); },
     [](const Arguments& a) { return shmem_int_iput(to, here, 1, signed_of(a[0]), a[1], 0), true; }},
    {"iput128 by dst", 2, [](const Arguments& a) { return moved(a, a[0], 1, a[1], 16, true); },
     [](const Arguments& a) { return shmem_iput128(to, here, signed_of(a[0]), 1, a[1], 0), true; }},
    {"int_iget by dst", 2, [](const Arguments& a) { return moved(a, a[0], 1, a[1], 4, false); },
     [](const Arguments& a) { return shmem_int_iget(here, from, signed_of(a[0]), 1, a[1], 0), true; }},
    {"int_iget by sst", 2, [](const Arguments& a) { return moved(a, 1, a[0], a[1], 4, false); },
     [](const Arguments& a) { return shmem_int_iget(here, from, 1, signed_of(a[0]), a[1], 0), true; }},
    {"int_alltoalls by dst", 2, [](const Arguments& a) { return all_to_all(a[0], 1, a[1], 4); },
     [](const Arguments& a) { return shmem_int_alltoalls(SHMEM_TEAM_WORLD, to, from, signed_of(a[0]), 1, a[1]) == 0; }},
    {"int_alltoalls by sst", 2, [](const Arguments& a) { return all_to_all(1, a[0], a[1], 4); },
     [](const Arguments& a) { return shmem_int_alltoalls(SHMEM_TEAM_WORLD, to, from, 1, signed_of(a[0]), a[1]) == 0; }},
    {"alltoallsmem by both", 3, [](const Arguments& a) { return all_to_all(a[0], a[1], a[2], 1); },
     [](const Arguments& a) {
       return shmem_alltoallsmem(SHMEM_TEAM_WORLD, to, from, signed_of(a[0]), signed_of(a[1]), a[2]) == 0;
     }},
    {"int_ibput", 3, [](const Arguments& a) { return blocks(a, 4); },
     [](const Arguments& a) { return shmem_int_ibput(to, here, signed_of(a[0]), 1, a[1], a[2], 0), true; }},
    {"ibget64", 3, [](const Arguments& a) { return blocks(a, 8); },
     [](const Arguments& a) { return shmem_ibget64(here, from, 1, signed_of(a[0]), a[1], a[2], 0), true; }},
};

// ---------------------------------------------------------------------------------------------------- the cases

/// What other blocks hold.
std::uint64_t kept(int guard, std::size_t i) { return 0x5eed0000u + static_cast<std::size_t>(guard) * 1000 + i; }

/// A PE of one case. 0: the call did what it should, and there is nothing in the wrong place.
int run_pe(const Call& call, const Arguments& arguments) {
  shmem_init();
  const auto block = [] { return shmem_calloc(1, block_bytes); };
  constexpr std::size_t words = block_bytes / sizeof(std::uint64_t);
  for (int guard = 0; guard < 3; ++guard) {
    guards[guard] = static_cast<std::uint64_t*>(block());
    for (std::size_t i = 0; i < words; ++i) guards[guard][i] = kept(guard, i);
    if (guard == 0) to = static_cast<int*>(block());
    if (guard == 1) from = static_cast<int*>(block()), signals = static_cast<std::uint64_t*>(block());
  }
  shmem_barrier_all();
  const bool right = call.make(arguments);
  shmem_barrier_all();
  bool kept_all = true;
  for (int guard = 0; guard < 3; ++guard)
    for (std::size_t i = 0; i < words; ++i) kept_all = kept_all && guards[guard][i] == kept(guard, i);
  shmem_finalize();
  return right && kept_all ? 0 : 1;
}

/// What became of the case: the PEs' codes, or negative signals.
std::vector<int> run(const Call& call, const Arguments& arguments, int number) {
  setenv("IMBREX_RENDEZVOUS", ("extremes" + std::to_string(getpid()) + "n" + std::to_string(number)).c_str(), 1);
  std::vector<pid_t> children;
  for (int pe = 0; pe < pes; ++pe) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    setenv("IMBREX_RANK", std::to_string(pe).c_str(), 1);
    alarm(60);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);  // refusals say why
    std::exit(run_pe(call, arguments));
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

std::vector<std::uint64_t> values(std::size_t arguments) {
  if (arguments == 3) return {0, 1, 2, two_to(32), two_to(62), two_to(63) - 1, two_to(63), ~std::uint64_t{0}};
  std::vector<std::uint64_t> list{0, 1, 2};
  for (const int bits : {31, 32, 60, 61, 62, 63})
    for (const std::uint64_t value : {two_to(bits) - 1, two_to(bits), two_to(bits) + 1}) list.push_back(value);
  list.push_back(~std::uint64_t{0} - 1);
  list.push_back(~std::uint64_t{0});
  if (arguments == 2) list.push_back(8);  // an alignment
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) pes = std::atoi(argv[1]);
  for (const char* name : {"PMI_RANK", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) unsetenv(name);
  setenv("IMBREX_WORLD_SIZE", std::to_string(pes).c_str(), 1);
  setenv("SHMEM_SYMMETRIC_SIZE", std::to_string(heap_bytes).c_str(), 1);
  setenv("IMBREX_SHMEM_DEVICE", "cpu", 1);
  int cases = 0, wrong = 0, unknown = 0;
  for (const Call& call : calls) {
    const std::vector<std::uint64_t> list = values(call.arguments);
    std::size_t all = 1;
    for (std::size_t i = 0; i < call.arguments; ++i) all *= list.size();
    for (std::size_t number = 0; number < all; ++number) {
      Arguments arguments;
      for (std::size_t i = 0, rest = number; i < call.arguments; ++i, rest /= list.size())
        arguments.push_back(list[rest % list.size()]);
      const Outcome expected = call.expected(arguments);
      if (expected == Outcome::unknown) {
        ++unknown;
        continue;
      }
      const std::vector<int> codes = run(call, arguments, ++cases);
      // Who refuses exits with 2; who is told first, with 3.
      const bool right = std::all_of(codes.begin(), codes.end(), [&](int code) {
        return expected == Outcome::fine ? code == 0 : code == 2 || code == 3;
      });
      if (right) continue;
      ++wrong;
      std::printf("shmem_%s", call.name.c_str());
      for (const std::uint64_t value : arguments) std::printf(" %llu", static_cast<unsigned long long>(value));
      std::printf(": it should be %s; codes of the PEs:", expected == Outcome::fine ? "done" : "refused");
      for (const int code : codes) std::printf(" %d", code);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  std::printf("%d cases, %d wrong; %d more would be legal on memory that is not there\n", cases, wrong, unknown);
  return wrong == 0 && cases > 0 ? 0 : 1;
}
