// Any bytes are a .npy header whose sizes add up, or an Error of invalid input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imbrex/error.hpp"
#include "imbrex/npy.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // The file's length, apart from what is in hand, so that short inputs reach the comparison of sizes.
  for (const std::uint64_t file_bytes : {std::uint64_t{size}, std::uint64_t{size} + 24, std::uint64_t{1} << 42}) {
    try {
      const auto header = imbrex::parse_npy_header(bytes.substr(0, imbrex::npy_header_limit), file_bytes, "fuzz.npy");
      const auto elements = static_cast<std::uint64_t>(header.rows) * static_cast<std::uint64_t>(header.cols);
      if (header.rows < 0 || header.cols < 0 ||
          header.data_offset + elements * imbrex::size_of(header.type) != file_bytes)
        std::abort();
    } catch (const imbrex::Error& error) {
      if (error.code() != imbrex::ErrorCode::invalid_input) std::abort();
    }
  }
  return 0;
}
