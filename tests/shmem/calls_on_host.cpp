#include "shmem/call_cases.hpp"
#include "shmem/reordering.hpp"

namespace imbrex::shmem::test {

std::vector<Case> calls_on_host() { return calls<LoadStore>(); }
std::vector<Case> calls_on_host_reordered() { return calls<Reordering<LoadStore>>(); }

}  // namespace imbrex::shmem::test
