// A build without libfabric's headers.
#include "imbrex/error.hpp"
#include "shmem/ring/wire.hpp"

namespace imbrex::shmem::ring {

std::unique_ptr<Wire> fabric_wire(Heap&, const FabricOptions&) {
  throw Error(ErrorCode::invalid_input,
              "rings over several hosts: this build is without libfabric; install its headers (Debian: apt-get install "
              "libfabric-dev) and build again");
}

}  // namespace imbrex::shmem::ring
