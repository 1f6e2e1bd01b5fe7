// A rank's parts of the symmetric heap, for as long as its peers may reach them.
#pragma once

#include <cstddef>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::execute {

/// Ranks make it, allocate and drop it in the same order.
class HeapPlace {
 public:
  explicit HeapPlace(World& world);

  /// Collective once it is open: peers may still read this rank's part, so all meet before they give it back. Behind an
  /// exception it is kept: this rank is the first to know that it ends, and peers may use its memory until they do.
  ~HeapPlace();
  HeapPlace(const HeapPlace&) = delete;
  HeapPlace& operator=(const HeapPlace&) = delete;

  /// As SymmetricHeap::allocate. Once it is open, peers may reach what it gives before any barrier: so that is memory
  /// that no rank may still be giving back.
  std::size_t allocate(std::size_t bytes);

  /// The ranks have agreed: from here on peers reach this rank's memory.
  void open() { open_ = true; }

 private:
  World& world_;
  int exceptions_;  // in flight when it was made
  bool open_ = false;
  std::vector<std::size_t> offsets_;
};

}  // namespace imbrex::execute
