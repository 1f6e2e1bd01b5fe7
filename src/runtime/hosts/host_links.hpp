// One rank's connections to the ranks of other hosts, and what it knows of those.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/control.hpp"
#include "runtime/hosts/meeting.hpp"

namespace imbrex::runtime {

/// Tells each rank of another host what this one does, and notes what they do. A thread reads, keeps the connections
/// alive and records ranks that are lost: a connection that ends before its rank has left, and one of which nothing is
/// heard for most of the wait limit.
class HostLinks final : public FarRanks {
 public:
  /// `rank`: this one. `limit`: the world's wait limit.
  HostLinks(Acquaintance acquaintance, int rank, double limit);
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;
  ~HostLinks() override;

  const Roster& roster() const { return roster_; }

  /// Begins. `control`: this rank's, which knows of this object. `heap`: of this host, of which each rank has a stride.
  void start(const Control& control, const HeapHandle& heap);
  /// Tells all how this rank leaves, and ends. What the network still holds has a second.
  void leave(RankState state) noexcept;

  bool is_far(int rank) const override { return host_of(rank) != host_of(rank_); }
  ControlBlock& block() const override { return *block_; }
  std::string host_name(int rank) const override { return roster_.host_name(rank); }
  void enter(std::uint64_t number, std::uint32_t gathered, const std::byte* bytes) noexcept override;
  void refused(std::uint64_t number, std::uint64_t calls, std::string_view reason) noexcept override;
  void failed() noexcept override { wake(); }

  /// Stores 8 bytes into a far rank's part of the heap, behind the words sent there before. Any thread.
  void put_word(int rank, std::uint64_t offset, std::uint64_t value) noexcept;
  /// Where ranks of other hosts reach this one, in digits.
  const std::string& own_address() const { return own_address_; }

 private:
  struct Link {
    Connection connection;
    bool open = false;
    bool heard = false;
    long silent = 0;  // ticks in which nothing came
  };

  int host_of(int rank) const { return roster_.ranks[static_cast<std::size_t>(rank)].host; }
  void wake() noexcept;
  void run();
  void read(int rank);
  bool take(int rank, const Frame& frame);
  bool take_entry(int rank, const Frame& frame);
  bool take_word(const Frame& frame);
  void lose(int rank, const std::string& why);
  void tick();
  void tell_failure();
  void send_all(FrameKind kind, std::string_view payload, std::string_view more = {}) noexcept;

  Roster roster_;
  int rank_;
  double limit_, interval_;              // seconds
  std::vector<Link> links_;              // by rank
  std::unique_ptr<ControlBlock> block_;  // what far ranks have said of themselves; only the thread writes it
  std::unique_ptr<Control> control_;
  HeapHandle heap_;
  std::string own_address_;
  FileDescriptor bell_;  // eventfd: readable once the thread has something to do
  std::mutex mutex_;     // sending
  bool failure_told_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace imbrex::runtime
