// A world: the ranks that work together, their symmetric heap, and how they learn of each other's failure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace imbrex {

struct WorldOptions {
  std::size_t heap_bytes = std::size_t{1} << 30;  ///< symmetric heap per rank; pages are taken on first touch
  /// Seconds that a wait may last once all ranks have come to it; 0: IMBREX_WAIT_LIMIT, or 30.
  double wait_limit = 0;
  /// Seconds that ranks wait for one that has not come, since its host compiles, or writes a checkpoint; 0: the wait
  /// limit where that is set, here or by IMBREX_WAIT_LIMIT, else 600. A wait for a late rank that passes the wait limit
  /// says so once, on standard error.
  double entry_limit = 0;
  /// This rank's GPU, as CUDA numbers those that this process sees; ranks may differ. Not set: by the rank
  /// (docs/launching.md). What works on GPUs looks at it, with the world's first operator or collective there.
  std::optional<int> gpu = {};
  /// Ranks that share each GPU, each with its part of the SMs; the same on every rank. For operators, where
  /// CudaOptions says nothing else, and for collectives.
  int ranks_per_gpu = 1;
  /// SMs of each GPU that every kernel of operators and collectives that waits for peers leaves to kernels of others,
  /// such as NCCL's, so that both run concurrently; the same on every rank (docs/operators.md). Its GPU must have more.
  int sms_for_others = 0;
};

/// Everything needed to address the parts of the symmetric heap of the ranks on the own host; trivially copyable.
/// The byte at `offset` on rank r is base + r * stride + offset. Where r is on another host, nothing may touch it.
struct HeapHandle {
  std::byte* base = nullptr;
  std::size_t stride = 0;
  int rank = 0;  ///< own rank

  std::byte* at(int peer, std::size_t offset) const { return base + static_cast<std::size_t>(peer) * stride + offset; }
};

/// Memory at the same offset on every rank.
class SymmetricHeap {
 public:
  virtual ~SymmetricHeap() = default;

  /// Offset of `bytes` zeroed bytes, aligned to 256. Every rank calls with the same sizes in the same order; needs no
  /// communication: a peer may write to this rank's part before this rank has called. Throws Error(runtime_failure)
  /// naming asked and left bytes when full.
  virtual std::size_t allocate(std::size_t bytes) = 0;

  /// Gives back an allocation and zeroes this rank's part of it; same order on every rank. Never throws. The caller
  /// puts a barrier between the last access of any rank and the release, and another between the release and the first
  /// access of a peer to memory allocated later.
  virtual void release(std::size_t offset) noexcept = 0;

  virtual HeapHandle handle() const = 0;
};

/// Handed by one rank to all others by the caller's own means, to bootstrap a world.
struct UniqueId {
  std::array<char, 128> bytes{};
};

/// One rank's membership. Made collectively. The destructor tells peers that this rank ended well, or, if it runs
/// because an exception leaves the world's scope, that it failed; it does not wait for peers. A process that ends
/// without it is reported as lost. (Where the ranks are on several hosts the destructor may wait up to a second until
/// the network has taken that.) Functions may be called by one thread per rank unless said.
class World {
 public:
  virtual ~World() = default;

  /// From the variables of `imbrex launch`, torchrun, Open MPI, MPICH, Intel MPI, PALS, Flux or Slurm; a world of one
  /// rank where none is set. Throws Error(invalid_input) naming the variable if they contradict each other, and
  /// Error(runtime_failure) if a rank does not arrive within the entry limit, or the ranks do not fit together (two
  /// claim one number, sizes or heap_bytes differ). A process may have several worlds, one after another or at once
  /// (docs/launching.md): all ranks make them in the same order. Where the launcher says that the ranks are on several
  /// hosts, or IMBREX_ADDRESS is set, they meet by TCP, and each host has a part of the heap of its own.
  static std::unique_ptr<World> from_environment(const WorldOptions& options = {});

  /// True where from_environment would find a launcher's variables. Throws as it does where they contradict each other.
  static bool launched();

  /// `address`: where ranks of other hosts reach the host of rank 0, such as "node1" or "10.0.0.1:29500"; empty: it is
  /// IMBREX_ADDRESS, and where that is not set, either, all ranks are on one host. Throws Error(invalid_input) where it
  /// is no address, or longer than 80 bytes.
  static UniqueId make_unique_id(const std::string& address = {});
  /// Joins the world of the ranks that were given one id, which may be threads of one process.
  static std::unique_ptr<World> connect(const UniqueId& id, int rank, int size, const WorldOptions& options = {});

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Hosts over which the ranks are spread, and the one that has a rank, from 0 to hosts() - 1 in the order of their
  /// first ranks. Ranks with one host share memory: heap().handle() addresses them, and no others.
  virtual int hosts() const = 0;
  virtual int host_of(int rank) const = 0;
  /// How messages name a host: IMBREX_HOST there, or its own name. Two hosts may have one name.
  virtual std::string host_name(int host) const = 0;

  /// Limits that were 0 are what holds.
  virtual const WorldOptions& options() const = 0;
  virtual SymmetricHeap& heap() = 0;

  /// Returns when every rank has called it. Bounded by the entry limit; ends at once if a rank has failed or left.
  virtual void barrier() = 0;

  /// all[r * bytes ...] receives rank r's `mine`. For set-up data of up to 4 KiB a rank. Bounded like barrier(). Throws
  /// Error(invalid_input) on every rank if they give different sizes.
  virtual void all_gather(const void* mine, void* all, std::size_t bytes) = 0;

  /// Records that this rank failed with `message`, so that every wait of every rank ends with it (first failure wins).
  /// What they report begins with the rank: "rank 2 failed: message" ("rank 2 (host b) failed: message" where there are
  /// several hosts), or `message` if that begins with "rank 2". Each host keeps the first failure that it learns of.
  /// Any thread may call it.
  virtual void fail(const std::string& message) noexcept = 0;

  /// Throws Error(runtime_failure) with the recorded message once a rank has failed or was lost. Cheap enough to be
  /// called in polling loops (one load). Any thread may call it.
  virtual void throw_if_failed() const = 0;
};

/// Runs `body` in `ranks` new processes (forked: call it before starting threads) or threads, each with its World.
/// A body returns its exit code; an Error becomes its code, any other exception 3; either fails the world and is
/// printed to standard error as "imbrex: rank 2: ...". A process that dies by a signal, exits inside its body or
/// cannot print counts as 3. Returns 0 if all returned 0, else the worst: 3, codes that are not Imbrex's, 2, then 1.
int run_processes(int ranks, const WorldOptions& options, const std::function<int(World&)>& body);
int run_threads(int ranks, const WorldOptions& options, const std::function<int(World&)>& body);

/// Starts `command` as `ranks` processes that find each other by World::from_environment, in a process group of their
/// own. Passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on. When one fails, the others have 5 s to end before they are made
/// to. Returns the exit code as run_processes does. Every rank's environment keeps NCCL from NVLink multicast and from
/// registering what is captured (NCCL_NVLS_ENABLE=0, NCCL_GRAPH_REGISTER=0), except variables that are set already.
/// Where `ranks_per_gpu` ranks, more than one, are to share each GPU, it lets NCCL take the rank for a host of its own,
/// reached over loopback (docs/launching.md). Throws Error(invalid_input) if the command cannot be started.
int launch(int ranks, const std::vector<std::string>& command, int ranks_per_gpu = 1);

}  // namespace imbrex
