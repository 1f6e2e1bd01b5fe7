// PEs of one host that reach each other by rings only, over wires that are kind or not.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "shmem/ring/rings.hpp"

namespace imbrex::shmem::ring::test {

/// What is late and out of order, by seed: nothing is begun at once, no two transfers keep their order, and what is
/// done is told of later.
class UnkindWire final : public Wire {
 public:
  UnkindWire(std::unique_ptr<Wire> wire, std::uint64_t seed) : wire_(std::move(wire)), random_(seed) {}

  bool begin(const WireTransfer& transfer) override {
    if (waiting_.size() >= 64 || random_() % 8 == 0) return false;
    waiting_.push_back(transfer);
    return true;
  }

  std::size_t poll(std::span<std::uint64_t> tokens) override {
    while (!waiting_.empty() && random_() % 4 != 0) {
      const std::size_t which = random_() % waiting_.size();
      wire_->begin(waiting_[which]);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    std::uint64_t token = 0;
    while (wire_->poll({&token, 1}) != 0) done_.push_back(token);
    std::size_t count = 0;
    while (count < tokens.size() && !done_.empty() && random_() % 4 != 0) {
      const std::size_t which = random_() % done_.size();
      tokens[count++] = done_[which];
      done_.erase(done_.begin() + static_cast<std::ptrdiff_t>(which));
    }
    return count;
  }

  bool keeps_order() const override { return false; }

 private:
  std::unique_ptr<Wire> wire_;
  std::mt19937_64 random_;
  std::vector<WireTransfer> waiting_;
  std::vector<std::uint64_t> done_;
};

/// A wire that does one thing wrong, behind so many transfers that it could be done wrong to.
class FaultyWire final : public Wire {
 public:
  enum class Fault { loses_a_put, repeats_an_addition };

  FaultyWire(std::unique_ptr<Wire> wire, Fault fault, std::uint64_t behind)
      : wire_(std::move(wire)), fault_(fault), left_(behind) {}

  bool begin(const WireTransfer& transfer) override {
    // Several words, because others may be lost unseen: a get may bring what was there before.
    const bool concerned = fault_ == Fault::loses_a_put ? transfer.verb == Verb::put && transfer.bytes > 8
                                                        : transfer.verb == Verb::fetch_add;
    if (!concerned || done_ || left_-- != 0) return wire_->begin(transfer);
    done_ = true;
    if (fault_ == Fault::loses_a_put) {
      lost_ = transfer.token;
    } else {
      repeated_ = transfer.token;
      while (!wire_->begin(transfer)) collect();
      while (!wire_->begin(transfer)) collect();
    }
    return true;
  }

  std::size_t poll(std::span<std::uint64_t> tokens) override {
    collect();
    std::size_t count = 0;
    for (; count < tokens.size() && !collected_.empty(); collected_.pop_front()) tokens[count++] = collected_.front();
    return count;
  }

  bool keeps_order() const override { return wire_->keeps_order(); }

 private:
  void collect() {
    if (lost_) collected_.push_back(*std::exchange(lost_, std::nullopt));
    for (std::uint64_t token = 0; wire_->poll({&token, 1}) != 0;)
      if (repeated_ == token)
        repeated_.reset();  // that of its second time counts
      else
        collected_.push_back(token);
  }

  std::unique_ptr<Wire> wire_;
  Fault fault_;
  std::uint64_t left_;
  bool done_ = false;
  std::optional<std::uint64_t> lost_, repeated_;
  std::deque<std::uint64_t> collected_;
};

enum class Kindness { kind, unkind };

struct Site {
  World& world;
  Heap& heap;
  Rings& rings;
};

/// One PE's part: makes the heap and the rings, and runs `body`.
inline int at_site(World& world, const HeapOptions& heap_options, const RingTrial& ring_options, Kindness kindness,
                   const std::function<int(Site&)>& body,
                   const std::function<std::unique_ptr<Wire>(std::unique_ptr<Wire>)>& wrap = {}) {
  Heap heap(world, heap_options);
  std::unique_ptr<Wire> wire = mapped_wire(heap);
  if (wrap) wire = wrap(std::move(wire));
  if (kindness == Kindness::unkind)
    wire = std::make_unique<UnkindWire>(std::move(wire),
                                        ring_options.seed * 64 + static_cast<std::uint64_t>(world.rank()));
  TrialRings rings(heap, ring_options, std::move(wire));
  Site site{world, heap, rings};
  const int code = body(site);
  world.barrier();  // peers may still put
  return code;
}

}  // namespace imbrex::shmem::ring::test
