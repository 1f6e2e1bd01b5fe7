// Ranges of memory whose content outlives the memory: it waits in memory of the host until there is memory again.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace imbrex::runtime {

class KeptRanges {
 public:
  using Read = std::function<void(std::size_t offset, std::span<std::byte> to)>;
  using Write = std::function<void(std::size_t offset, std::span<const std::byte> from)>;

  /// `bytes` from `offset` on, which no other range has.
  void add(std::size_t offset, std::size_t bytes);

  /// Ranges that begin in these bytes are kept no more.
  void drop(std::size_t offset, std::size_t bytes);

  /// Reads the ranges that begin in these bytes.
  void save(std::size_t offset, std::size_t bytes, const Read& read);

  /// Writes what was saved of the ranges that begin in these bytes. A range that was added since is left as it is.
  void bring_back(std::size_t offset, std::size_t bytes, const Write& write) const;

  /// What was saved is written everywhere.
  void forget();

 private:
  struct Range {
    std::size_t bytes = 0;
    std::vector<std::byte> content;  // empty: not saved
  };

  std::map<std::size_t, Range> ranges_;  // by offset
};

}  // namespace imbrex::runtime
