// Whether a transport reaches a PE. One that says `reaches` may not; all others reach all PEs.
#pragma once

#include "imbrex/device/shmem/handle.hpp"
#include "imbrex/device/shmem/kernel.hpp"

namespace imbrex::shmem {

template <typename Transport>
IMBREX_DEVICE bool reaches([[maybe_unused]] const Handle& handle, [[maybe_unused]] std::uint32_t pe) {
  if constexpr (requires { Transport::reaches(handle, pe); })
    return Transport::reaches(handle, pe);
  else
    return true;
}

/// Whether it does; where it is false, the fault ends all waits of all PEs.
template <typename Transport>
IMBREX_DEVICE bool expect_reached(const Handle& handle, const void* address, std::uint32_t pe) {
  if (reaches<Transport>(handle, pe)) return true;
  give_up(handle, [&](device::Fault& fault) {
    const std::uint64_t offset = reinterpret_cast<std::uint64_t>(address) - reinterpret_cast<std::uint64_t>(handle.own);
    describe(fault, FaultKind::far, block_index(), pe, offset, handle.pes(), pe);
  });
  return false;
}

}  // namespace imbrex::shmem
