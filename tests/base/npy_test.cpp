#include "imbrex/npy.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/npy_files.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

using test::npy_dict;
using test::npy_header;
using test::TemporaryFolder;
using test::write_bytes;

NpyHeader parse(const std::string& bytes) { return parse_npy_header(bytes, bytes.size(), "x.npy"); }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

std::vector<float> read_all(const std::string& path) {
  const NpyFile file(path);
  std::vector<float> values(static_cast<std::size_t>(file.header().rows * file.header().cols));
  file.read(0, 0, file.header().rows, file.header().cols, values);
  return values;
}

TEST(Npy, ReadsEveryVersion) {
  for (int major : {1, 2, 3}) {
    const NpyHeader header = parse(npy_header(major, npy_dict("<f4", "(2, 3)")) + std::string(24, '\0'));
    EXPECT_EQ(header.type, Type::fp32);
    EXPECT_EQ(header.rows, 2);
    EXPECT_EQ(header.cols, 3);
    EXPECT_EQ(header.dimensions, 2);
  }
}

TEST(Npy, ReadsEverySpellingOfTheHeader) {
  const std::string data(12, '\0');
  for (const std::string& dict : {
           std::string("{'shape':(3,),'fortran_order':False,'descr':'<f4'}"),
           std::string("  {\t\"fortran_order\" : False ,\n \"descr\" : \"=f4\" , \"shape\" : ( 3 , ) }  \n\n"),
           std::string("{'descr': 'f4', 'fortran_order': False, 'shape': (3L,), }"),
           std::string("{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3,)}\n"),
           std::string("{'descr': '=f2', 'fortran_order': False, 'shape': (6,)}\n"),
           std::string("{'descr': 'f2', 'fortran_order': False, 'shape': (006, 1)}\n"),
       })
    EXPECT_NO_THROW(parse(npy_header(1, dict) + data)) << dict;
}

TEST(Npy, ReadsOneDimensionAsOneRow) {
  const NpyHeader header = parse(npy_header(1, npy_dict("<f2", "(5,)")) + std::string(10, '\0'));
  EXPECT_EQ(header.dimensions, 1);
  EXPECT_EQ(header.rows, 1);
  EXPECT_EQ(header.cols, 5);
}

TEST(Npy, ReadsBytesAsE4m3) {
  const NpyHeader header = parse(npy_header(1, npy_dict("|u1", "(2, 3)")) + std::string(6, '\0'));
  EXPECT_EQ(header.type, Type::e4m3);
  EXPECT_EQ(header.cols, 3);
  const auto message = message_of([&] { parse(npy_header(1, npy_dict("|u1", "(2, 3)")) + std::string(12, '\0')); });
  EXPECT_NE(message.find("6 bytes follow the data"), std::string::npos) << message;
}

