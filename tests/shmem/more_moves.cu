#include "shmem/move_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> more_moves_on_gpu() { return moves<LoadStore, Wide<Block>, Tile, CudaBlock>(); }

}  // namespace imbrex::shmem::test
