#include "shmem/move_cases.hpp"
#include "shmem/reordering.hpp"

namespace imbrex::shmem::test {

std::vector<Case> moves_on_host() { return moves<LoadStore, Thread, Warp, Block>(); }
std::vector<Case> moves_on_host_reordered() { return moves<Reordering<LoadStore>, Thread, Warp, Block>(); }

}  // namespace imbrex::shmem::test
