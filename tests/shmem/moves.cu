#include "shmem/move_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> few_moves_on_gpu() { return moves<LoadStore, Thread, Warp, Block>(); }

}  // namespace imbrex::shmem::test
