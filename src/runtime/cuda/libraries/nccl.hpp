// NCCL, found at run time, and a communicator whose calls end when the world has failed.
#pragma once

#include <nccl.h>

#include <memory>
#include <vector>

#include "imbrex/types.hpp"
#include "imbrex/world.hpp"
#include "runtime/libraries/shared_library.hpp"

namespace imbrex::runtime {

struct Nccl {
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) init_rank = nullptr;
  /// Since NCCL 2.14, with most SMs since 2.17; null before.
  ncclResult_t (*init_rank_config)(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  /// Since NCCL 2.28; null before.
  ncclResult_t (*all_to_all)(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream) = nullptr;
};

/// Throws Error(runtime_failure) where libnccl.so.2 cannot be loaded, and before it is loaded Error(invalid_input) as
/// refusal_of_nccl says.
const Nccl& nccl();

class Communicator {
 public:
  /// Joins these `ranks`, ascending. Collective over the whole world; the ranks' devices are selected. A rank that
  /// is none of them has an object that it does not use. Throws Error(runtime_failure) where NCCL is missing, and,
  /// failing the world, where it does not start; ends when another rank fails. `most_sms`: that a collective may take;
  /// 0: as many as NCCL likes. Throws Error(invalid_input) where this NCCL cannot be told.
  Communicator(World& world, int device, const std::vector<int>& ranks, int most_sms = 0);
  /// The streams that it worked on are idle, and graphs that captured its work are destroyed: NCCL waits for those.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Ranks that it joins.
  std::size_t size() const { return ranks_; }

  /// Queue one collective; counts are elements of one rank's part, as in NCCL.
  void all_gather(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream);
  void reduce_scatter(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream);
  void all_reduce(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream);
  void all_to_all(const void* from, void* to, std::size_t count, Type type, cudaStream_t stream);
  /// `from` goes to the rank at place `target` of those that it joins, `to` comes from the one at `source`; neither is
  /// this one.
  void send_receive(const void* from, int target, void* to, int source, std::size_t count, Type type,
                    cudaStream_t stream);

  /// Throws Error(runtime_failure) if a collective failed since.
  void check() const;

  /// Ends what is under way on this rank, in all of them at once. No collective may follow.
  static void abort(const std::vector<Communicator*>& communicators) noexcept;

 private:
  ncclComm_t comm() const;
  void check(ncclResult_t result, const char* call) const;

  World& world_;
  int device_;
  std::size_t ranks_;
  ncclComm_t comm_ = nullptr;  // null once aborted
};

}  // namespace imbrex::runtime
