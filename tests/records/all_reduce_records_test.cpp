// Records of all-reduces: crossings of made-up times, their JSON, and which record answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "program/measure/crossing.hpp"
#include "program/measure/measure.hpp"
#include "records/all_reduce_records.hpp"
#include "records/records.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

constexpr std::int64_t kib = 1024, mib = 1024 * kib, most_bytes = std::numeric_limits<std::int64_t>::max();
constexpr double never = std::numeric_limits<double>::infinity();

using Time = std::function<double(std::int64_t bytes)>;

// So long a wait, then so many bytes a second.
Time line(double wait, double rate) {
  return [=](std::int64_t bytes) { return wait + static_cast<double>(bytes) / rate; };
}

std::vector<program::SizeComparison> comparisons(const Time& current, const Time& candidate,
                                                 std::int64_t most = 64 * mib) {
  std::vector<program::SizeComparison> list;
  for (std::int64_t bytes = kib; bytes <= most; bytes *= 2) list.push_back({bytes, current(bytes), candidate(bytes)});
  return list;
}

CodecPair pair(const char* name) { return parse_codec_pair(name); }

// What a measurement of 4 ranks would find.
std::vector<program::AllReduceMeasurement> sweep(const Time& one_shot, const Time& two_shot,
                                                 const std::vector<std::pair<const char*, Time>>& codecs) {
  std::vector<program::AllReduceMeasurement> list;
  for (std::int64_t bytes = kib; bytes <= 64 * mib; bytes *= 2) {
    program::AllReduceMeasurement m{"Some GPU", 4, Type::bf16, bytes, one_shot(bytes), two_shot(bytes), {}};
    for (const auto& [name, time] : codecs) m.quantized.push_back({pair(name), time(bytes)});
    list.push_back(m);
  }
  return list;
}

template <typename F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "accepted";
}

// Where lines cross, the threshold is that point, up to a KiB.
TEST(Crossing, IsWhereLinesMeet) {
  const double rate = 300e9;
  for (const std::int64_t where : {3 * kib, 100 * kib, 700 * kib, 5 * mib, 63 * mib}) {
    const double at = static_cast<double>(where) + 1;
    const auto found = program::crossing(comparisons(line(3e-6, rate), line(3e-6 + at / rate / 2, 2 * rate)));
    ASSERT_TRUE(found.has_value()) << where;
    EXPECT_EQ(*found, where + kib) << where;
  }
}

TEST(Crossing, OfTiesAndExtremes) {
  const Time fast = line(1e-6, 400e9), slow = line(2e-6, 300e9);
  EXPECT_EQ(program::crossing(comparisons(slow, fast)), 0);
  EXPECT_EQ(program::crossing(comparisons(fast, slow)), std::nullopt);
  EXPECT_EQ(program::crossing(comparisons(fast, fast)), std::nullopt);  // an equally fast one gains nothing
  EXPECT_EQ(program::crossing({}), std::nullopt);
  // At the last size only, and by next to nothing: not below it, not at the one before.
  EXPECT_EQ(program::crossing({{kib, 1, 2}, {2 * kib, 1, 1 - 1e-15}}), 2 * kib);
  EXPECT_EQ(program::crossing({{mib, 1, 1}, {2 * mib, 2, 1}}), mib + kib);  // a tie is not won
}

TEST(Crossing, OfWhoCannotGo) {
  // The current algorithm takes nothing above 16 MiB; until then it is faster.
  const auto bounded = [](std::int64_t bytes) { return bytes <= 16 * mib ? 1e-6 : never; };
  EXPECT_EQ(program::crossing(comparisons(bounded, line(2e-6, 300e9))), 32 * mib);
  const auto late = [](std::int64_t bytes) { return bytes < mib ? never : 1e-7; };
  EXPECT_EQ(program::crossing(comparisons(line(1e-6, 300e9), late)), mib);
  EXPECT_EQ(program::crossing({{kib, never, never}, {2 * kib, never, 1}}), 2 * kib);
}

