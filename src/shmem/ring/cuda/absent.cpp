// A build without CUDA.
#include "imbrex/error.hpp"
#include "shmem/ring/pinned.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {
namespace {

constexpr const char* absent = "rings of GPUs: this build of Imbrex has no CUDA parts; build it where nvcc is found";

}  // namespace

std::unique_ptr<Wire> gpu_wire(Heap&) { throw Error(ErrorCode::invalid_input, absent); }
std::shared_ptr<std::byte> pinned_memory(int, std::size_t) { throw Error(ErrorCode::invalid_input, absent); }

}  // namespace imbrex::shmem::ring
