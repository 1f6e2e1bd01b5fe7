// OpenSHMEM in kernels: puts, gets, atomic operations, signals, bounded waits and collectives over the symmetric heap,
// for CUDA and, from the same source, for the CPU. docs/shmem.md explains; imbrex/shmem.hpp is the host's side.
//
//     IMBREX_KERNEL halo(imbrex::shmem::Handle handle, float* row, std::uint64_t* signal, int n) {
//       imbrex::shmem::Context context(handle);                     // this block's own
//       const imbrex::shmem::Block block;
//       const auto right = (context.pe() + 1) % context.pes();
//       context.put_signal(row + n, row, n, signal, 1, imbrex::shmem::SignalOperation::add, right, block);
//       context.signal_wait_until(signal, imbrex::shmem::Compare::greater_equal, 1, block);
//     }
//
// Header only: no symbol on the device, no relocatable device code. Needs C++20.
#pragma once

#include "imbrex/device/shmem/bulk.hpp"
#include "imbrex/device/shmem/collectives.hpp"
#include "imbrex/device/shmem/context.hpp"
#include "imbrex/device/shmem/group.hpp"
#include "imbrex/device/shmem/handle.hpp"
#include "imbrex/device/shmem/kernel.hpp"
#include "imbrex/device/shmem/load_store.hpp"