// A lucky size among slower ones, and an unlucky one among faster ones.
TEST(Crossing, BelievesNoSingleSize) {
  const Time current = line(3e-6, 200e9), candidate = line(6e-6, 400e9);
  const auto calm = program::crossing(comparisons(current, candidate));
  ASSERT_TRUE(calm.has_value());
  const auto disturbed = [&](std::int64_t where, double factor) {
    return program::crossing(
        comparisons(current, [&](std::int64_t b) { return candidate(b) * (b == where ? factor : 1); }));
  };
  EXPECT_EQ(disturbed(16 * kib, 0.1), calm);
  const auto after = disturbed(16 * mib, 10);
  ASSERT_TRUE(after.has_value());
  EXPECT_GT(*after, 16 * mib);
  EXPECT_LE(*after, 32 * mib);
  EXPECT_EQ(disturbed(64 * mib, 10), std::nullopt);
}

// Whatever the noise: at each measured size from the threshold on the candidate was faster, and at the last one below
// it was not.
TEST(Crossing, HoldsForNoisyTimes) {
  std::mt19937_64 random(test::seed_from_environment());
  std::uniform_real_distribution<double> noise(0.7, 1.3), wait(1e-6, 20e-6), rate(50e9, 400e9);
  int crossed = 0;
  for (int i = 0; i < 2000; ++i) {
    const Time x = line(wait(random), rate(random)), y = line(wait(random), rate(random));
    const std::vector<program::SizeComparison> list = comparisons([&](std::int64_t b) { return x(b) * noise(random); },
                                                                  [&](std::int64_t b) { return y(b) * noise(random); });
    const auto found = program::crossing(list);
    const program::SizeComparison* below = nullptr;
    for (const program::SizeComparison& d : list) {
      if (d.bytes >= found.value_or(most_bytes))
        EXPECT_LT(d.candidate, d.current) << d.bytes;
      else
        below = &d;
    }
    if (below != nullptr) {
      EXPECT_GE(below->candidate, below->current) << below->bytes;
    }
    EXPECT_EQ(found.value_or(0) % kib, 0);
    crossed += found && *found > 0 ? 1 : 0;
  }
  EXPECT_GT(crossed, 200);
}

TEST(AllReduceRecords, ComeOfMeasurements) {
  const Time one_shot = line(3e-6, 100e9), two_shot = line(5e-6, 250e9);
  const records::AllReduceRecord record = program::record_of(
      sweep(one_shot, two_shot,
            {{"int8", line(9.2e-6, 250e12)}, {"int4", line(4.9e-6, 250.1e9)}, {"int3", line(9e-6, 200e9)}}),
      "2026-11-22");
  EXPECT_EQ(record.ranks, 4);
  EXPECT_EQ(record.date, "2026-11-22");
  ASSERT_TRUE(record.one_shot_below.has_value());
  EXPECT_NEAR(static_cast<double>(*record.one_shot_below), 2e-6 / (1 / 100e9 - 1 / 250e9), 1024);
  ASSERT_EQ(record.codecs.size(), 3u);
  EXPECT_EQ(record.codecs[0].codec, pair("int8"));
  EXPECT_NEAR(static_cast<double>(record.codecs[0].exact_below.value()), 4.2e-6 * 250e9, 8 * 1024);
  // Faster than two shots from next to nothing on, but one shot is until 256 KiB, and not at 512.
  EXPECT_GT(record.codecs[1].exact_below.value(), 256 * kib);
  EXPECT_LE(record.codecs[1].exact_below.value(), 512 * kib);
  EXPECT_EQ(record.codecs[2].exact_below, std::nullopt);
}

TEST(AllReduceRecords, RefuseMeasurementsThatAreNotAlike) {
  const auto good = sweep(line(1, 1), line(1, 2), {{"int8", line(1, 3)}});
  const auto with = [&](auto&& change) {
    auto list = good;
    change(list);
    return message_of([&] { program::record_of(list, "2026-11-22"); });
  };
  EXPECT_EQ(with([](auto&) {}), "accepted");
  EXPECT_NE(with([](auto& l) { l.resize(1); }).find("1 sizes"), std::string::npos);
  EXPECT_NE(with([](auto& l) { l.clear(); }).find("0 sizes"), std::string::npos);
  EXPECT_NE(with([](auto& l) { std::swap(l[1], l[2]); }).find("2048 bytes"), std::string::npos);
  EXPECT_NE(with([](auto& l) { l[3].bytes += 2; }).find("8194 bytes"), std::string::npos);
  EXPECT_NE(with([](auto& l) { l[3].ranks = 2; }).find("bf16 on 2 x Some GPU"), std::string::npos);
  EXPECT_NE(with([](auto& l) { l[3].gpu = "Other GPU"; }).find("Other GPU"), std::string::npos);
  EXPECT_NE(with([](auto& l) { l[3].quantized.clear(); }).find("not the codecs"), std::string::npos);
}

