#include "imbrex/device/shmem/ring/transport.hpp"
#include "shmem/call_cases.hpp"
#include "shmem/ring/gpu_parts.hpp"

namespace imbrex::shmem::test {

std::vector<Case> calls_on_gpu_ring() {
  std::vector<Case> cases = calls<Ring>();
  std::erase_if(cases, [](const Case& one) { return one.name == "contexts"; });  // asks for pointers to peers
  return cases;
}

}  // namespace imbrex::shmem::test
