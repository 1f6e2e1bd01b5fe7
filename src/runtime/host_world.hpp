// The world of ranks that share memory: processes of one host, or threads of one process; and, where there are more
// hosts, of the ranks there.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/world.hpp"
#include "runtime/calls.hpp"
#include "runtime/control.hpp"
#include "runtime/heap.hpp"
#include "runtime/hosts/host_links.hpp"
#include "runtime/memory.hpp"
#include "runtime/watcher.hpp"

namespace imbrex::runtime {

/// The two memory files of a world. Made by one process, mapped by all.
struct Segment {
  FileDescriptor control_file, heap_file;
  SharedMemory control, heap;

  static std::shared_ptr<Segment> create(int size, const WorldOptions& options);
  /// Maps files that a peer made. Throws Error(runtime_failure) if they are not what create(size, options) makes.
  static std::shared_ptr<Segment> attach(FileDescriptor control_file, FileDescriptor heap_file, int size,
                                         const WorldOptions& options);

  ControlBlock& block() const { return *reinterpret_cast<ControlBlock*>(control.data()); }
};

enum class Kind { threads, processes };

class HostWorld final : public World {
 public:
  /// `kind` processes: all pids are in the control block; the end of a peer process is noticed from here on. `lines`:
  /// see Watcher. `links`: to the ranks on other hosts, where there are any.
  HostWorld(std::shared_ptr<Segment> segment, int rank, const WorldOptions& options, Kind kind,
            std::vector<FileDescriptor> lines = {}, std::unique_ptr<HostLinks> links = nullptr);
  ~HostWorld() override;

  int rank() const override { return rank_; }
  int size() const override { return control_.size(); }
  int hosts() const override { return links_ ? links_->roster().hosts() : 1; }
  int host_of(int rank) const override;
  std::string host_name(int host) const override;
  const WorldOptions& options() const override { return options_; }
  SymmetricHeap& heap() override { return heap_; }
  void barrier() override {
    expect_own();
    control_.barrier(limits_of(options_));
  }
  void all_gather(const void* mine, void* all, std::size_t bytes) override {
    expect_own();
    control_.all_gather(mine, all, bytes, limits_of(options_));
  }
  void fail(const std::string& message) noexcept override;
  void throw_if_failed() const override { control_.throw_if_failed(); }

  HostHeap& host_heap() { return heap_; }
  Control& control() { return control_; }
  Calls& calls() { return calls_; }
  std::shared_ptr<void>& attachment() { return attachment_; }
  std::shared_ptr<void>& stream_order() { return stream_order_; }
  std::shared_ptr<void>& collectives() { return collectives_; }
  HostLinks* links() { return links_.get(); }
  /// Prints that those ranks have not come to `what`: see tell_late.
  void tell_late(const std::vector<int>& late, std::string_view what) noexcept;

 private:
  /// A child that the program forked has a copy of this object, but it is no rank.
  bool is_own() const noexcept;
  /// Throws Error(invalid_input) in such a child, which would be counted as its parent.
  void expect_own() const;

  std::shared_ptr<Segment> segment_;
  int rank_;
  int pid_;
  int exceptions_;  // in flight when the world was made
  WorldOptions options_;
  std::unique_ptr<HostLinks> links_;  // before what uses it
  Control control_;
  Calls calls_;
  std::mutex told_lock_;
  std::vector<std::optional<double>> told_;  // of each rank that was late, when that was told last
  HostHeap heap_;
  std::unique_ptr<Watcher> watcher_;
  std::shared_ptr<void> stream_order_, collectives_, attachment_;
};

/// Every world is one.
HostWorld& host_world(World& world);

/// Stores 8 bytes at an offset, a multiple of 8, of the heap of a rank on another host, behind what was stored there so
/// before. Nothing is heard of a rank that has gone.
void put_word(World& world, int rank, std::size_t offset, std::uint64_t value);

/// Where ranks of other hosts reach this one, in digits; where there are none, the address of this host to itself.
std::string own_address(World& world);

/// With the limits that hold where none are set. Throws Error(invalid_input) naming the value and the rule.
WorldOptions validated(int size, WorldOptions options);

/// Whether a rank has failed or was lost; throw_if_failed says which.
bool has_failed(World& world) noexcept;

/// This rank has come to `count` more of a kind that ranks count.
void enter(World& world, Counted counted, std::uint32_t count = 1);
/// The ranks that have not come to what this one came to last.
std::vector<int> late_ranks(World& world, Counted counted);
/// Prints that those ranks have not come to `what`, and how long this one waits for them; but of none twice that is
/// late once, which several waits may notice. Any thread.
void tell_late(World& world, const std::vector<int>& late, std::string_view what) noexcept;

/// Runs `body` as `world`'s rank: an exception fails the world, is printed, and becomes an exit code.
int run_rank(World& world, const std::function<int(World&)>& body) noexcept;

/// The worse of two exit codes: 3, then codes that are not Imbrex's, then 2, 1, 0.
int worse(int a, int b);

}  // namespace imbrex::runtime