records::Records some_records() {
  records::Records records{"Some GPU", "2026-11-21", {}};
  records.all_reduces = {{4, Type::bf16, "2026-11-22", 512 * kib, {{pair("int8"), 4 * mib}, {pair("int4"), {}}}},
                         {2, Type::fp32, "2026-11-20", std::nullopt, {}}};
  return records;
}

TEST(AllReduceRecords, SurviveJson) {
  const records::Records records = some_records();
  const std::string text = to_json(records);
  const records::Records back = records::parse_records(text, "test");
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.all_reduces, records.all_reduces);
}

TEST(AllReduceRecords, RefuseWhatTheyDoNotKnow) {
  const std::string text = to_json(some_records());
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    return message_of([&] { records::parse_records(changed, "mine.json"); });
  };
  const std::vector<std::tuple<std::string, std::string, std::string>> wrong{
      {"\"one_shot_below\": 524288", "\"one_shot_below\": -1", "mine.json: all_reduces[0].one_shot_below: -1 bytes"},
      {"\"one_shot_below\": 524288", "\"one_shot_below\": 1.5", "all_reduces[0].one_shot_below: 1.5 is not an integer"},
      {"\"one_shot_below\": 524288", "\"one_shot\": 524288", "'one_shot' is not known"},
      {"\"exact_below\": 4194304", "\"exact_below\": \"4M\"", "all_reduces[0].codecs[0].exact_below: '4M'"},
      {"\"codec\": \"int8\"", "\"codec\": \"int9\"", "all_reduces[0].codecs[0].codec: "},
      {"\"codec\": \"int8\"", "\"codec\": \"int4\"", "all_reduces[0].codecs[1].codec: int4 comes twice"},
      {"\"ranks\": 2", "\"ranks\": 1", "all_reduces[1].ranks: 1: it must be at least 2"},
      {"\"type\": \"fp32\"", "\"type\": \"fp31\"", "all_reduces[1].type: "},
      {"\"2026-11-20\"", "\"20.11.2026\"", "all_reduces[1].date: it must be a date, YYYY-MM-DD"},
      {"\"date\": \"2026-11-20\", ", "", "the key 'date' is missing"},
      {"\"all_reduces\": [", "\"all_reduces\": 4, \"x\": [", "'x' is not known"}};
  for (const auto& [from, to, says] : wrong) {
    const std::string found = message(from, to);
    EXPECT_NE(found.find(says), std::string::npos) << found;
  }
  EXPECT_NE(message_of([] {
              records::parse_records(
                  R"({"imbrex_records": 1, "gpu": "g", "date": "d", "records": [], "all_reduces": {}})", "mine.json");
            }).find("all_reduces: object is not a list"),
            std::string::npos);
}

TEST(AllReduceRecords, AnswerForRanksAndType) {
  std::vector<records::AllReduceRecord> records{{4, Type::fp32, "2026-01-01", 1, {}},
                                                {4, Type::bf16, "2026-01-02", 2, {}},
                                                {4, Type::bf16, "2026-01-04", 3, {}},
                                                {4, Type::bf16, "2026-01-04", 4, {}},
                                                {2, Type::fp32, "2026-01-01", 5, {}}};
  const auto answer = [&](int ranks, Type type) {
    const records::AllReduceRecord* found = records::find_record(records, ranks, type);
    return found == nullptr ? 0 : *found->one_shot_below;
  };
  EXPECT_EQ(answer(4, Type::bf16), 3);  // the latest, and the first of two
  EXPECT_EQ(answer(4, Type::fp16), 3);  // as many bytes as bf16
  EXPECT_EQ(answer(4, Type::fp32), 1);
  EXPECT_EQ(answer(2, Type::bf16), 5);
  EXPECT_EQ(answer(8, Type::bf16), 0);
  EXPECT_EQ(answer(3, Type::bf16), 0);
  records::put_record(records, {4, Type::bf16, "2025-01-01", 9, {}});
  EXPECT_EQ(answer(4, Type::bf16), 9);
  EXPECT_EQ(records.size(), 3u);
}

