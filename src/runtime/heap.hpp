// The symmetric heap in host memory, and the allocator that every symmetric heap shares.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// A heap would have to grow above its limit. The same on every rank.
class HeapLimit final : public Error {
 public:
  explicit HeapLimit(const std::string& message) : Error(ErrorCode::invalid_input, message) {}
};

/// First fit over the offsets 0..capacity, and ranges added later. Its answers depend only on the calls before, so
/// ranks that make the same calls get the same offsets without talking.
class OffsetAllocator {
 public:
  static constexpr std::size_t alignment = 256;

  explicit OffsetAllocator(std::size_t capacity);

  /// More to give: `bytes` from `offset` on, which is beyond all that it has and starts at a multiple of the alignment.
  /// No allocation spans two ranges unless they touch.
  void add(std::size_t offset, std::size_t bytes);

  /// Takes the range away again, which `add` gave and of which nothing is taken. Returns whether that is so.
  bool remove(std::size_t offset, std::size_t bytes);

  /// Nothing where no free range is long enough. Zero bytes take one unit, so that offsets are unique.
  std::optional<std::size_t> allocate(std::size_t bytes);

  /// Allocates beyond all that was ever taken.
  std::optional<std::size_t> allocate_unused(std::size_t bytes);

  /// Bytes that were taken at `offset`; nothing if none were.
  std::optional<std::size_t> release(std::size_t offset);

  std::size_t free_bytes() const;
  std::size_t largest_free() const;
  /// Bytes beyond all that was ever taken.
  std::size_t unused_bytes() const;

 private:
  // From a free range's `skipped` byte on, where that many fit from there.
  std::optional<std::size_t> take(std::map<std::size_t, std::size_t>::iterator range, std::size_t skipped,
                                  std::size_t bytes);

  std::map<std::size_t, std::size_t> free_;  // offset -> bytes; neighbours are always merged
  std::map<std::size_t, std::size_t> live_;
  std::size_t used_ = 0;  // the end of all that was ever taken
};

/// Symmetric heap in memory that the caller keeps mapped: rank r's part begins at base + r * stride.
class HostHeap final : public SymmetricHeap {
 public:
  HostHeap(HeapHandle handle, std::size_t bytes) : handle_(handle), allocator_(bytes) {}

  std::size_t allocate(std::size_t bytes) override;
  /// As allocate, and needs no barrier before peers reach it, whatever was released before: it was never used.
  std::size_t allocate_unused(std::size_t bytes);
  void release(std::size_t offset) noexcept override;
  HeapHandle handle() const override { return handle_; }

 private:
  HeapHandle handle_;
  OffsetAllocator allocator_;
};

}  // namespace imbrex::runtime
