#include "runtime/kept_ranges.hpp"

namespace imbrex::runtime {

void KeptRanges::add(std::size_t offset, std::size_t bytes) {
  if (bytes > 0) ranges_.insert_or_assign(offset, Range{bytes, {}});
}

void KeptRanges::drop(std::size_t offset, std::size_t bytes) {
  ranges_.erase(ranges_.lower_bound(offset), ranges_.lower_bound(offset + bytes));
}

void KeptRanges::save(std::size_t offset, std::size_t bytes, const Read& read) {
  for (auto range = ranges_.lower_bound(offset); range != ranges_.end() && range->first < offset + bytes; ++range) {
    range->second.content.resize(range->second.bytes);
    read(range->first, range->second.content);
  }
}

void KeptRanges::bring_back(std::size_t offset, std::size_t bytes, const Write& write) const {
  for (auto range = ranges_.lower_bound(offset); range != ranges_.end() && range->first < offset + bytes; ++range)
    if (!range->second.content.empty()) write(range->first, range->second.content);
}

void KeptRanges::forget() {
  for (auto& [offset, range] : ranges_) range.content = {};
}

}  // namespace imbrex::runtime
