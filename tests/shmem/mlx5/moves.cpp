#include "apps/nic/transport.hpp"
#include "shmem/move_cases.hpp"

namespace imbrex::shmem::test {

std::vector<Case> moves_on_mlx5() { return moves<Mlx5, Thread, Warp, Block>(); }

}  // namespace imbrex::shmem::test