TEST(Npy, RefusesWithTheRule) {
  struct Case {
    std::string bytes, expected;
  };
  const auto with_dict = [](const std::string& dict) { return npy_header(1, dict) + std::string(24, '\0'); };
  std::string version_4 = npy_header(1, npy_dict("<f4", "(2, 3)"));
  version_4[6] = 4;
  const std::vector<Case> cases = {
      {"", "not a .npy file"},
      {"\x93NUMP", "not a .npy file"},
      {"PK\x03\x04 an archive", "not a .npy file"},
      {"\x93NUMPY\x01", "ends within its header"},
      {std::string("\x93NUMPY\x02\x00\x10\x00", 10), "ends within its header"},
      {version_4, "version 4.0 is unknown"},
      {std::string("\x93NUMPY\x01\x00\xff\xff{", 11), "only 1 are in the file"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13), "at most"},
      {with_dict(""), "where '{' is expected"},
      {with_dict("{"), "where a key in quotes is expected"},
      {with_dict("{}"), "lacks a key"},
      {with_dict("{'descr': '<f4', 'shape': (2, 3)}"), "lacks a key"},
      {with_dict("{'descr': '<f4', 'descr': '<f4'}"), "'descr' twice"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}"), "the key 'x'"},
      {with_dict("{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}"), "where '}' is expected"},
      {with_dict("{'descr': '<f4, 'fortran_order': False, 'shape': (2, 3)}"), "where '}' is expected"},
      {with_dict("{'descr': '<f4"), "no closing quote"},
      {with_dict("{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (2, 3)}"), "backslash"},
      {with_dict("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}"), "structured"},
      {with_dict("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}"), "'>f4', big-endian"},
      {with_dict("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3)}"), "descr is '<f8'"},
      {with_dict("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)}"), "descr is '<i4'"},
      {with_dict("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}"), "descr is '|O'"},
      {with_dict("{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (2, 3)}"), "descr is '\\x1b[2J'"},
      {with_dict("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}"), "fortran_order is True"},
      {with_dict("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}"), "must be True or False"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), "0 dimensions"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3)}"), "3 dimensions"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (6)}"), "must be a tuple"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': 6}"), "where '(' is expected"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}"), "integer of 0 or more"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 3)}"), "where ')' is expected"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (,)}"), "integer of 0 or more"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 3)}"), "63 bits"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}"), "63 bits"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 2147483647)}"), "63 bits"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000)}"), "file ends after 24"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} import os"), "after its dict"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}"), "asks for 32 bytes"},
      {with_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}"), "8 bytes follow the data"},
  };
  for (const Case& c : cases) {
    const std::string message = message_of([&] { parse(c.bytes); });
    EXPECT_NE(message.find(c.expected), std::string::npos) << message << "\nexpected: " << c.expected;
    EXPECT_TRUE(message.starts_with("x.npy: ")) << message;
  }
  std::string many = "(";
  for (int i = 0; i < 1000; ++i) many += "1, ";
  EXPECT_NE(message_of([&] { parse(with_dict(npy_dict("<f4", many + ")"))); }).find("32 dimensions"),
            std::string::npos);
}