TEST(AllReduceRecords, ACodecWithoutOneIsTakenForTheNextWider) {
  const records::AllReduceRecord record{
      4, Type::bf16, "2026-01-01", 1, {{pair("int4"), 2 * mib}, {pair("int8"), 5 * mib}, {pair("int6"), 3 * mib}}};
  const auto bytes = [&](const char* codec) { return records::exact_below(record, pair(codec), 4 * mib); };
  EXPECT_EQ(bytes("int8"), 5 * mib);
  EXPECT_EQ(bytes("int6"), 3 * mib);
  EXPECT_EQ(bytes("int4"), 2 * mib);
  EXPECT_EQ(bytes("int3"), 2 * mib);
  EXPECT_EQ(bytes("int4-g128"), 2 * mib);  // fewer bits for scales
  EXPECT_EQ(bytes("int5"), 3 * mib);
  EXPECT_EQ(bytes("int4-asym"), 3 * mib);  // offsets are bits, too
  EXPECT_EQ(bytes("flash6"), 3 * mib);
  EXPECT_EQ(bytes("fp8-g128"), 5 * mib);
  EXPECT_EQ(bytes("int8-asym"), 5 * mib);  // wider than all: not before those
  const records::AllReduceRecord narrow{4, Type::bf16, "2026-01-01", 1, {{pair("int4"), 2 * mib}}};
  EXPECT_EQ(records::exact_below(narrow, pair("int8"), 4 * mib), 4 * mib);
  const records::AllReduceRecord slow{4, Type::bf16, "2026-01-01", 1, {{pair("int4"), {}}}};
  EXPECT_EQ(records::exact_below(slow, pair("int4"), 4 * mib), most_bytes);
  EXPECT_EQ(records::exact_below(slow, pair("int8"), 4 * mib), most_bytes);
  EXPECT_EQ(records::exact_below({4, Type::bf16, "2026-01-01", 1, {}}, pair("int8"), 4 * mib), 4 * mib);
}

// Every field that tells two entries apart: a problem that differs in it alone keeps its entry.
TEST(TuningTable, ReplacesTheProblemsThatWereMeasuredAlone) {
  const Problem own{Operator::gemm_all_reduce, 128, 64, 256, 4, Type::e4m3};
  std::vector<Problem> others(8, own);
  others[0].op = Operator::gemm_reduce_scatter;
  others[1].op = Operator::all_gather_gemm;
  others[2].m = 512;
  others[3].n = 128;
  others[4].k = 512;
  others[5].ranks = 2;
  others[6].type = Type::fp16;
  others[7].scales = Scales::row;
  Problem by_columns{Operator::gemm_all_reduce, 128, 64, 256, 4, Type::fp16};
  by_columns.b_layout = Layout::column_major;
  others.push_back(by_columns);
  const auto table = [](const std::vector<Problem>& problems, double seconds, const std::string& before) {
    std::vector<program::Measurement> measurements;
    for (const Problem& problem : problems) {
      program::Measurement& m = measurements.emplace_back();
      m.problem = problem;
      m.gpu = "Some GPU";
      m.plans.emplace_back().seconds = seconds;
    }
    return program::tuning_table(measurements, "2026-12-24", before);
  };
  std::vector<Problem> all = others;
  all.push_back(own);
  const std::string before = table(all, 4e-6, "");
  // One after the other: what is slower now is what counts, and nothing else has changed.
  for (const Problem& tuned : all) {
    const records::Records after = records::parse_records(table({tuned}, 8e-6, before), "test");
    EXPECT_EQ(after.list.size(), all.size());
    for (const Problem& problem : all) {
      const auto found = std::find_if(after.list.begin(), after.list.end(),
                                      [&](const records::Record& r) { return r.problem == problem; });
      ASSERT_NE(found, after.list.end()) << plan::to_json(tuned) << " removes " << plan::to_json(problem);
      EXPECT_NEAR(found->seconds, problem == tuned ? 8e-6 : 4e-6, 1e-9) << plan::to_json(problem);
    }
  }
}

