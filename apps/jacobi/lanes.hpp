// Streams of a GPU, and graphs of what is queued on them. Errors of CUDA are Error(runtime_failure), naming the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "imbrex/options.hpp"

namespace imbrex::apps::jacobi {

/// Dynamic shared memory that a block of the GPU can have.
std::uint32_t shared_bytes_of(int gpu);

/// A stream of the GPU, and an event on it.
class Lane {
 public:
  explicit Lane(int gpu);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  CudaStream stream() const { return stream_; }
  /// Between this GPU's memory and what is mapped into it.
  void copy(void* to, const void* from, std::size_t bytes) const;
  /// The event: what was queued so far.
  void mark() const;
  /// What is queued from now on follows the other lane's last mark.
  void follow(const Lane& other) const;

 private:
  CudaStream stream_ = nullptr;
  void* event_ = nullptr;
};

/// What `queue` queues on the lane, to be done any number of times.
class Graph {
 public:
  Graph(const Lane& lane, const std::function<void()>& queue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() const;

 private:
  const Lane& lane_;
  void* graph_ = nullptr;
};

}  // namespace imbrex::apps::jacobi
