// Fault records (imbrex/device/protocol.hpp): pinned memory is slow to get, so it is got once for many.
#pragma once

#include <memory>
#include <vector>

#include "imbrex/device/protocol.hpp"

namespace imbrex::runtime {

class FaultPool {
 public:
  FaultPool() = default;
  FaultPool(const FaultPool&) = delete;
  FaultPool& operator=(const FaultPool&) = delete;
  ~FaultPool();

  struct Return {
    FaultPool* pool = nullptr;
    void operator()(device::Fault* fault) const { pool->free_.push_back(fault); }
  };
  using Owner = std::unique_ptr<device::Fault, Return>;

  /// A record that is clear. It goes back before the pool ends.
  Owner take();

  /// Where kernels on the current device find a record.
  static device::Fault* on_device(device::Fault* fault);

 private:
  std::vector<void*> blocks_;
  std::vector<device::Fault*> free_;
};

/// Whether a wait of the rank passed its limit, or was ended.
inline bool is_faulty(const device::Fault& fault) {
  return fault.state != device::Fault::clear || fault.ended_early != 0;
}

/// The late rank that a kernel tells of, or -1. It is told of once.
inline int take_late_rank(device::Fault& fault) {
  if (fault.told == 0) return -1;
  const std::uint32_t late_and_one = fault.late_and_one;
  fault.late_and_one = 0;
  fault.told = 0;
  return static_cast<int>(late_and_one) - 1;
}

}  // namespace imbrex::runtime
