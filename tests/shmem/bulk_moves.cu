#include "shmem/move_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> bulk_moves_on_gpu() { return moves<LoadStore, BulkBlock>(); }

}  // namespace imbrex::shmem::test
