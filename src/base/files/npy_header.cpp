// The header of a .npy file: a magic string, a version, a length, and the literal of a Python dict.
#include <cctype>
#include <limits>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "imbrex/npy.hpp"

namespace imbrex {
namespace {

constexpr std::string_view magic = "\x93NUMPY";

/// `text` for a message: control and non-ASCII bytes escaped, cut after 40 characters.
std::string printable(std::string_view text) {
  std::string result;
  for (char c : text.substr(0, 40)) {
    if (c >= 0x20 && c < 0x7f)
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  if (text.size() > 40) result += "...";
  return result;
}

/// A strict reader of the one dict that NumPy writes: three known keys, each once, in any order.
class DictParser {
 public:
  DictParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void parse() {
    skip_space();
    expect('{');
    skip_space();
    while (!take('}')) {
      parse_entry();
      skip_space();
      if (take(',')) {
        skip_space();
        continue;
      }
      expect('}');
      break;
    }
    skip_space();
    IMBREX_EXPECTS(at_ == text_.size(), "{}: the header has '{}' after its dict; only blanks and a newline may follow",
                   file_, printable(text_.substr(at_)));
    IMBREX_EXPECTS(descr_ && fortran_order_ && shape_,
                   "{}: the header's dict lacks a key; it must have 'descr', 'fortran_order' and 'shape'", file_);
  }

  const std::string& descr() const { return *descr_; }
  bool fortran_order() const { return *fortran_order_; }
  const std::vector<std::int64_t>& shape() const { return *shape_; }

 private:
  void parse_entry() {
    const std::string_view key = parse_string("a key");
    skip_space();
    expect(':');
    skip_space();
    if (key == "descr") {
      expect_first(descr_.has_value(), key);
      IMBREX_EXPECTS(peek() != '[', "{}: descr is a list, a structured type; it must be '<f4' or '<f2'", file_);
      descr_ = std::string(parse_string("descr"));
    } else if (key == "fortran_order") {
      expect_first(fortran_order_.has_value(), key);
      fortran_order_ = parse_bool();
    } else if (key == "shape") {
      expect_first(shape_.has_value(), key);
      shape_ = parse_shape();
    } else {
      IMBREX_EXPECTS(false, "{}: the header has the key '{}'; only 'descr', 'fortran_order' and 'shape' are allowed",
                     file_, printable(key));
    }
  }

  void expect_first(bool seen, std::string_view key) const {
    IMBREX_EXPECTS(!seen, "{}: the header has the key '{}' twice", file_, printable(key));
  }

  std::string_view parse_string(std::string_view what) {
    const char quote = peek();
    IMBREX_EXPECTS(quote == '\'' || quote == '"', "{}: the header has '{}' where {} in quotes is expected", file_,
                   printable(text_.substr(at_)), what);
    const std::size_t end = text_.find(quote, at_ + 1);
    IMBREX_EXPECTS(end != std::string_view::npos, "{}: a string in the header has no closing quote", file_);
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    IMBREX_EXPECTS(value.find('\\') == std::string_view::npos, "{}: '{}' in the header has a backslash escape", file_,
                   printable(value));
    at_ = end + 1;
    return value;
  }

  bool parse_bool() {
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {"False", false}})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    IMBREX_EXPECTS(false, "{}: fortran_order is '{}'; it must be True or False", file_, printable(text_.substr(at_)));
    return false;
  }

  std::vector<std::int64_t> parse_shape() {
    std::vector<std::int64_t> shape;
    expect('(');
    skip_space();
    while (!take(')')) {
      IMBREX_EXPECTS(shape.size() < 32, "{}: the shape has more than 32 dimensions; it must have 1 or 2", file_);
      shape.push_back(parse_size());
      skip_space();
      if (take(',')) {
        skip_space();
        continue;
      }
      IMBREX_EXPECTS(shape.size() != 1 || peek() != ')', "{}: the shape is a number; it must be a tuple", file_);
      expect(')');
      break;
    }
    return shape;
  }

  std::int64_t parse_size() {
    IMBREX_EXPECTS(std::isdigit(static_cast<unsigned char>(peek())),
                   "{}: the shape has '{}' where an integer of 0 or more is expected", file_,
                   printable(text_.substr(at_)));
    std::int64_t value = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek())); ++at_) {
      const int digit = peek() - '0';
      IMBREX_EXPECTS(value <= (std::numeric_limits<std::int64_t>::max() - digit) / 10,
                     "{}: a size in the shape does not fit 63 bits", file_);
      value = value * 10 + digit;
    }
    take('L');  // NumPy under Python 2 wrote long integers so.
    return value;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    IMBREX_EXPECTS(take(c), "{}: the header has '{}' where '{}' is expected", file_, printable(text_.substr(at_)), c);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

