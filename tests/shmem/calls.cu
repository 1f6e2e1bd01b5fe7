#include "shmem/call_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> calls_on_gpu() { return calls<LoadStore>(); }

}  // namespace imbrex::shmem::test
