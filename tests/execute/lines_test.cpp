// Whether two operands have a byte in common, against all their bytes; and which ones an operator takes all the same.
#include "execute/lines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "execute/operands.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"
#include "support/random_run.hpp"

namespace imbrex {
namespace {

using execute::Lines;

Lines at(std::uintptr_t begin, std::int64_t count, std::int64_t bytes, std::int64_t pitch) {
  Lines lines = Lines::of(count, bytes, pitch);
  lines.begin = begin;
  return lines;
}

TEST(Lines, TouchWhereAByteIsInBoth) {
  const std::uint64_t seed = test::seed_from_environment();
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::Random random(seed);
  int touching = 0, interleaved[2] = {};  // of one pitch, of two
  for (int i = 0; i < 200'000; ++i) {
    const std::int64_t shared = random.between(1, 12);
    std::set<std::uintptr_t> bytes[2];
    Lines lines[2];
    for (int j = 0; j < 2; ++j) {
      const std::int64_t pitch = random.chance(0.5) ? shared : random.between(1, 12),
                         length = random.chance(0.1) ? pitch : random.between(0, pitch),
                         count = random.chance(0.1) ? 0 : random.between(1, 7);
      const auto begin = static_cast<std::uintptr_t>(4096 + random.between(0, 40));
      lines[j] = at(begin, count, length, pitch);
      for (std::int64_t line = 0; line < count; ++line)
        for (std::int64_t byte = 0; byte < length; ++byte)
          bytes[j].insert(begin + static_cast<std::uintptr_t>(line * pitch + byte));
    }
    const bool both = std::any_of(bytes[0].begin(), bytes[0].end(), [&](auto b) { return bytes[1].contains(b); });
    ASSERT_EQ(touch(lines[0], lines[1]), both) << "case " << i;
    ASSERT_EQ(touch(lines[1], lines[0]), both) << "case " << i;
    touching += both;
    const bool within = !bytes[0].empty() && !bytes[1].empty() && *bytes[0].begin() < *bytes[1].rbegin() &&
                        *bytes[1].begin() < *bytes[0].rbegin();
    if (within && !both) ++interleaved[lines[0].pitch == lines[1].pitch ? 0 : 1];
  }
  EXPECT_GT(touching, 20'000);
  for (const int count : interleaved) EXPECT_GT(count, 1'000);
}

// As far as problems may go.
TEST(Lines, OfManyBytesDoNotWrap) {
  constexpr std::int64_t rows = std::int64_t{1} << 31, length = std::int64_t{1} << 29;
  const std::uintptr_t begin = 4096;
  EXPECT_FALSE(touch(at(begin, rows, length, 2 * length), at(begin + length, rows, length, 2 * length)));
  EXPECT_TRUE(touch(at(begin, rows, length, 2 * length), at(begin + length - 1, rows, length, 2 * length)));
  EXPECT_TRUE(touch(at(begin, rows, length, 2 * length), at(begin + 2 * length * (rows - 1), 1, 1, 1)));
  EXPECT_FALSE(touch(at(begin, rows, length, 2 * length), at(begin + 2 * length * rows - length, 1, 1, 1)));
}

// Operands anywhere in one buffer.
class Placed {
 public:
  explicit Placed(const Problem& problem) : rules_(problem), buffer_(1 << 14) {}

  /// What is said of operands at those bytes of the buffer; "" if nothing.
  std::string refusal(const std::vector<std::int64_t>& places) {
    std::vector<Operand> all;
    for (const OperandInfo& info : rules_.infos())
      all.push_back({info.name, info.at(buffer_.data() + places[all.size()])});
    try {
      addresses_ = rules_.resolve(all);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return "";
  }

  /// The bytes that operand `i` touches, from its begin.
  std::set<std::int64_t> bytes_of(std::size_t i) const {
    const OperandInfo& info = rules_.infos()[i];
    const auto size = static_cast<std::int64_t>(size_of(info.type));
    const std::int64_t pitch = info.pitch == 0 ? info.length() : info.pitch;
    std::set<std::int64_t> bytes;
    for (std::int64_t line = 0; line < info.lines(); ++line)
      for (std::int64_t byte = 0; byte < info.length() * size; ++byte) bytes.insert(line * pitch * size + byte);
    return bytes;
  }

  const std::vector<OperandInfo>& infos() const { return rules_.infos(); }
  bool in_place() const { return rules_.in_place(); }
  const Addresses& addresses() const { return addresses_; }
  std::byte* buffer() { return buffer_.data(); }

 private:
  execute::OperandRules rules_;
  std::vector<std::byte> buffer_;
  Addresses addresses_;
};

TEST(OverlappingOperands, AreRefusedOnRandomProblems) {
  const std::uint64_t seed = test::seed_from_environment() + 1;
  SCOPED_TRACE("seed " + std::to_string(seed));
  test::Random random(seed);
  int refused = 0, taken = 0;
  for (int i = 0; i < 3'000; ++i) {
    Problem problem =
        test::random_problem(random, {.max_ranks = 4, .max_size = 12, .bias = true, .e4m3 = true, .lists = true});
    test::add_pitches(random, problem);
    Placed placed(problem);
    std::vector<std::int64_t> places;
    std::vector<std::set<std::int64_t>> bytes;
    for (std::size_t j = 0; j < placed.infos().size(); ++j) {
      places.push_back(4 * random.between(0, random.chance(0.5) ? 100 : 2000));
      bytes.push_back(placed.bytes_of(j));
    }
    // By bytes: an output and something else.
    std::set<std::string> overlapping;
    for (std::size_t out = 0; out < places.size(); ++out)
      for (std::size_t other = 0; other < places.size(); ++other)
        if (placed.infos()[out].role == OperandRole::output && other != out &&
            std::any_of(bytes[out].begin(), bytes[out].end(),
                        [&](std::int64_t b) { return bytes[other].contains(b + places[out] - places[other]); }))
          overlapping.insert("operand " + std::string(placed.infos()[out].name) + " at ");
    const std::string message = placed.refusal(places);
    if (placed.in_place() && message.empty()) continue;
    ASSERT_EQ(message.empty(), overlapping.empty()) << "case " << i << ": " << message;
    ASSERT_TRUE(message.empty() || overlapping.contains(message.substr(0, message.find("0x")))) << message;
    ++(message.empty() ? taken : refused);
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(taken, 500);
}

TEST(OverlappingOperands, AreNamedWithTheRule) {
  Placed placed({Operator::gemm_all_reduce, 8, 4, 8, 2, Type::fp32});
  const std::string message = placed.refusal({0, 128, 128});
  EXPECT_TRUE(message.starts_with("operand out at 0x")) << message;
  EXPECT_NE(message.find(" overlaps operand b at 0x"), std::string::npos) << message;
  EXPECT_TRUE(message.ends_with(": an output must be apart from every other operand")) << message;
  // What was refused is refused again, and inputs may be one.
  EXPECT_EQ(placed.refusal({0, 128, 128}), message);
  EXPECT_EQ(placed.refusal({0, 0, 128}), "");
}

// Columns of one wider buffer: 0 to 3 are A, 4 to 7 the output; one further left they meet.
TEST(OverlappingOperands, MayInterleave) {
  for (const Operator op : {Operator::gemm_all_reduce, Operator::gemm_all_to_all}) {
    const std::int64_t k = op == Operator::gemm_all_reduce ? 8 : 4;
    Placed placed({.op = op, .m = 8, .n = 4, .k = k, .ranks = 2, .type = Type::fp32, .lda = 9, .ldo = 9});
    EXPECT_EQ(placed.refusal({0, 4096, 16}), "");
    EXPECT_EQ(placed.refusal({20, 4096, 0}), "");
    EXPECT_NE(placed.refusal({0, 4096, 12}), "");
    EXPECT_NE(placed.refusal({24, 4096, 0}), "");
  }
}

TEST(OverlappingOperands, OfAGatherMayBeARanksRows) {
  // M/R = 4 rows of K = N/R = 6 elements.
  Problem problem{.op = Operator::all_gather_gemm, .m = 12, .n = 18, .k = 6, .ranks = 3, .type = Type::fp32};
  const std::int64_t rows_bytes = 4 * 6 * 4;
  Placed placed(problem);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(placed.refusal({rank * rows_bytes, 8192, 0}), "");
    EXPECT_TRUE(placed.in_place());
    EXPECT_EQ(placed.addresses().aside, (Addresses::Aside{nullptr, 4, 24, 24}));
    for (const std::int64_t off : {-24, -4, 4, 24}) {
      const std::string message = placed.refusal({256 + rank * rows_bytes + off, 8192, 256});
      EXPECT_TRUE(
          message.ends_with(": an output must be apart from every other operand; only a may lie in it, as a "
                            "rank's rows of it"))
          << message;
    }
    EXPECT_EQ(placed.refusal({12288, 8192, 0}), "");
    EXPECT_FALSE(placed.in_place());
    EXPECT_EQ(placed.addresses().aside, Addresses::Aside{});
    // B has no such place.
    EXPECT_NE(placed.refusal({12288, rank * rows_bytes, 0}), "");
  }
  EXPECT_EQ(placed.refusal({3 * rows_bytes, 8192, 0}), "");
  EXPECT_FALSE(placed.in_place()) << "behind the output";
  // The gathered A has no gaps, so neither may A's rows; an output with gaps takes an A with the same.
  problem.gathered_a = true;
  Placed gathered(problem);
  EXPECT_EQ(gathered.refusal({2 * rows_bytes, 8192, 4096, 0}), "");
  EXPECT_TRUE(gathered.in_place());
  EXPECT_NE(gathered.refusal({rows_bytes + 24, 8192, 4096, 0}), "");
  EXPECT_NE(gathered.refusal({2 * rows_bytes, 8192, rows_bytes, 0}), "") << "two outputs";
  problem.lda = 7;
  Placed apart(problem);
  EXPECT_NE(apart.refusal({2 * rows_bytes, 8192, 4096, 0}), "");
  problem.ldo = 7;
  Placed same(problem);
  EXPECT_EQ(same.refusal({4096 + 2 * 4 * 7 * 4, 8192, 4096, 0}), "");
  EXPECT_EQ(same.addresses().aside, (Addresses::Aside{nullptr, 4, 24, 28}));
  // Rows of another number, or of another type, are no part of the output.
  EXPECT_NE(Placed({.op = Operator::all_gather_gemm, .m = 12, .n = 24, .k = 6, .ranks = 3, .type = Type::fp32})
                .refusal({0, 8192, 0}),
            "");
  EXPECT_NE(Placed({.op = Operator::all_gather_gemm, .m = 12, .n = 18, .k = 6, .ranks = 3, .type = Type::e4m3})
                .refusal({0, 8192, 0}),
            "");
  // Only a gather's A.
  EXPECT_NE(Placed({.op = Operator::gemm_all_to_all, .m = 12, .n = 6, .k = 6, .ranks = 1, .type = Type::fp32})
                .refusal({0, 8192, 0}),
            "");
}

// With any M, the place is that of the call's rows.
TEST(OverlappingOperands, OfAnyMAreThoseOfTheCall) {
  const Problem problem{.op = Operator::all_gather_gemm, .m = 40, .n = 12, .k = 6, .ranks = 2, .type = Type::fp32};
  execute::OperandRules rules(problem, true);
  std::vector<std::byte> buffer(1 << 14);
  const auto refusal = [&](std::int64_t m, std::int64_t a, std::int64_t out) -> std::string {
    const std::vector<Operand> operands{{"a", rules.info("a", m).at(buffer.data() + a)},
                                        {"b", rules.info("b").at(buffer.data() + 8192)},
                                        {"out", rules.info("out", m).at(buffer.data() + out)}};
    try {
      static_cast<void>(rules.resolve(operands));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const std::int64_t m : {40, 2, 16, 40}) {
    const std::int64_t own = m / 2 * 24;
    EXPECT_EQ(refusal(m, own, 0), "");
    EXPECT_TRUE(rules.in_place());
    EXPECT_NE(refusal(m, own + 4, 0), "");
    EXPECT_EQ(refusal(m, 4096, 0), "");
    EXPECT_FALSE(rules.in_place());
    // Behind the output of this M, and within that of a larger one.
    EXPECT_EQ(refusal(m, 2 * own, 0), "");
    EXPECT_FALSE(rules.in_place());
  }
}

}  // namespace
}  // namespace imbrex
