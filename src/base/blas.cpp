#include "base/blas.hpp"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"

extern "C" {
// What a product of OpenBLAS does first and last. An allocation takes a free buffer, or maps another, which it keeps.
void* blas_memory_alloc(int position);
void blas_memory_free(void* buffer);

// Number of threads that OPENBLAS_NUM_THREADS asks for. The linker puts this in OpenBLAS' place (cmake/Library.cmake):
// its own would start a thread for every core when the library is loaded, before anybody can ask for fewer.
int __wrap_openblas_num_threads_env();
int __wrap_openblas_num_threads_env() { return 1; }

// The linker puts the first instead of the second, for all that is linked statically.
void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset);
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset);
}

namespace imbrex::base {
namespace {

// What a buffer takes (BUFFER_SIZE of OpenBLAS' common.h, the same on x86-64 and ARM), and a page at each end. A test
// compares it with what OpenBLAS maps.
constexpr std::size_t buffer_bytes = (std::size_t{32} << 22) + 8192;

std::mutex mutex;
std::condition_variable changed;
int made = 0, in_use = 0;   // buffers, in this process
bool making = false;        // no call begins meanwhile
bool all_there_is = false;  // the last buffer that was asked for could not be had

// OpenBLAS has a table of at least 50 buffers, and of two for each thread that it was built for. Others may have the
// second half, where they share it.
int most_buffers() {
  constexpr std::string_view name = "MAX_THREADS=";
  const std::string_view config = openblas_get_config();
  int threads = 0;
  if (const std::size_t at = config.find(name); at != std::string_view::npos)
    std::from_chars(config.data() + at + name.size(), config.data() + config.size(), threads);
  return std::max(25, threads);
}

// Memory for this thread's next buffer. OpenBLAS gets it where it maps one: had it to ask the system, another thread
// could have taken the last of the address space, and it would ask for ever.
thread_local char* memory_of_next = nullptr;

bool map_next() {
  void* memory = mmap(nullptr, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
#ifdef IMBREX_STATIC_BLAS
  memory_of_next = static_cast<char*>(memory);
#else
  munmap(memory, buffer_bytes);  // a shared OpenBLAS asks the system
#endif
  return true;
}

// Makes OpenBLAS have `wanted` buffers while it is idle. Returns how many it has.
int make_buffers(int wanted) {
  std::vector<void*> taken;
  taken.reserve(static_cast<std::size_t>(wanted));
  const auto take = [&] {
    void* buffer = blas_memory_alloc(0);
    if (buffer) taken.push_back(buffer);
    return buffer != nullptr;
  };
  while (std::ssize(taken) < made && take()) {
  }
  while (std::ssize(taken) < wanted && map_next() && take()) {
  }
  if (memory_of_next) munmap(std::exchange(memory_of_next, nullptr), buffer_bytes);
  for (void* buffer : taken) blas_memory_free(buffer);
  return static_cast<int>(taken.size());
}

struct Making {
  Making() { making = true; }
  ~Making() {
    making = false;
    changed.notify_all();
  }
};

// Has `wanted` buffers made, or as many as can be had.
void grow(std::unique_lock<std::mutex>& lock, int wanted) {
  static const int most = most_buffers();
  wanted = std::min(wanted, most);
  changed.wait(lock, [] { return !making; });
  if (wanted <= made || all_there_is) return;
  const Making alone;
  changed.wait(lock, [] { return in_use == 0; });
  openblas_set_num_threads(1);  // a shared OpenBLAS has its threads already; they shall have nothing to do
  made = std::max(made, make_buffers(wanted));
  all_there_is = made < wanted && made > 0;
}

void expect_memory() {
  if (made == 0)
    throw Error(
        ErrorCode::runtime_failure,
        fmt::format("the BLAS gets no memory: it takes {} bytes for each thread that multiplies; is the address "
                    "space limited (ulimit -v)?",
                    buffer_bytes));
}

// A thread's use of a buffer.
struct Turn {
  Turn() {
    std::unique_lock lock(mutex);
    if (making || in_use == made) grow(lock, in_use + 1);
    expect_memory();
    changed.wait(lock, [] { return !making && in_use < made; });
    ++in_use;
  }
  ~Turn() {
    const std::lock_guard lock(mutex);
    --in_use;
    changed.notify_all();
  }
};

}  // namespace

void reserve_blas(int threads) {
  std::unique_lock lock(mutex);
  grow(lock, threads);
  expect_memory();
}

void multiply(const BlasProduct<float>& p) {
  const Turn turn;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, p.b_by_columns ? CblasTrans : CblasNoTrans, p.rows, p.cols, p.depth, 1, p.a,
              p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

void multiply(const BlasProduct<double>& p) {
  const Turn turn;
  cblas_dgemm(CblasRowMajor, CblasNoTrans, p.b_by_columns ? CblasTrans : CblasNoTrans, p.rows, p.cols, p.depth, 1, p.a,
              p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
}

}  // namespace imbrex::base

void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  using imbrex::base::buffer_bytes, imbrex::base::memory_of_next;
  if (!memory_of_next || !(flags & MAP_ANONYMOUS) || bytes > buffer_bytes)
    return __real_mmap(address, bytes, protection, flags, file, offset);
  char* memory = std::exchange(memory_of_next, nullptr);
  if (bytes < buffer_bytes) munmap(memory + bytes, buffer_bytes - bytes);
  return memory;
}
