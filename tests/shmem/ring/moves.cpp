#include "imbrex/device/shmem/ring/mixed.hpp"
#include "shmem/move_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> moves_on_ring() { return moves<Ring, Thread, Warp, Block>(); }
std::vector<Case> moves_on_mixed_ring() { return moves<MixedRing, Thread, Warp, Block>(); }
std::vector<Case> moves_on_own_ring() { return moves<OwnRing, Thread, Warp, Block>(); }

}  // namespace imbrex::shmem::test
