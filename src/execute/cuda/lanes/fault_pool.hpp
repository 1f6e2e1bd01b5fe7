// Fault records for the executions of one executor: pinned memory is slow to get, so it is got once for many.
#pragma once

#include <memory>
#include <vector>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

class FaultPool {
 public:
  FaultPool() = default;
  FaultPool(const FaultPool&) = delete;
  FaultPool& operator=(const FaultPool&) = delete;
  ~FaultPool();

  struct Return {
    FaultPool* pool = nullptr;
    void operator()(FaultRecord* record) const { pool->free_.push_back(record); }
  };
  using Owner = std::unique_ptr<FaultRecord, Return>;

  /// A record that is clear. It goes back before the pool ends.
  Owner take();

 private:
  std::vector<void*> blocks_;
  std::vector<FaultRecord*> free_;
};

}  // namespace imbrex::cuda
