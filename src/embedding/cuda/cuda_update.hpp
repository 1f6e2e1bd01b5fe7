// Updates on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/raw_memory.hpp"
#include "embedding/cuda/update_args.hpp"
#include "embedding/update.hpp"

namespace imbrex::embedding {

/// One call at a time, on streams that order them. Made and used on one GPU, the current one; all memory is the GPU's
/// except arrays that are named as the host's.
class CudaUpdate {
 public:
  /// `tables.tables` and `step.states` are the host's. Takes memory for calls of up to `most_indices`: 28 bytes each
  /// and, a tile of 128, two rows of the widest table in fp32; of batches up to `batch`. Throws Error(invalid_input)
  /// naming value and rule.
  CudaUpdate(const Tables& tables, const Step& step, std::int64_t batch, std::int64_t most_indices);

  /// How many indices a launch may have.
  std::int64_t most_indices() const { return room_->most_indices; }

  /// Takes memory for launches of so many, which are more. That of earlier launches, which are over, is given back
  /// unless a graph holds it.
  void grow(std::int64_t most_indices);

  /// A graph holds the memory of the launches from here on until `grow`: it lives as long as this object.
  void hold() { room_->held = true; }

  /// From here on in the stream tables and states lie there: as many, of as many rows, the same dims and columns. Takes
  /// no memory and waits for nothing.
  void bind(const Tables& tables, float* const* states, cudaStream_t stream);

  /// Queues an update, which gives the CPU's bits. `gradients.parts` is the host's. `rate`: of this step. Indices and
  /// offsets of any value are safe; what does not fit is found by `findings`, as a lookup's.
  void launch(const Bags& bags, const Output& gradients, float rate, cudaStream_t stream);

  /// Waits for the stream. What launches since the last call found: throws as check_bags does, and gives the number of
  /// ignored indices. Their indices and offsets may be gone. Rows that fit have been changed.
  std::int64_t findings(cudaStream_t stream, Misfits misfits);

 private:
  // What grows with the indices of a launch.
  struct Room {
    std::int64_t most_indices;
    std::size_t sort_bytes = 0;
    cuda::RawMemory keys, positions, sorted_keys, sorted_positions, bags, partial, sort;
    bool held = false;
  };
  std::unique_ptr<Room> room_for(std::int64_t most_indices) const;
  std::vector<UpdateTable> tables_on_gpu(float* const* states) const;

  std::vector<Table> tables_;
  TableRows type_;
  Step step_;
  std::int64_t batch_;
  int bits_ = 0;  // of a key
  std::uint32_t width_ = 0;
  cuda::RawMemory on_gpu_, findings_, shares_;
  std::unique_ptr<Room> room_;
  std::vector<std::unique_ptr<Room>> held_;  // that graphs hold
};

}  // namespace imbrex::embedding
