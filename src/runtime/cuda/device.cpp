#include "runtime/cuda/device.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

// "GPU-" and 16 bytes in the driver's notation.
std::string uuid_text(const char* bytes) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

// What a rank tells of its GPU.
struct Seat {
  char uuid[64] = {}, name[64] = {};  // end with a zero byte
  std::int32_t visible = 0;
};

Seat seat_of(int device) {
  Seat seat;
  base::put_text(gpu_of(device).uuid, seat.uuid);
  base::put_text(gpu_of(device).name, seat.name);
  seat.visible = device_count();
  return seat;
}

std::string_view uuid_of(const Seat& seat) { return seat.uuid; }

void expect_own_gpus(const std::vector<Seat>& seats) {
  for (std::size_t a = 0; a < seats.size(); ++a)
    for (std::size_t b = a + 1; b < seats.size(); ++b)
      if (uuid_of(seats[a]) == uuid_of(seats[b]))
        throw Error(
            ErrorCode::runtime_failure,
            fmt::format("ranks {} and {} have the same GPU, {} ({}), and need one each; their processes see {} and {}",
                        a, b, seats[a].name, seats[a].uuid, seats[a].visible, seats[b].visible));
}

// This process's number of a GPU; nothing where it does not see it.
std::optional<int> number_of(const Seat& seat) {
  for (int i = 0, count = device_count(); i < count; ++i)
    if (gpu_of(i).uuid == uuid_of(seat)) return i;
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

int select_device(World& world, int ranks_per_gpu) {
  const bool threads = one_process(world);
  IMBREX_EXPECTS(ranks_per_gpu == 1 || (ranks_per_gpu > 1 && threads),
                 "ranks_per_gpu = {}: it must be 1, or more where ranks are threads of one process", ranks_per_gpu);
  const int count = device_count(), wanted = (world.size() + ranks_per_gpu - 1) / ranks_per_gpu;
  if (count < wanted && (count != 1 || ranks_per_gpu > 1))
    throw Error(ErrorCode::runtime_failure, fmt::format("{} ranks, {} to a GPU, need {} GPUs, and this process sees {}",
                                                        world.size(), ranks_per_gpu, wanted, count));
  const int device = count >= wanted ? world.rank() / ranks_per_gpu : 0;
  const Seat own = seat_of(device);
  std::vector<Seat> seats(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, seats.data(), sizeof own);
  if (ranks_per_gpu == 1) expect_own_gpus(seats);
  IMBREX_CUDA_TRY(cudaSetDevice(device));
  IMBREX_CUDA_TRY(cudaFree(nullptr));
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto peer = number_of(seats[static_cast<std::size_t>(rank)]);
    if (peer && *peer != device) expect_access(device, *peer, rank, threads);
  }
  world.barrier();
  return device;
}

Gpu ask_gpu(int device) {
  cudaDeviceProp properties{};
  IMBREX_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  return {properties.name,
          uuid_text(properties.uuid.bytes),
          properties.totalGlobalMem,
          properties.multiProcessorCount,
          properties.major,
          properties.minor,
          device_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0,
          device_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0};
}

const Gpu& gpu_of(int device) {
  static std::mutex lock;
  static std::map<int, Gpu> known;
  const std::lock_guard guard(lock);
  const auto found = known.find(device);
  return found != known.end() ? found->second : known.emplace(device, ask_gpu(device)).first->second;
}

}  // namespace imbrex::runtime