Type parse_integers(const std::string& descr, const std::string& file) {
  if (descr == "<i4" || descr == "=i4" || descr == "i4") return type_int32;
  if (descr == "<i8" || descr == "=i8" || descr == "i8") return type_int64;
  IMBREX_EXPECTS(false, "{}: descr is '{}'; it must be '<i4' (int32) or '<i8' (int64)", file, printable(descr));
  return {};
}

Type parse_descr(const std::string& descr, const std::string& file) {
  if (descr == "<f4" || descr == "=f4" || descr == "f4") return Type::fp32;
  if (descr == "<f2" || descr == "=f2" || descr == "f2") return Type::fp16;
  if (descr == "|u1" || descr == "u1" || descr == "<u1") return Type::e4m3;
  IMBREX_EXPECTS(!descr.starts_with('>'), "{}: descr is '{}', big-endian; it must be '<f4', '<f2' or '|u1'", file,
                 printable(descr));
  IMBREX_EXPECTS(false, "{}: descr is '{}'; it must be '<f4' (float32), '<f2' (float16) or '|u1' (e4m3)", file,
                 printable(descr));
  return {};
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view start, std::uint64_t file_bytes, const std::string& file,
                           NpyValues values) {
  IMBREX_EXPECTS(start.starts_with(magic), "{}: not a .npy file; it must begin with \\x93NUMPY", file);
  IMBREX_EXPECTS(start.size() >= 10, "{}: the file ends within its header, after {} bytes", file, start.size());
  const int major = static_cast<unsigned char>(start[6]), minor = static_cast<unsigned char>(start[7]);
  IMBREX_EXPECTS(major >= 1 && major <= 3 && minor == 0,
                 "{}: format version {}.{} is unknown; it must be 1.0, 2.0 or 3.0", file, major, minor);
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t text_begin = 8 + length_bytes;
  IMBREX_EXPECTS(start.size() >= text_begin, "{}: the file ends within its header, after {} bytes", file, start.size());
  const std::size_t text_bytes = little_endian(start.substr(8, length_bytes));
  IMBREX_EXPECTS(text_begin + text_bytes <= npy_header_limit, "{}: the header has {} bytes; at most {} are allowed",
                 file, text_bytes, npy_header_limit - text_begin);
  IMBREX_EXPECTS(text_begin + text_bytes <= start.size(), "{}: the header has {} bytes, but only {} are in the file",
                 file, text_bytes, start.size() - text_begin);

  DictParser dict(start.substr(text_begin, text_bytes), file);
  dict.parse();
  NpyHeader header;
  header.type = values == NpyValues::integers ? parse_integers(dict.descr(), file) : parse_descr(dict.descr(), file);
  IMBREX_EXPECTS(!dict.fortran_order(), "{}: fortran_order is True; the array must be in C order", file);
  const auto& shape = dict.shape();
  IMBREX_EXPECTS(shape.size() == 1 || shape.size() == 2, "{}: the shape has {} dimensions; it must have 1 or 2", file,
                 shape.size());
  header.dimensions = static_cast<int>(shape.size());
  header.rows = header.dimensions == 2 ? shape[0] : 1;
  header.cols = shape.back();
  header.data_offset = text_begin + text_bytes;

  std::int64_t elements = 0, bytes = 0;
  IMBREX_EXPECTS(!__builtin_mul_overflow(header.rows, header.cols, &elements) &&
                     !__builtin_mul_overflow(elements, static_cast<std::int64_t>(bytes_of(header.type)), &bytes),
                 "{}: the shape {} x {} asks for more bytes than fit 63 bits", file, header.rows, header.cols);
  const std::uint64_t present = file_bytes - header.data_offset;
  IMBREX_EXPECTS(present >= static_cast<std::uint64_t>(bytes),
                 "{}: the shape {} x {} asks for {} bytes of data, but the file ends after {}", file, header.rows,
                 header.cols, bytes, present);
  IMBREX_EXPECTS(present == static_cast<std::uint64_t>(bytes),
                 "{}: {} bytes follow the data; the shape {} x {} asks for {} bytes and no more", file,
                 present - static_cast<std::uint64_t>(bytes), header.rows, header.cols, bytes);
  return header;
}

}  // namespace imbrex
