#include "base/blas.hpp"

#include <cblas.h>
#include <sys/mman.h>

#include <mutex>
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
}

namespace imbrex::base {
namespace {

// What a buffer takes (BUFFER_SIZE of OpenBLAS' common.h, the same on x86-64 and ARM), and a page at each end. A test
// compares it with what OpenBLAS maps.
constexpr std::size_t buffer_bytes = (std::size_t{32} << 22) + 8192;

std::mutex mutex;
int in_use = 0, made = 0;  // buffers, in this process

bool can_map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

/// Makes OpenBLAS have `wanted` buffers. Returns how many it has.
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
  while (std::ssize(taken) < wanted && can_map(buffer_bytes) && take()) {
  }
  for (void* buffer : taken) blas_memory_free(buffer);
  return static_cast<int>(taken.size());
}

}  // namespace

BlasMemory::BlasMemory(int threads) : threads_(threads) {
  const std::lock_guard lock(mutex);
  // A shared OpenBLAS has its threads already; they shall have nothing to do.
  openblas_set_num_threads(1);
  const int wanted = in_use + threads;
  if (wanted > made) made = make_buffers(wanted);
  if (wanted > made)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("the BLAS gets memory for {} of {} threads, {} bytes each; is the address space limited "
                            "(ulimit -v)?",
                            made, wanted, buffer_bytes));
  in_use = wanted;
}

BlasMemory::~BlasMemory() {
  const std::lock_guard lock(mutex);
  in_use -= threads_;
}

}  // namespace imbrex::base
