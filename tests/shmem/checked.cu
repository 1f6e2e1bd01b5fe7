#define IMBREX_SHMEM_CHECK
#include "shmem/gpu_parts.hpp"
#include "shmem/misuse.hpp"

namespace imbrex::shmem::test {

void run_misuse_on_gpu(Heap& heap, CudaStream stream, int what, std::uint64_t* box) {
  run_misuse(heap, stream, static_cast<Misuse>(what), box);
}
const char* misuse_words_of(int what) { return misuse_words[what]; }
int misuses_on_gpu() { return misuses; }

}  // namespace imbrex::shmem::test
