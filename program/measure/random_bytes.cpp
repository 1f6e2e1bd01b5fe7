#include "program/measure/random_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/convert.hpp"

namespace imbrex::program {

std::vector<std::byte> random_bytes(std::int64_t count, Type type, std::uint64_t seed) {
  std::vector<float> values(std::min<std::size_t>(static_cast<std::size_t>(count), 1 << 20));
  for (float& v : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31f;
  }
  const std::size_t element = size_of(type), block = values.size() * element;
  std::vector<std::byte> stretch(block), bytes(static_cast<std::size_t>(count) * element);
  base::from_float(type, values.data(), stretch.data(), std::ssize(values));
  for (std::size_t at = 0; at < bytes.size(); at += block)
    std::memcpy(bytes.data() + at, stretch.data(), std::min(block, bytes.size() - at));
  return bytes;
}

}  // namespace imbrex::program
