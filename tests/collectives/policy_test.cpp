// From which sizes on all-reduces take other ways, and that all ranks know the same.
#include <gtest/gtest.h>

#include <limits>

#include "collectives/all_reduce.hpp"
#include "collectives/policy.hpp"
#include "collectives/ranks.hpp"
#include "imbrex/error.hpp"
#include "records/all_reduce_records.hpp"
#include "records/records.hpp"

namespace imbrex {
namespace {

using collectives::AllReducePolicy, collectives::Sizes, collectives::agreed_policy;
using test::run_ranks, test::thrown;

constexpr std::int64_t kib = 1024, mib = 1024 * kib;

CodecPair pair(const char* name) { return parse_codec_pair(name); }

records::AllReduceRecord record(int ranks, Type type, std::optional<std::int64_t> one_shot_below) {
  return {ranks, type, "2026-11-22", one_shot_below, {{pair("int8"), 3 * mib}, {pair("int4"), std::nullopt}}};
}

TEST(AllReducePolicy, WithoutARecordIsMadeOfConstants) {
  for (const AllReducePolicy& policy : {AllReducePolicy(4), AllReducePolicy(4, {record(2, Type::bf16, 1)})}) {
    EXPECT_EQ(policy.one_shot_bytes(Type::bf16), 512 * kib);
    EXPECT_EQ(policy.one_shot_bytes(Type::fp32), 512 * kib);
    EXPECT_EQ(policy.exact_below(Type::bf16, pair("int8")), 4 * mib);
    EXPECT_EQ(policy.exact_below(Type::bf16, pair("flash6")), 4 * mib);
    EXPECT_EQ(policy.exact_below(Type::bf16, pair("int4")), 2 * mib);
  }
  EXPECT_EQ(AllReducePolicy(1).one_shot_bytes(Type::bf16), 8 * mib);
  EXPECT_EQ(AllReducePolicy(2).one_shot_bytes(Type::bf16), 8 * mib);
  EXPECT_EQ(AllReducePolicy(8).one_shot_bytes(Type::bf16), 768 * kib * 8 / 42);
}

TEST(AllReducePolicy, GoesByTheRecord) {
  const AllReducePolicy policy(4, {record(4, Type::bf16, 300 * kib), record(4, Type::fp32, std::nullopt)});
  EXPECT_EQ(policy.one_shot_bytes(Type::bf16), 300 * kib - 1);
  EXPECT_EQ(policy.one_shot_bytes(Type::fp16), 300 * kib - 1);
  EXPECT_EQ(policy.one_shot_bytes(Type::fp32), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(policy.exact_below(Type::bf16, pair("int8")), 3 * mib);
  EXPECT_EQ(policy.exact_below(Type::bf16, pair("int6")), 3 * mib);
  EXPECT_EQ(policy.exact_below(Type::bf16, pair("int4")), std::numeric_limits<std::int64_t>::max());
  EXPECT_LT(AllReducePolicy(4, {record(4, Type::bf16, 0)}).one_shot_bytes(Type::bf16), 0);  // nothing takes one shot
}

TEST(AllReducePolicy, DecidesCallsBySize) {
  const Sizes sizes{300 * kib - 1, 3 * mib};
  const AllReduceOptions measured{.codec = pair("int8"), .exact_below = exact_below_measured};
  const auto quantized = [&](const AllReduceOptions& options, std::int64_t bytes) {
    return collectives::quantized(options, bytes / 2, Type::bf16, sizes);
  };
  EXPECT_FALSE(quantized(measured, 3 * mib - 2));
  EXPECT_TRUE(quantized(measured, 3 * mib));
  EXPECT_TRUE(quantized({.codec = pair("int8")}, 2));
  EXPECT_FALSE(quantized({.codec = pair("int8"), .exact_below = 100}, 98));
  EXPECT_TRUE(quantized({.codec = pair("int8"), .exact_below = 100}, 100));
  EXPECT_FALSE(quantized({}, 64 * mib));
  const auto algorithm = [&](const AllReduceOptions& options, std::int64_t bytes) {
    return collectives::choose(options, bytes / 2, Type::bf16, sizes);
  };
  EXPECT_EQ(algorithm({}, 300 * kib - 2), AllReduceAlgorithm::one_shot);
  EXPECT_EQ(algorithm({}, 300 * kib), AllReduceAlgorithm::two_shot);
  EXPECT_EQ(algorithm({.codec = pair("int8")}, 256 * kib), AllReduceAlgorithm::one_shot);
  EXPECT_EQ(algorithm({.codec = pair("int8")}, 256 * kib + 2), AllReduceAlgorithm::two_shot);
  EXPECT_EQ(algorithm({.batch_invariant = true}, 2), AllReduceAlgorithm::two_shot);
  EXPECT_EQ(algorithm({.algorithm = AllReduceAlgorithm::one_shot}, 64 * mib), AllReduceAlgorithm::one_shot);
  AllReduceOptions ring = measured;
  ring.algorithm = AllReduceAlgorithm::ring;
  EXPECT_EQ(algorithm(ring, 3 * mib - 2), AllReduceAlgorithm::two_shot);
  EXPECT_EQ(algorithm(ring, 3 * mib), AllReduceAlgorithm::ring);
}

TEST(AgreedPolicy, IsThatOfRankZerosGpu) {
  records::Records first{"First GPU", "2026-11-22", {}}, second{"Second GPU", "2026-11-22", {}};
  first.all_reduces = {record(3, Type::bf16, 7 * kib)};
  second.all_reduces = {record(3, Type::bf16, 9 * kib)};
  const auto load = [&](const std::string& gpu) -> const records::Records& {
    return gpu == "First GPU" ? first : second;
  };
  ASSERT_EQ(run_ranks(3,
                      [&](World& world) -> std::string {
                        const AllReducePolicy policy =
                            agreed_policy(world, world.rank() == 0 ? "First GPU" : "Second GPU", load);
                        return policy.one_shot_bytes(Type::bf16) == 7 * kib - 1 ? "" : "not the first GPU's";
                      }),
            0);
}

TEST(AgreedPolicy, ReadsWhatShips) {
  ASSERT_EQ(run_ranks(4,
                      [](World& world) -> std::string {
                        if (agreed_policy(world, "no such GPU").one_shot_bytes(Type::bf16) != 512 * kib)
                          return "not the constant";
                        const AllReducePolicy known = agreed_policy(world, "NVIDIA H200");
                        const records::AllReduceRecord* record =
                            records::find_record(records::records_of("NVIDIA H200").all_reduces, 4, Type::bf16);
                        if (record == nullptr) return "no record";
                        if (known.one_shot_bytes(Type::bf16) != *record->one_shot_below - 1) return "not the record's";
                        return {};
                      }),
            0);
}

// One rank cannot read its tables, or reads others: every rank says so.
TEST(AgreedPolicy, RefusesOnEveryRankAlike) {
  records::Records usual{"GPU", "2026-11-22", {}}, other = usual;
  usual.all_reduces = other.all_reduces = {record(3, Type::bf16, 7 * kib)};
  other.all_reduces[0].codecs[0].exact_below = 5;
  const auto expect = [&](bool broken, std::vector<std::string> says) {
    EXPECT_EQ(run_ranks(3,
                        [&](World& world) -> std::string {
                          const auto load = [&](const std::string&) -> const records::Records& {
                            if (world.rank() != 2) return usual;
                            if (broken) records::parse_records("{", "mine.json");
                            return other;
                          };
                          const auto [code, message] = thrown([&] { agreed_policy(world, "GPU", load); });
                          if (broken != message.starts_with("rank 2: ") && world.rank() != 2) return message;
                          for (const std::string& text : says)
                            if (code != 2 || message.find(text) == std::string::npos) return message;
                          return {};
                        }),
              0);
  };
  expect(true, {"mine.json: this is not JSON"});
  expect(false, {"all-reduces on GPU: rank 2 finds other records", "machines/tuned/"});
}

}  // namespace
}  // namespace imbrex
