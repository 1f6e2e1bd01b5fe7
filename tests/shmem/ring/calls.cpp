#include "imbrex/device/shmem/ring/transport.hpp"
#include "shmem/call_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> calls_on_ring() {
  std::vector<Case> cases = calls<Ring>();
  // One asks for pointers to peers, which no ring gives.
  std::erase_if(cases, [](const Case& one) { return one.name == "contexts"; });
  return cases;
}

}  // namespace imbrex::shmem::test
