#include "imbrex/device/shmem/ring/transport.hpp"
#include "shmem/move_cases.hpp"
#include "shmem/ring/gpu_parts.hpp"

namespace imbrex::shmem::test {

std::vector<Case> moves_on_gpu_ring() { return moves<Ring, Warp, Block>(); }

}  // namespace imbrex::shmem::test
