#include "runtime/cuda/device.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/fixed_text.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/seats.hpp"
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

Seat seat_of(int device) {
  Seat seat;
  base::put_text(gpu_of(device).uuid, seat.uuid);
  base::put_text(gpu_of(device).name, seat.name);
  seat.visible = device_count();
  seat.sms = gpu_of(device).sms;
  return seat;
}

// This process's number of a GPU; nothing where it does not see it.
std::optional<int> number_of(const Seat& seat) {
  for (int i = 0, count = device_count(); i < count; ++i)
    if (gpu_of(i).uuid == seat.uuid) return i;
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

struct Shared {
  std::mutex lock;
  std::set<int> devices;
};

Shared& shared() {
  static Shared all;
  return all;
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

int select_device(World& world, int given) {
  const int ranks_per_gpu = ranks_per_gpu_of(world, given);
  const bool threads = one_process(world);
  const int device = own_gpu(world.rank(), world.size(), ranks_per_gpu, device_count(), threads, world.options().gpu);
  const Seat own = seat_of(device);
  std::vector<Seat> seats(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, seats.data(), sizeof own);
  expect_seats(seats, ranks_per_gpu);
  const int for_others = world.options().sms_for_others;
  expect_sms(seats, ranks_per_gpu, for_others);
  const auto has_this = [&](const Seat& seat) { return std::string_view(seat.uuid) == own.uuid; };
  if (for_others > 0 || std::count_if(seats.begin(), seats.end(), has_this) > 1) {
    const std::lock_guard guard(shared().lock);
    shared().devices.insert(device);
  }
  IMBREX_CUDA_TRY(cudaSetDevice(device));
  IMBREX_CUDA_TRY(cudaFree(nullptr));
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto peer = number_of(seats[static_cast<std::size_t>(rank)]);
    if (peer && *peer != device) expect_access(device, *peer, rank, threads);
  }
  world.barrier();
  return device;
}

bool is_shared(int device) {
  const std::lock_guard guard(shared().lock);
  return shared().devices.count(device) != 0;
}

// NOTE: what MPS gives a process, the device's attribute says too, unless
// CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING is set: then the context alone does. Contexts that MPS
// does not limit have no affinity.
int sms_of(int device) {
  static std::mutex lock;
  static std::map<int, int> known;
  const int all = gpu_of(device).sms;
  const std::lock_guard guard(lock);
  const auto [place, fresh] = known.try_emplace(device, all);
  if (!fresh) return place->second;
  CUexecAffinityParam given{};
  if (driver().context_affinity != nullptr &&
      driver().context_affinity(&given, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS &&
      given.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT && given.param.smCount.val > 0)
    place->second = std::min(all, static_cast<int>(std::min(given.param.smCount.val, 1u << 16)));
  return place->second;
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