TEST(TuningTable, KeepsWhatItDoesNotReplace) {
  const auto measured = sweep(line(3e-6, 100e9), line(5e-6, 250e9), {{"int8", line(9e-6, 400e9)}});
  const records::AllReduceRecord fresh = program::record_of(measured, "2026-12-24");
  const auto parsed = [](const std::string& text) { return records::parse_records(text, "test"); };

  const records::Records first = parsed(program::tuning_table(measured, "2026-12-24"));
  EXPECT_EQ(first.gpu, "Some GPU");
  EXPECT_TRUE(first.list.empty());
  EXPECT_EQ(first.all_reduces, std::vector{fresh});

  // All-reduces replace those of their ranks and type; plans stay.
  records::Records before = some_records();
  before.list.push_back({{Operator::gemm_all_reduce, 16, 32, 64, 4, Type::bf16}, 8, 32, {}, 2e-6, 3e-6});
  const records::Records after = parsed(program::tuning_table(measured, "2026-12-24", to_json(before)));
  EXPECT_EQ(after.list.size(), 1u);
  EXPECT_EQ(after.date, before.date);
  records::AllReduceRecord merged = fresh;
  merged.codecs.push_back(before.all_reduces[0].codecs[1]);  // int4 was not measured again
  EXPECT_EQ(after.all_reduces, (std::vector{before.all_reduces[1], merged}));
  program::Measurement gemm;
  gemm.problem = {Operator::gemm_all_reduce, 128, 32, 64, 4, Type::bf16};
  gemm.gpu = "Some GPU";
  gemm.plans.emplace_back().seconds = 4e-6;
  const records::Records tuned = parsed(program::tuning_table(std::vector{gemm}, "2026-12-24", to_json(before)));
  ASSERT_EQ(tuned.list.size(), 2u);
  EXPECT_EQ(tuned.list[1].problem.m, 128);
  EXPECT_EQ(tuned.all_reduces, before.all_reduces);

  before.gpu = "Other GPU";
  EXPECT_NE(message_of([&] { program::tuning_table(measured, "2026-12-24", to_json(before)); }).find("'Other GPU'"),
            std::string::npos);
  EXPECT_NE(
      message_of([&] { program::tuning_table(std::vector{gemm}, "2026-12-24", to_json(before)); }).find("'Other GPU'"),
      std::string::npos);
  EXPECT_EQ(program::gpu_of_table(to_json(before)), "Other GPU");
  for (const char* none : {"{", "[]", "{\"imbrex_records\": 1}"})
    EXPECT_NE(message_of([&] { program::gpu_of_table(none); }).find("the table so far: "), std::string::npos);
  EXPECT_NE(message_of([&] { program::tuning_table(measured, "2026-12-24", "{"); }).find("not JSON"),
            std::string::npos);
}

