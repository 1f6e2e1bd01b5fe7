// What a test asks of the library that stands in for libibverbs, libmlx5 and libcuda (fake_mlx5.cpp), which it loads.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace imbrex::shmem::mlx5::test {

struct FakeSetting {
  std::uint64_t fail_at = ~std::uint64_t{0};  ///< this call of those that can fail, counted from 0, does
  int number = ENOMEM;                        ///< with this errno
  std::uint64_t refuse = 0;                   ///< the opcode of commands that the NIC refuses
  bool is_mlx5 = true, has_device = true, active = true, ethernet = false, roce_v2 = true, atomics = true;
  bool own_uars = true;      ///< it knows doorbells that are not cached, one a caller
  bool takes_memory = true;  ///< without: DMA buffers only
  int ordering = 100;        ///< of writes to the GPU
  int flush_options = 1;
};

struct FakeState {
  std::uint64_t calls;  ///< that can fail
  long objects;         ///< that were made, and not given back
  char failed[64];      ///< the call that failed last
  int access;           ///< flags of the last region
  std::uint64_t iova;   ///< its address
  unsigned map_flags;   ///< of the last register that was mapped for a GPU
  int attributes[2];    ///< of the GPU, that were asked for last
  int handle_type;      ///< of the last DMA buffer
};

/// A queue as commands made it. `state`: 0 reset, 1 init, 2 ready to receive, 3 ready to send.
struct FakeQueue {
  void* ring;
  void* record;  ///< of what is sent
  void* completion;
  void* doorbell;
  std::uint32_t slots, peer, state, mtu, udp_source;
  std::uint8_t rgid[16], rmac[6];
  std::uint16_t rlid;
};

// Names and types of its functions.
using FakeStart = void(const FakeSetting*);
using FakeTell = void(FakeState*);
using FakeLook = bool(std::uint32_t number, FakeQueue*);

}  // namespace imbrex::shmem::mlx5::test
