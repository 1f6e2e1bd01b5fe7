// NumPy's .npy files: matrices in, results out. Files come from anywhere, so every field is checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "imbrex/integers.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

/// What a file must hold.
enum class NpyValues : std::uint8_t {
  elements,  ///< of matrices
  integers,  ///< signed, of 32 or 64 bits
};

/// What the header of a .npy file says.
struct NpyHeader {
  Type type = Type::fp32;  ///< fp32 ('<f4'), fp16 ('<f2') or e4m3 ('|u1', its bits); type_int32 or type_int64
  int dimensions = 2;      ///< 1 or 2
  std::int64_t rows = 0;   ///< of a 1-D array: 1
  std::int64_t cols = 0;
  std::size_t data_offset = 0;  ///< of the first element, from the start of the file

  bool operator==(const NpyHeader&) const = default;
};

/// Bytes of a file that parse_npy_header may need to see, at most.
inline constexpr std::size_t npy_header_limit = 12 + 65536;

/// Reads the header from `start`, the first min(file_bytes, npy_header_limit) bytes of a file of `file_bytes` bytes.
/// Accepts format versions 1.0, 2.0 and 3.0, C order, one or two dimensions, and exactly as much data as the shape
/// says. Elements are float32 and float16 in little-endian order, and uint8 as the bits of e4m3; where integers are
/// expected, int32 and int64. Throws Error(invalid_input) naming `file` and the broken rule on anything else; allocates
/// nothing that depends on the shape.
NpyHeader parse_npy_header(std::string_view start, std::uint64_t file_bytes, const std::string& file,
                           NpyValues values = NpyValues::elements);

/// An open .npy file; reads any block of it. Several threads may read at once.
class NpyFile {
 public:
  /// Opens and checks the header. Throws Error(invalid_input) naming the file and the rule.
  explicit NpyFile(std::string path, NpyValues values = NpyValues::elements);
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  const NpyHeader& header() const noexcept { return header_; }
  const std::string& path() const noexcept { return path_; }

  /// The block of `rows` x `cols` elements at (row, col), row-major, widened to fp32; `out` holds rows * cols.
  /// Throws Error(invalid_input) if the block leaves the matrix, or if the file was cut short since it was opened.
  void read(std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols, std::span<float> out) const;

  /// As many integers as `out` holds, from number `first` on in the order of the file, widened to 64 bits. Throws as
  /// the other read.
  void read(std::int64_t first, std::span<std::int64_t> out) const;

 private:
  void read_bytes(std::uint64_t offset, void* to, std::size_t bytes) const;

  std::string path_;
  int descriptor_ = -1;
  NpyHeader header_;
};

/// Writes a rows x cols float32 matrix, format version 1.0. The file appears whole or not at all, as one that
/// write_file (file.hpp) makes, but it always replaces what has its name: a link is not followed. Nor is it forced to
/// the disk: ranks wait for each other's files. Throws what write_file does.
void write_npy(const std::string& path, std::int64_t rows, std::int64_t cols, std::span<const float> data);

/// Throws Error(invalid_input) where write_npy would refuse `path`, as far as one can tell without writing.
void expect_npy_writable(const std::string& path);

}  // namespace imbrex