/// Cutting a good file anywhere, and changing any byte of it, gives a matrix or an Error, and nothing else.
TEST(Npy, SurvivesEveryTruncationAndManyMutations) {
  const std::string good = npy_header(1, npy_dict("<f4", "(2, 3)")) + std::string(24, '\0');
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_THROW(parse(good.substr(0, size)), Error) << size;
  EXPECT_THROW(parse(good + '\0'), Error);
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string bad = good;
    for (auto changes = 1 + random() % 3; changes > 0; --changes)
      bad[random() % bad.size()] = static_cast<char>(random());
    try {
      const NpyHeader header = parse(bad);
      EXPECT_EQ(header.data_offset + static_cast<std::size_t>(header.rows * header.cols) * size_of(header.type),
                bad.size());
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Npy, WidensEveryHalf) {
  std::string bytes = npy_header(1, npy_dict("<f2", "(65536,)"));
  for (int i = 0; i < 65536; ++i) {
    bytes += static_cast<char>(i & 0xff);
    bytes += static_cast<char>(i >> 8);
  }
  TemporaryFolder folder;
  write_bytes(folder.file("h.npy"), bytes);
  const std::vector<float> values = read_all(folder.file("h.npy"));
  for (int i = 0; i < 65536; ++i) {
    const int exponent = i >> 10 & 31, fraction = i & 1023;
    const float magnitude = exponent == 0   ? std::ldexp(static_cast<float>(fraction), -24)
                            : exponent < 31 ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                            : fraction == 0 ? INFINITY
                                            : NAN;
    const float value = values[static_cast<std::size_t>(i)];
    if (std::isnan(magnitude))
      EXPECT_TRUE(std::isnan(value)) << i;
    else
      EXPECT_EQ(value, magnitude * (i & 0x8000 ? -1.f : 1.f)) << i;
    EXPECT_EQ(std::signbit(value), (i & 0x8000) != 0) << i;
  }
}

TEST(Npy, ReadsBackWhatItWrote) {
  TemporaryFolder folder;
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    const std::int64_t rows = random() % 70, cols = random() % 9000;
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    write_npy(folder.file("x.npy"), rows, cols, values);
    const NpyFile file(folder.file("x.npy"));
    ASSERT_EQ(file.header().rows, rows);
    ASSERT_EQ(file.header().cols, cols);
    EXPECT_EQ(file.header().data_offset % 64, 0u);
    for (int block = 0; block < 8; ++block) {
      const std::int64_t row = random() % (rows + 1), col = random() % (cols + 1);
      const std::int64_t height = random() % (rows - row + 1), width = random() % (cols - col + 1);
      std::vector<float> out(static_cast<std::size_t>(height * width));
      file.read(row, col, height, width, out);
      for (std::int64_t r = 0; r < height; ++r)
        EXPECT_TRUE(width == 0 || std::memcmp(&out[static_cast<std::size_t>(r * width)],
                                              &values[static_cast<std::size_t>((row + r) * cols + col)],
                                              static_cast<std::size_t>(width) * 4) == 0);
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "a temporary file was left";
}

/// Names under which files of the folder came and went: "+x" and "-x".
class FolderWatch {
 public:
  explicit FolderWatch(const TemporaryFolder& folder) : descriptor_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (descriptor_ >= 0)
      ::inotify_add_watch(descriptor_, folder.path().c_str(), IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE);
  }
  ~FolderWatch() { ::close(descriptor_); }
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  bool works() const { return descriptor_ >= 0; }
  std::vector<std::string> seen() const {
    std::vector<std::string> names;
    alignas(inotify_event) char buffer[4096];
    for (ssize_t bytes; (bytes = ::read(descriptor_, buffer, sizeof buffer)) > 0;)
      for (ssize_t at = 0; at < bytes;) {
        const auto& event = *reinterpret_cast<const inotify_event*>(buffer + at);
        names.push_back((event.mask & (IN_CREATE | IN_MOVED_TO) ? "+" : "-") + std::string(event.name));
        at += static_cast<ssize_t>(sizeof event + event.len);
      }
    return names;
  }

 private:
  int descriptor_;
};

TEST(Npy, AFileIsReplacedAndNeverMissing) {
  TemporaryFolder folder;
  write_npy(folder.file("x.npy"), 1, 1, std::vector<float>(1));
  const FolderWatch watch(folder);
  if (!watch.works()) GTEST_SKIP() << "no inotify here";
  write_npy(folder.file("x.npy"), 2, 3, std::vector<float>(6));
  const std::vector<std::string> seen = watch.seen();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "-x.npy"), 0);
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), "+x.npy");
  EXPECT_EQ(NpyFile(folder.file("x.npy")).header().cols, 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "a temporary file was left";
}

TEST(Npy, WhatCannotBeReplacedLeavesNothingBehind) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("x.npy"));
  EXPECT_NE(message_of([&] { write_npy(folder.file("x.npy"), 1, 1, std::vector<float>(1)); }).find("cannot be written"),
            std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Npy, ReadsBlocksOfHalves) {
  TemporaryFolder folder;
  for (const std::int64_t cols : {5, 20000}) {  // read densely, and row by row
    std::string bytes = npy_header(2, npy_dict("<f2", "(3, " + std::to_string(cols) + ")"));
    for (std::int64_t i = 0; i < 3 * cols; ++i) {
      bytes += static_cast<char>(i & 0xff);
      bytes += static_cast<char>(0x3c);  // 1 + (i % 256) / 1024
    }
    write_bytes(folder.file("h.npy"), bytes);
    std::vector<float> out(4);
    NpyFile(folder.file("h.npy")).read(1, 2, 2, 2, out);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(out[static_cast<std::size_t>(i)],
                1 + static_cast<float>(((1 + i / 2) * cols + 2 + i % 2) % 256) / 1024);
  }
}

TEST(Npy, RefusesBlocksOutside) {
  TemporaryFolder folder;
  write_npy(folder.file("x.npy"), 2, 3, std::vector<float>(6));
  const NpyFile file(folder.file("x.npy"));
  std::vector<float> out(6);
  EXPECT_THROW(file.read(0, 0, 3, 2, out), Error);
  EXPECT_THROW(file.read(0, 1, 2, 3, out), Error);
  EXPECT_THROW(file.read(-1, 0, 2, 3, out), Error);
  EXPECT_THROW(file.read(0, 0, 2, 2, out), Error);
  EXPECT_NO_THROW(file.read(0, 0, 2, 3, out));
}