// Folders as a test finds them on disk; removed with it.
class Folders {
 public:
  Folders() {
    std::string name = (std::filesystem::temp_directory_path() / "imbrex-records-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~Folders() { std::filesystem::remove_all(root_); }

  void write(const std::string& folder, const std::string& file, const std::string& text) {
    std::filesystem::create_directories(root_ / folder / "tuned");
    std::ofstream(root_ / folder / "tuned" / file) << text;
  }
  std::string path(const std::string& folder) const { return (root_ / folder).string(); }

 private:
  std::filesystem::path root_;
};

// Entry by entry the first folder's counts, in a folder the latest table's, of these the last by name.
TEST(Tables, AddToEachOther) {
  Folders disk;
  const auto table = [](const std::string& date, std::vector<std::int64_t> rows, int group, int tile) {
    records::Records records{"Some GPU", date, {}};
    for (const std::int64_t m : rows) {
      records.list.push_back({{Operator::gemm_all_reduce, m, 32, 64, 4, Type::bf16}, 0, 0, {}, 2e-6, 3e-6});
      records.list.back().candidate.knobs.group = group;
      records.products.push_back({{m, 32, 64, Type::bf16}, m, m, tile, 1, 1e-6, 2e-6});
    }
    records.all_reduces.push_back({4, Type::bf16, date, 1024 * group, {}});
    records::set_ranges(records);
    return to_json(records);
  };
  disk.write("own", "a.json", table("2026-12-02", {64, 256}, 1, 11));
  disk.write("own", "b.json", table("2026-12-01", {16, 64}, 2, 12));
  disk.write("own", "c.json", table("2026-12-02", {256, 512}, 3, 13));
  disk.write("came", "a.json", table("2026-12-24", {16, 1024}, 4, 14));
  const records::Records found = records::load_records("Some GPU", {disk.path("own"), disk.path("came")});
  std::map<std::int64_t, int> groups, tiles;
  for (const records::Record& r : found.list) EXPECT_TRUE(groups.emplace(r.problem.m, r.candidate.knobs.group).second);
  for (const records::ProductRecord& r : found.products) EXPECT_TRUE(tiles.emplace(r.product.m, r.tile).second);
  EXPECT_EQ(groups, (std::map<std::int64_t, int>{{16, 2}, {64, 1}, {256, 3}, {512, 3}, {1024, 4}}));
  EXPECT_EQ(tiles, (std::map<std::int64_t, int>{{16, 12}, {64, 11}, {256, 13}, {512, 13}, {1024, 14}}));
  // Every M between has one.
  std::int64_t next = found.list.front().m_low;
  for (const records::Record& r : found.list) {
    EXPECT_EQ(r.m_low, next);
    next = r.m_high + 1;
  }
  EXPECT_EQ(next, 2049);
  ASSERT_EQ(found.all_reduces.size(), 3u);
  EXPECT_EQ(records::find_record(found.all_reduces, 4, Type::bf16)->date, "2026-12-02");
}

TEST(Tables, OfAFolderAreReadByNameAndKind) {
  Folders disk;
  const auto table = [](const char* gpu, bool gemm, std::vector<std::int64_t> sizes, int tile = 0) {
    records::Records records{gpu, "2026-11-21", {}};
    if (gemm) records.list.push_back({{Operator::gemm_all_reduce, 16, 32, 64, 4, Type::bf16}, 8, 32, {}, 2e-6, 3e-6});
    for (const std::int64_t bytes : sizes) records.all_reduces.push_back({4, Type::bf16, "2026-11-21", bytes, {}});
    if (tile > 0) records.products.push_back({{16, 32, 64, Type::bf16}, 9, 16, tile, 1, 1e-6, 2e-6});
    return to_json(records);
  };
  // The first folder has no all-reduces and products of this GPU, the second all kinds; the third is broken.
  disk.write("one", "a.json", table("Some GPU", true, {}));
  disk.write("one", "b.json", table("Other GPU", true, {1}));
  disk.write("two", "z.json", table("Some GPU", true, {4}));
  disk.write("two", "b.json", table("Some GPU", true, {2, 3}, 7));
  disk.write("two", "c.txt", "not a table");
  disk.write("three", "a.json", "{");
  const records::Records found =
      records::load_records("Some GPU", {disk.path("none"), disk.path("one"), disk.path("two")});
  EXPECT_EQ(found.list.size(), 1u);
  std::vector<std::int64_t> sizes;
  for (const records::AllReduceRecord& r : found.all_reduces) sizes.push_back(r.one_shot_below.value());
  std::sort(sizes.begin(), sizes.end());
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, 3, 4}));
  ASSERT_EQ(found.products.size(), 1u);
  EXPECT_EQ(found.products[0].tile, 7);
  const std::string message = message_of([&] {
    records::load_records("Third GPU", {disk.path("two"), disk.path("three")});
  });
  EXPECT_NE(message.find(disk.path("three") + "/tuned/a.json: this is not JSON"), std::string::npos) << message;
}

TEST(AllReduceRecords, ThatShipAreRead) {
  const records::Records records = records::load_records("NVIDIA H200");
  const records::AllReduceRecord* record = records::find_record(records.all_reduces, 4, Type::bf16);
  ASSERT_NE(record, nullptr);
  // What measuring again moves, but not out of these bounds.
  EXPECT_GT(record->one_shot_below.value(), 128 * kib);
  EXPECT_LE(record->one_shot_below.value(), 2 * mib);
  for (const char* codec : {"int8", "fp8-g128", "int6", "flash6", "int4"}) {
    EXPECT_GT(records::exact_below(*record, pair(codec), 0), mib) << codec;
    EXPECT_LE(records::exact_below(*record, pair(codec), 0), 16 * mib) << codec;
  }
}

}  // namespace
}  // namespace imbrex
