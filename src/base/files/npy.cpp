// Reading and writing the data of .npy files.
#include "imbrex/npy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.hpp"
#include "base/files/file.hpp"
#include "base/fp8.hpp"

namespace imbrex {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy data is read and written without byte swaps");

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

/// Exact. The product with a power of two also turns half's subnormals into normal floats.
float widen(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const bool special = (half & 0x7c00u) == 0x7c00u;
  return std::bit_cast<float>(sign | (special ? magnitude | 0x7f800000u : finite));
}

void copy_widened(Type type, const std::byte* from, float* to, std::size_t count) {
  if (type == Type::fp32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  if (type == Type::e4m3) {
    for (std::size_t i = 0; i < count; ++i)
      to[i] = codec::from_e4m3_by_integers(std::to_integer<std::uint32_t>(from[i]));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + i * sizeof half, sizeof half);
    to[i] = widen(half);
  }
}

std::string header_text(std::int64_t rows, std::int64_t cols) {
  std::string dict = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  // NumPy aligns the data to 64 bytes, so that it can be mapped into memory.
  const std::size_t unpadded = 10 + dict.size() + 1;
  dict.append((64 - unpadded % 64) % 64, ' ');
  dict += '\n';
  std::string text = "\x93NUMPY";
  text += {'\x01', '\x00', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return text + dict;
}

}  // namespace

NpyFile::NpyFile(std::string path, NpyValues values) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  IMBREX_EXPECTS(descriptor_ >= 0, "{}: cannot be opened: {}", path_, std::strerror(errno));
  try {
    struct stat status {};
    IMBREX_EXPECTS(::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode), "{}: not a regular file", path_);
    const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
    std::string start(std::min<std::uint64_t>(file_bytes, npy_header_limit), '\0');
    read_bytes(0, start.data(), start.size());
    header_ = parse_npy_header(start, file_bytes, path_, values);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

NpyFile::~NpyFile() { ::close(descriptor_); }

// NOTE: pread, not mmap: a file that another program cuts short meanwhile is then an error and not a SIGBUS.
void NpyFile::read_bytes(std::uint64_t offset, void* to, std::size_t bytes) const {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    IMBREX_EXPECTS(got >= 0, "{}: reading failed: {}", path_, std::strerror(errno));
    IMBREX_EXPECTS(got > 0, "{}: the file was cut short while it was read", path_);
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void NpyFile::read(std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols,
                   std::span<float> out) const {
  IMBREX_EXPECTS(
      row >= 0 && rows >= 0 && rows <= header_.rows - row && col >= 0 && cols >= 0 && cols <= header_.cols - col,
      "{}: rows {}+{} cols {}+{} leave the matrix of {} x {}", path_, row, rows, col, cols, header_.rows, header_.cols);
  IMBREX_EXPECTS(out.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
                 "{}: the block has {} x {} elements, but room for {} was given", path_, rows, cols, out.size());
  IMBREX_EXPECTS(!is_integer(header_.type), "{}: integers are no elements of a matrix", path_);
  if (rows == 0 || cols == 0) return;

  const std::size_t element = size_of(header_.type);
  const auto width = static_cast<std::size_t>(cols), stride = static_cast<std::size_t>(header_.cols);
  const std::uint64_t first =
      header_.data_offset + (static_cast<std::uint64_t>(row) * stride + static_cast<std::uint64_t>(col)) * element;
  // A narrow block of a wide matrix is read row by row; otherwise whole rows are read, many at a time.
  const bool dense = width == stride || stride * element <= 16384;
  const std::size_t step = dense ? stride : width;  // elements between the rows of one read
  const std::size_t rows_per_read = dense ? std::max<std::size_t>(1, chunk_bytes / (stride * element)) : 1;
  const auto total = static_cast<std::size_t>(rows);
  std::vector<std::byte> buffer;
  for (std::size_t done = 0; done < total; done += rows_per_read) {
    const std::size_t count = std::min(rows_per_read, total - done);
    const std::size_t bytes = ((count - 1) * step + width) * element;
    const std::uint64_t offset = first + static_cast<std::uint64_t>(done) * stride * element;
    float* to = out.data() + done * width;
    if (header_.type == Type::fp32 && (step == width || count == 1)) {
      read_bytes(offset, to, bytes);
      continue;
    }
    if (buffer.size() < bytes) buffer.resize(bytes);
    read_bytes(offset, buffer.data(), bytes);
    for (std::size_t r = 0; r < count; ++r)
      copy_widened(header_.type, buffer.data() + r * step * element, to + r * width, width);
  }
}

void NpyFile::read(std::int64_t first, std::span<std::int64_t> out) const {
  const std::int64_t all = header_.rows * header_.cols, count = std::ssize(out);
  IMBREX_EXPECTS(is_integer(header_.type), "{}: its elements are no integers", path_);
  IMBREX_EXPECTS(first >= 0 && first <= all && count <= all - first, "{}: integers {}+{} leave the array of {}", path_,
                 first, count, all);
  const std::uint64_t at = header_.data_offset + static_cast<std::uint64_t>(first) * bytes_of(header_.type);
  if (header_.type == type_int64) return read_bytes(at, out.data(), out.size_bytes());
  std::vector<std::int32_t> part(std::min<std::size_t>(out.size(), chunk_bytes / sizeof(std::int32_t)));
  for (std::size_t done = 0; done < out.size(); done += part.size()) {
    const std::size_t now = std::min(part.size(), out.size() - done);
    read_bytes(at + done * sizeof(std::int32_t), part.data(), now * sizeof(std::int32_t));
    std::copy_n(part.begin(), now, out.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

void write_npy(const std::string& path, std::int64_t rows, std::int64_t cols, std::span<const float> data) {
  IMBREX_EXPECTS(
      rows >= 0 && cols >= 0 && data.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
      "{}: a matrix of {} x {} was announced, but {} elements were given", path, rows, cols, data.size());
  base::NewFile file(path);
  const std::string header = header_text(rows, cols);
  file.write(header.data(), header.size());
  file.write(data.data(), data.size_bytes());
  file.appear();
}

void expect_npy_writable(const std::string& path) { base::expect_replaceable(path); }

}  // namespace imbrex
