#include "execute/cpu/heap_place.hpp"

#include <exception>

#include "runtime/host_world.hpp"

namespace imbrex::execute {

HeapPlace::HeapPlace(World& world) : world_(world), exceptions_(std::uncaught_exceptions()) {}

HeapPlace::~HeapPlace() {
  if (open_) {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      world_.barrier();
    } catch (const std::exception&) {  // the world failed, and no peer reads any more
    }
  }
  for (const std::size_t offset : offsets_) world_.heap().release(offset);
}

std::size_t HeapPlace::allocate(std::size_t bytes) {
  offsets_.reserve(offsets_.size() + 1);
  offsets_.push_back(open_ ? runtime::host_world(world_).host_heap().allocate_unused(bytes)
                           : world_.heap().allocate(bytes));
  return offsets_.back();
}

}  // namespace imbrex::execute
