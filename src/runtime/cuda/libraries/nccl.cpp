#include "runtime/cuda/libraries/nccl.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/bootstrap/nccl_hosts.hpp"
#include "runtime/cuda/asks_during_captures.hpp"

namespace imbrex::runtime {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;

// NCCL looks at the whole machine when it starts.
constexpr auto start_limit = seconds(60);
// As many blocks as every NCCL that takes a limit knows.
constexpr int most_blocks = 32;
// What the world may take to see that a rank was lost, once NCCL has seen its connection break: the driver frees what a
// process had on its GPU before that process has ended.
constexpr auto naming_limit = seconds(5);
// What a rank may take to abandon a communicator, within which ranks end after another one is lost.
constexpr auto end_limit = seconds(3);

// NCCL's starting and ending calls wait for other ranks, without a limit. They run on a thread of their own, which is
// left behind where they do not return.
std::future<ncclResult_t> on_a_thread(int device, std::packaged_task<ncclResult_t()> call) {
  auto result = call.get_future();
  std::thread([device, call = std::move(call)]() mutable {
    cudaSetDevice(device);
    const cuda::AsksDuringCaptures asks;
    call();
  }).detach();
  return result;
}

ncclDataType_t type_of(Type type) {
  // e4m3 is never summed.
  return type == Type::bf16   ? ncclBfloat16
         : type == Type::fp16 ? ncclFloat16
         : type == Type::e4m3 ? ncclUint8
                              : ncclFloat32;
}

[[noreturn]] void fail(const char* call, ncclResult_t result, ncclComm_t comm) {
  throw Error(ErrorCode::runtime_failure,
              fmt::format("{} failed: {}: {}", call, nccl().get_error_string(result), nccl().get_last_error(comm)));
}

// NCCL sees a broken connection sooner than the world sees that a rank was lost, and cannot say which: the world gets
// time to name it.
[[noreturn]] void fail(const char* call, ncclResult_t result, ncclComm_t comm, const World& world) {
  if (result == ncclRemoteError || result == ncclSystemError) {
    const auto end = std::chrono::steady_clock::now() + naming_limit;
    while (std::chrono::steady_clock::now() < end) {
      world.throw_if_failed();
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  fail(call, result, comm);
}

}  // namespace

const Nccl& nccl() {
  static const Nccl loaded = [] {
    const std::string refusal = refusal_of_nccl(base::environment_now());
    IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
    const SharedLibrary library("libnccl.so.2");
    Nccl f;
    library.find(f.get_error_string, "ncclGetErrorString");
    library.find(f.get_version, "ncclGetVersion");
    library.find(f.get_last_error, "ncclGetLastError");
    library.find(f.get_unique_id, "ncclGetUniqueId");
    library.find(f.init_rank, "ncclCommInitRank");
    library.find_optional(f.init_rank_config, "ncclCommInitRankConfig");
    library.find(f.destroy, "ncclCommDestroy");
    library.find(f.abort, "ncclCommAbort");
    library.find(f.get_async_error, "ncclCommGetAsyncError");
    library.find(f.group_start, "ncclGroupStart");
    library.find(f.group_end, "ncclGroupEnd");
    library.find(f.send, "ncclSend");
    library.find(f.receive, "ncclRecv");
    library.find(f.all_gather, "ncclAllGather");
    library.find(f.reduce_scatter, "ncclReduceScatter");
    library.find(f.all_reduce, "ncclAllReduce");
    library.find_optional(f.all_to_all, "ncclAlltoAll");
    return f;
  }();
  return loaded;
}

Communicator::Communicator(World& world, int device, const std::vector<int>& ranks, int most_sms)
    : world_(world), device_(device), ranks_(ranks.size()) {
  // A library that is missing here is missing for all ranks, and leaves the world as it is.
  const Nccl& n = nccl();
  int version = 0;
  n.get_version(&version);
  IMBREX_EXPECTS(most_sms == 0 || (n.init_rank_config != nullptr && version >= NCCL_VERSION(2, 17, 0)),
                 "collectives on {} SMs at most: NCCL {} does not take a limit, 2.17 and later do", most_sms, version);
  try {
    ncclUniqueId id{};
    if (world.rank() == ranks.front())
      if (const ncclResult_t result = n.get_unique_id(&id); result != ncclSuccess)
        fail("ncclGetUniqueId", result, nullptr);
    std::vector<ncclUniqueId> ids(static_cast<std::size_t>(world.size()));
    world.all_gather(&id, ids.data(), sizeof id);
    const auto own = std::find(ranks.begin(), ranks.end(), world.rank());
    if (own == ranks.end()) return;
    id = ids[static_cast<std::size_t>(ranks.front())];
    const auto made = std::make_shared<ncclComm_t>(nullptr);
    auto started = on_a_thread(
        device, std::packaged_task<ncclResult_t()>([&n, made, id, size = static_cast<int>(ranks.size()),
                                                    place = static_cast<int>(own - ranks.begin()), most_sms] {
          if (most_sms == 0) return n.init_rank(made.get(), size, id, place);
          ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
          config.maxCTAs = std::min(most_sms, most_blocks);
          return n.init_rank_config(made.get(), size, id, place, &config);
        }));
    const auto begin = std::chrono::steady_clock::now();
    while (started.wait_for(milliseconds(1)) != std::future_status::ready) {
      world.throw_if_failed();
      if (std::chrono::steady_clock::now() - begin > start_limit)
        throw Error(ErrorCode::runtime_failure,
                    fmt::format("rank {}: NCCL did not start within {} s", world.rank(), start_limit.count()));
    }
    const ncclResult_t result = started.get();
    comm_ = *made;
    check(result, "ncclCommInitRank");
  } catch (const Error& error) {
    world.fail(error.what());
    abort({this});
    throw;
  }
}

Communicator::~Communicator() {
  if (comm_ == nullptr) return;
  // Behind an exception, this rank is the first to know that it ends; NCCL's orderly end would wait for its peers.
  if (std::uncaught_exceptions() > 0) {
    abort({this});
    return;
  }
  try {
    world_.throw_if_failed();
    on_a_thread(device_, std::packaged_task<ncclResult_t()>([comm = comm_] { return nccl().destroy(comm); }))
        .wait_for(end_limit);
  } catch (const std::exception&) {
    abort({this});
  }
}

// NCCL frees memory when it aborts, which waits for the device, and so for the other communicators' collectives: all
// are aborted at once.
void Communicator::abort(const std::vector<Communicator*>& communicators) noexcept {
  const auto limit = std::chrono::steady_clock::now() + end_limit;
  try {
    std::vector<std::future<ncclResult_t>> ends;
    for (Communicator* c : communicators) {
      const ncclComm_t comm = std::exchange(c->comm_, nullptr);
      if (comm == nullptr) continue;
      ends.push_back(
          on_a_thread(c->device_, std::packaged_task<ncclResult_t()>([comm] { return nccl().abort(comm); })));
    }
    for (const auto& end : ends) end.wait_until(limit);
  } catch (const std::exception&) {  // there is no thread: communicators are left as they are
  }
}

ncclComm_t Communicator::comm() const {
  IMBREX_EXPECTS(comm_ != nullptr, "the executor's NCCL communicator was aborted");
  return comm_;
}

// A communicator that the user's environment made non-blocking says that it is still at work.
void Communicator::check(ncclResult_t result, const char* call) const {
  const auto begin = std::chrono::steady_clock::now();
  while (result == ncclInProgress) {
    world_.throw_if_failed();
    if (std::chrono::steady_clock::now() - begin > start_limit)
      throw Error(ErrorCode::runtime_failure, fmt::format("{} did not end within {} s", call, start_limit.count()));
    if (const ncclResult_t status = nccl().get_async_error(comm_, &result); status != ncclSuccess) result = status;
  }
  if (result != ncclSuccess) fail(call, result, comm_, world_);
}

void Communicator::check() const {
  ncclResult_t result = ncclSuccess;
  if (comm_ == nullptr || nccl().get_async_error(comm_, &result) != ncclSuccess || result == ncclInProgress) return;
  if (result != ncclSuccess) fail("a collective of NCCL", result, comm_, world_);
}

void Communicator::all_gather(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream) {
  check(nccl().all_gather(from, to, count, type_of(type), comm(), stream), "ncclAllGather");
}

void Communicator::reduce_scatter(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream) {
  check(nccl().reduce_scatter(from, to, count, type_of(type), ncclSum, comm(), stream), "ncclReduceScatter");
}

void Communicator::all_reduce(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream) {
  check(nccl().all_reduce(from, to, count, type_of(type), ncclSum, comm(), stream), "ncclAllReduce");
}

void Communicator::all_to_all(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream) {
  const Nccl& n = nccl();
  if (n.all_to_all != nullptr)
    return check(n.all_to_all(from, to, count, type_of(type), comm(), stream), "ncclAlltoAll");
  check(n.group_start(), "ncclGroupStart");
  for (int peer = 0; peer < static_cast<int>(ranks_); ++peer) {
    const std::size_t at = static_cast<std::size_t>(peer) * count * size_of(type);
    check(n.send(static_cast<const std::byte*>(from) + at, count, type_of(type), peer, comm(), stream), "ncclSend");
    check(n.receive(static_cast<std::byte*>(to) + at, count, type_of(type), peer, comm(), stream), "ncclRecv");
  }
  check(n.group_end(), "ncclGroupEnd");
}

void Communicator::send_receive(const void* from, int target, void* to, int source, std::size_t count, Type type,
                                cudaStream_t stream) {
  const Nccl& n = nccl();
  check(n.group_start(), "ncclGroupStart");
  check(n.send(from, count, type_of(type), target, comm(), stream), "ncclSend");
  check(n.receive(to, count, type_of(type), source, comm(), stream), "ncclRecv");
  check(n.group_end(), "ncclGroupEnd");
}

}  // namespace imbrex::runtime