TEST(Npy, NoticesAFileCutShortWhileOpen) {
  TemporaryFolder folder;
  write_npy(folder.file("x.npy"), 100, 100, std::vector<float>(10000));
  const NpyFile file(folder.file("x.npy"));
  std::filesystem::resize_file(folder.file("x.npy"), 300);
  std::vector<float> out(10000);
  EXPECT_NE(message_of([&] { file.read(0, 0, 100, 100, out); }).find("cut short"), std::string::npos);
}

TEST(Npy, RefusesWhatIsNoFile) {
  TemporaryFolder folder;
  EXPECT_NE(message_of([&] { NpyFile file(folder.file("none.npy")); }).find("cannot be opened"), std::string::npos);
  EXPECT_NE(message_of([&] { NpyFile file(folder.path().string()); }).find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { NpyFile file(folder.file("pipe")); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(
      message_of([&] { write_npy(folder.file("no/x.npy"), 1, 1, std::vector<float>(1)); }).find("cannot be written"),
      std::string::npos);
  EXPECT_NE(
      message_of([&] { write_npy(folder.path().string(), 1, 1, std::vector<float>(1)); }).find("cannot be written"),
      std::string::npos);
}

TEST(Npy, ReadsASparseGiantByBlocks) {
  // 2^20 x 2^20 floats, 4 TiB: only the blocks asked for are read, and memory follows the block.
  TemporaryFolder folder;
  const std::string header = npy_header(1, npy_dict("<f4", "(1048576, 1048576)"));
  write_bytes(folder.file("giant.npy"), header);
  std::error_code refused;
  std::filesystem::resize_file(folder.file("giant.npy"), header.size() + (std::uintmax_t{1} << 42), refused);
  if (refused) GTEST_SKIP() << "the file system has no sparse files of 4 TiB: " << refused.message();
  std::vector<float> out(6, 1.f);
  NpyFile(folder.file("giant.npy")).read(1048574, 1048573, 2, 3, out);
  EXPECT_EQ(out, std::vector<float>(6, 0.f));
}

template <typename Int>
std::string integers(const char* descr, const std::vector<Int>& values) {
  const std::string shape = "(" + std::to_string(values.size()) + ",)";
  return npy_header(1, npy_dict(descr, shape)) +
         std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Int));
}

TEST(NpyFile, IntegersAreReadWhereTheyAreWanted) {
  const TemporaryFolder folder;
  const std::string path = folder.file("i.npy");
  std::vector<std::int32_t> many(600000);  // more than one read takes
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int32_t>(i) - 300000;
  write_bytes(path, integers<std::int32_t>("<i4", many));
  const NpyFile narrow(path, NpyValues::integers);
  EXPECT_EQ(narrow.header().type, type_int32);
  std::vector<std::int64_t> got(many.size() - 1);
  narrow.read(1, got);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), many.begin() + 1));
  EXPECT_EQ(message_of([&] { narrow.read(2, got); }), path + ": integers 2+599999 leave the array of 600000");
  std::vector<float> floats(1);
  EXPECT_EQ(message_of([&] { narrow.read(0, 0, 1, 1, floats); }), path + ": integers are no elements of a matrix");
  EXPECT_NE(message_of([&] { NpyFile file(path); }).find("descr is '<i4'"), std::string::npos);

  const std::vector<std::int64_t> wide{-1, std::int64_t{1} << 40, 7};
  write_bytes(path, integers<std::int64_t>("<i8", wide));
  got.resize(3);
  NpyFile(path, NpyValues::integers).read(0, got);
  EXPECT_EQ(got, wide);
  for (const char* descr : {">i8", "<u8", "<i2", "<f4", "|u1"})
    EXPECT_NE(message_of([&] {
                parse_npy_header(integers<std::int64_t>(descr, wide), 1 << 10, "x.npy", NpyValues::integers);
              }).find("it must be '<i4' (int32) or '<i8' (int64)"),
              std::string::npos)
        << descr;
}

}  // namespace
}  // namespace imbrex
