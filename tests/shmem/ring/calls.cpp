#include "imbrex/device/shmem/ring/mixed.hpp"
#include "shmem/call_cases.hpp"

namespace imbrex::shmem::test {

namespace {

template <typename Transport>
std::vector<Case> calls_by() {
  std::vector<Case> cases = calls<Transport>();
  // One asks for pointers to peers, which no ring gives.
  std::erase_if(cases, [](const Case& one) { return one.name == "contexts"; });
  return cases;
}

}  // namespace

std::vector<Case> calls_on_ring() { return calls_by<Ring>(); }
std::vector<Case> calls_on_mixed_ring() { return calls_by<MixedRing>(); }

}  // namespace imbrex::shmem::test
