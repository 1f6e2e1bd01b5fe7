#include "runtime/cuda/device.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/fixed_text.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

// What a rank tells of its GPU.
struct Seat {
  std::array<char, sizeof(cudaUUID_t::bytes)> uuid{};
  char name[64] = {};  // ends with a zero byte
  std::int32_t visible = 0;
};

Seat seat_of(int device) {
  cudaDeviceProp properties{};
  IMBREX_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  Seat seat;
  std::copy_n(properties.uuid.bytes, seat.uuid.size(), seat.uuid.begin());
  put_text(properties.name, seat.name);
  IMBREX_CUDA_TRY(cudaGetDeviceCount(&seat.visible));
  return seat;
}

void expect_own_gpus(const std::vector<Seat>& seats) {
  for (std::size_t a = 0; a < seats.size(); ++a)
    for (std::size_t b = a + 1; b < seats.size(); ++b)
      if (seats[a].uuid == seats[b].uuid)
        throw Error(
            ErrorCode::runtime_failure,
            fmt::format("ranks {} and {} have the same GPU, {} ({}), and need one each; their processes see {} and {}",
                        a, b, seats[a].name, uuid_text(seats[a].uuid.data()), seats[a].visible, seats[b].visible));
}

// This process's number of a GPU; nothing where it does not see it.
std::optional<int> number_of(const Seat& seat) {
  for (int i = 0, count = device_count(); i < count; ++i)
    if (seat_of(i).uuid == seat.uuid) return i;
  return std::nullopt;
}

void expect_access(int device, int peer, int peer_rank, bool enable) {
  int reaches = 0, atomics = 0;
  IMBREX_CUDA_TRY(cudaDeviceCanAccessPeer(&reaches, device, peer));
  IMBREX_CUDA_TRY(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer));
  if (reaches == 0 || atomics == 0)
    throw Error(
        ErrorCode::runtime_failure,
        fmt::format("GPU {} {} GPU {}, that of rank {}: the CUDA executor needs peer access with native "
                    "atomics between all GPUs",
                    device, reaches == 0 ? "cannot reach the memory of" : "has no native atomics on", peer, peer_rank));
  // NOTE: it makes a context on the peer's GPU, which a peer in another process has no use for: mappings bring their
  // own access.
  if (!enable) return;
  static std::mutex lock;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard guard(lock);
  if (!enabled.insert({device, peer}).second) return;
  // The caller may have done so.
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    IMBREX_CUDA_TRY(status);
}

}  // namespace

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

int select_device(World& world) {
  const int count = device_count();
  if (count < world.size() && count != 1)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("{} ranks need a GPU each, and this process sees {}", world.size(), count));
  const int device = count >= world.size() ? world.rank() : 0;
  const Seat own = seat_of(device);
  std::vector<Seat> seats(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, seats.data(), sizeof own);
  expect_own_gpus(seats);
  IMBREX_CUDA_TRY(cudaSetDevice(device));
  IMBREX_CUDA_TRY(cudaFree(nullptr));
  const bool threads = one_process(world);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) continue;
    if (const auto peer = number_of(seats[static_cast<std::size_t>(rank)])) expect_access(device, *peer, rank, threads);
  }
  world.barrier();
  return device;
}

std::string uuid_text(const char* bytes) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

}  // namespace imbrex::runtime
