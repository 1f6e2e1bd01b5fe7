// Tensor maps kept from one launch to the next: to encode one takes the driver a good part of a microsecond, and a
// launch needs up to five. Operands that come again, in whatever order, find theirs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace imbrex::cuda {

/// Everything that a map is made from. Nothing else is in it: memory that was freed and taken again has the same map.
struct TensorMapKey {
  const void* kernel;   ///< whose boxes it cuts
  bool operand_b;       ///< else A
  const void* address;  ///< of the first element
  std::int64_t rows, cols, pitch;

  bool operator==(const TensorMapKey&) const = default;
};

/// One execution's. Not for several threads at once. `Map`: CUtensorMap, which this header does without.
template <typename Map>
class KeptMaps {
 public:
  /// The map that was made for `key`, or else `make()`, which is kept.
  template <typename Make>
  Map get(const TensorMapKey& key, Make&& make) {
    if (const auto found = maps_.find(key); found != maps_.end()) return found->second;
    // Operands that never come again must not pile up.
    if (maps_.size() == most) maps_.clear();
    return maps_.emplace(key, make()).first->second;
  }

  std::size_t size() const { return maps_.size(); }

  static constexpr std::size_t most = 1024;

 private:
  struct Hash {
    std::size_t operator()(const TensorMapKey& key) const noexcept {
      // An execution has few shapes: addresses tell most keys apart, by their middle bits.
      const auto shape = static_cast<std::uint64_t>(key.rows * 31 + key.cols * 2 + (key.operand_b ? 1 : 0));
      return static_cast<std::size_t>((std::bit_cast<std::uintptr_t>(key.address) / 256 + shape) * 0x9e3779b97f4a7c15u);
    }
  };
  std::unordered_map<TensorMapKey, Map, Hash> maps_;
};

}  // namespace imbrex::cuda
