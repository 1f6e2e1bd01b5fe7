// imbrex_embedding_* in the hands of a caller who means harm: each call ends in time with an error, on every rank, and
// what was refused leaves the operator as it was.
#include <gtest/gtest.h>
#include <imbrex/c.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace imbrex {
namespace {

constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();

struct Shape {
  std::array<imbrex_table, 2> tables{{{10, 8, 0, 1}, {20, 4, 0, 2}}};
  std::array<imbrex_table_shard, 2> shards{{{0, 0, 0, 8}, {1, 1, 0, 4}}};
  imbrex_embedding_shape value{};

  Shape() {
    value.size = sizeof value;
    value.tables = tables.data(), value.table_count = tables.size();
    value.shards = shards.data(), value.shard_count = shards.size();
    value.batch = 4, value.out = IMBREX_FP32;
  }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
};

void expect_refused(imbrex_status status, const std::string& text) {
  EXPECT_EQ(status, IMBREX_INVALID_INPUT);
  EXPECT_NE(std::string(imbrex_error_message()).find(text), std::string::npos) << imbrex_error_message();
}

imbrex_embedding* made(imbrex_world* world) {
  const Shape shape;
  imbrex_operator_options options{};
  options.size = sizeof options, options.device = IMBREX_CPU;
  imbrex_embedding* op = nullptr;
  EXPECT_EQ(imbrex_embedding_make(world, &shape.value, &options, &op), IMBREX_OK) << imbrex_error_message();
  return op;
}

// Operands that fit, and the memory that they are in.
struct Call {
  alignas(16) std::array<float, 80> rows{};
  alignas(16) std::array<float, 24> out{};
  std::array<std::int64_t, 4> indices{0, 1, 2, 3};
  std::array<std::int64_t, 5> offsets{0, 1, 2, 3, 4};
  std::vector<imbrex_operand> operands;

  explicit Call(imbrex_embedding* op) {
    for (std::int32_t i = 0; i < imbrex_embedding_operands(op, 0); ++i) {
      imbrex_operand_info info{};
      info.size = sizeof info;
      EXPECT_EQ(imbrex_embedding_operand(op, 0, i, &info), IMBREX_OK) << imbrex_error_message();
      operands.push_back({info.name, info.view});
    }
    EXPECT_EQ(operands.size(), 4u);
    operands[0].view.data = rows.data();
    operands[1].view.data = indices.data(), operands[1].view.extents[0] = 4;
    operands[2].view.data = offsets.data();
    operands[3].view.data = out.data();
    rows.fill(1);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// Worlds of two threads; `worlds` of them at once.
void on_two_ranks(double wait_limit, std::size_t worlds, const std::function<void(int, imbrex_world**)>& body) {
  std::vector<imbrex_unique_id> ids(worlds);
  for (imbrex_unique_id& id : ids) ASSERT_EQ(imbrex_make_unique_id(&id), IMBREX_OK);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      imbrex_world_options options{};
      options.size = sizeof options, options.heap_bytes = 1 << 24, options.wait_limit = wait_limit;
      std::vector<imbrex_world*> own(worlds);
      for (std::size_t i = 0; i < worlds; ++i)
        ASSERT_EQ(imbrex_world_connect(&ids[i], rank, 2, &options, &own[i]), IMBREX_OK) << imbrex_error_message();
      body(rank, own.data());
      for (imbrex_world* world : own) imbrex_world_destroy(world);
    });
}

TEST(HostileEmbedding, PlacementRefusesWhatNobodyCanHold) {
  std::uint64_t count = 0;
  const auto refused = [&](const std::string& text, std::int32_t ranks, std::int64_t memory, auto&& change) {
    Shape shape;
    change(shape);
    expect_refused(imbrex_place_tables(&shape.value, ranks, memory, nullptr, &count, nullptr), text);
  };
  const auto nothing = [](Shape&) {};
  refused("2147483647 ranks", std::numeric_limits<std::int32_t>::max(), 0, nothing);
  refused("on 0 ranks", 0, 0, nothing);
  refused("-1 bytes a rank", 2, -1, nothing);
  refused("no way was found", 2, 1, nothing);
  refused("imbrex_embedding_shape.size = 0", 2, 0, [](Shape& s) { s.value.size = 0; });
  refused("imbrex_embedding_shape.size = 87", 2, 0, [](Shape& s) { s.value.size = 87; });
  refused("imbrex_embedding_shape.size = 18446744073709551615", 2, 0, [](Shape& s) { s.value.size = ~std::size_t{0}; });
  refused("9223372036854775808 tables", 2, 0, [](Shape& s) { s.value.table_count = std::uint64_t{1} << 63; });
  refused("9223372036854775808 shards", 2, 0, [](Shape& s) { s.value.shard_count = std::uint64_t{1} << 63; });
  refused("tables is null", 2, 0, [](Shape& s) { s.value.tables = nullptr; });
  refused("shards is null", 2, 0, [](Shape& s) { s.value.shards = nullptr; });
  refused("table 1: hotness = nan", 2, 0, [](Shape& s) { s.tables[1].hotness = std::nan(""); });
  refused("table 1: hotness = inf", 2, 0, [](Shape& s) { s.tables[1].hotness = HUGE_VAL; });
  refused("table 0: 9223372036854775807 rows", 2, 0, [](Shape& s) { s.tables[0].rows = huge; });
  refused("table 0: dim = -8", 2, 0, [](Shape& s) { s.tables[0].dim = -8; });
  refused("rows = 9", 2, 0, [](Shape& s) { s.value.rows = 9; });
  expect_refused(imbrex_place_tables(nullptr, 2, 0, nullptr, &count, nullptr), "shape is null");
  const Shape shape;
  expect_refused(imbrex_place_tables(&shape.value, 2, 0, nullptr, nullptr, nullptr), "count is null");
}

TEST(HostileEmbedding, WhatOneRankCannotMakeNoRankMakes) {
  on_two_ranks(20, 1, [](int rank, imbrex_world** worlds) {
    const auto refused = [&](const std::string& text, auto&& change) {
      Shape shape;
      if (rank == 0) change(shape);
      imbrex_embedding* op = nullptr;
      expect_refused(imbrex_embedding_make(worlds[0], &shape.value, nullptr, &op), text);
      EXPECT_EQ(op, nullptr);
    };
    refused("size = 3", [](Shape& s) { s.value.size = 3; });
    refused("tables is null", [](Shape& s) { s.value.tables = nullptr; });
    refused("9223372036854775808 tables", [](Shape& s) { s.value.table_count = std::uint64_t{1} << 63; });
    refused("batch", [](Shape& s) { s.value.batch = std::int64_t{1} << 62; });
    refused("batch", [](Shape& s) { s.value.batch = 0; });
    refused("batch", [](Shape& s) { s.value.batch = -4; });
    refused("dim = -8", [](Shape& s) { s.tables[0].dim = -8; });
    refused("hotness = -1", [](Shape& s) { s.tables[0].hotness = -1; });
    refused("shard 0: table -1", [](Shape& s) { s.shards[0].table = -1; });
    refused("shard 0: columns", [](Shape& s) { s.shards[0].end = std::numeric_limits<std::int32_t>::max(); });
    refused("type = 16", [](Shape& s) { s.value.out = IMBREX_INT8; });
    refused("e4m3", [](Shape& s) { s.value.out = IMBREX_E4M3; });
    refused("index_type = 2", [](Shape& s) { s.value.index_type = IMBREX_FP32; });
    refused("optimizer = 7", [](Shape& s) { s.value.optimizer = 7; });
    const float not_a_number = std::nanf("");
    refused("epsilon", [&](Shape& s) { s.value.epsilon = &not_a_number; });
    imbrex_embedding* op = nullptr;
    const Shape shape;
    expect_refused(imbrex_embedding_make(worlds[0], rank == 0 ? nullptr : &shape.value, nullptr, &op), "shape is null");
    expect_refused(imbrex_embedding_make(worlds[0], &shape.value, nullptr, rank == 0 ? nullptr : &op), "made is null");
    op = made(worlds[0]);  // the world goes on
    EXPECT_EQ(imbrex_embedding_destroy(op), IMBREX_OK);
  });
}

TEST(HostileEmbedding, NullsAreNamed) {
  expect_refused(imbrex_embedding_make(nullptr, nullptr, nullptr, nullptr), "world is null");
  expect_refused(imbrex_embedding_run(nullptr, nullptr, 0, nullptr), "embedding is null");
  expect_refused(imbrex_embedding_update(nullptr, nullptr, 0, 0, nullptr), "embedding is null");
  expect_refused(imbrex_embedding_report(nullptr, nullptr), "embedding is null");
  expect_refused(imbrex_embedding_check(nullptr), "embedding is null");
  expect_refused(imbrex_embedding_synchronize(nullptr, nullptr), "embedding is null");
  expect_refused(imbrex_embedding_operand(nullptr, 0, 0, nullptr), "embedding is null");
  expect_refused(imbrex_embedding_shards(nullptr, nullptr, nullptr), "is null");
  expect_refused(imbrex_embedding_refuse(nullptr, nullptr), "embedding is null");
  EXPECT_EQ(imbrex_embedding_destroy(nullptr), IMBREX_OK);
  EXPECT_EQ(imbrex_embedding_operands(nullptr, 0), -1);
  EXPECT_EQ(imbrex_embedding_device(nullptr), -1);
  EXPECT_STREQ(imbrex_embedding_why_cpu(nullptr), "");
  const char* json = "";
  expect_refused(imbrex_embedding_plan(nullptr, &json), "embedding is null");
  EXPECT_EQ(json, nullptr);
  void* memory = &json;
  expect_refused(imbrex_embedding_allocate_output(nullptr, &memory), "embedding is null");
  EXPECT_EQ(memory, nullptr);
}

TEST(HostileEmbedding, WhatOneRankRefusesAllRefuseAndGoOn) {
  on_two_ranks(20, 2, [](int rank, imbrex_world** worlds) {
    imbrex_embedding *op = made(worlds[0]), *other = made(worlds[1]);
    Call fine(op), beside(other);
    const auto run = [](imbrex_embedding* of, const std::vector<imbrex_operand>& operands) {
      return imbrex_embedding_run(of, operands.data(), operands.size(), nullptr);
    };
    const auto goes_on = [&] {
      EXPECT_EQ(run(op, fine.operands), IMBREX_OK) << imbrex_error_message();
      EXPECT_EQ(fine.out[0], 1);
      EXPECT_EQ(run(other, beside.operands), IMBREX_OK) << imbrex_error_message();
    };
    const auto refused = [&](const std::string& text, auto&& change) {
      std::vector<imbrex_operand> operands = fine.operands;
      if (rank == 0) change(operands);
      expect_refused(run(op, operands), text);
      goes_on();
    };
    for (const std::size_t count : {std::size_t{1} << 63, ~std::size_t{0}, std::size_t{1000}})
      expect_refused(imbrex_embedding_run(op, fine.operands.data(), rank == 0 ? count : 4, nullptr), "count = ");
    expect_refused(imbrex_embedding_run(op, rank == 0 ? nullptr : fine.operands.data(), 4, nullptr),
                   "operands is null");
    expect_refused(imbrex_embedding_run(op, fine.operands.data(), rank == 0 ? 0 : 4, nullptr), "is missing");
    goes_on();
    refused("name is null", [](auto& o) { o[1].name = nullptr; });
    refused("no operand of that name", [](auto& o) { o[1].name = "\xff\n\x1b[31m"; });
    refused("no operand of that name", [](auto& o) { o[1].name = ""; });
    refused("given twice", [](auto& o) { o[1] = o[0]; });
    refused("is missing", [](auto& o) { o.pop_back(); });
    for (const std::int32_t type : {-1, 99, 4, std::numeric_limits<std::int32_t>::max()})
      refused("type", [&](auto& o) { o[0].view.type = type; });
    for (std::size_t i = 0; i < 4; ++i) {
      refused("operand", [&](auto& o) { o[i].view.type = IMBREX_E4M3; });
      for (const std::int32_t dims : {-1, 0, 3, 5, std::numeric_limits<std::int32_t>::max()})
        refused("", [&](auto& o) { o[i].view.dims = dims; });
      for (const std::int64_t extent :
           {huge, -huge - 1, std::int64_t{-1}, std::int64_t{1} << 62, std::int64_t{1} << 31})
        refused(i == 1 ? "indices" : "operand", [&](auto& o) { o[i].view.extents[0] = extent; });
      refused("address is null", [&](auto& o) { o[i].view.data = nullptr; });
      refused("aligned", [&](auto& o) { o[i].view.data = static_cast<char*>(o[i].view.data) + 1; });
    }
    for (const std::int64_t stride :
         {huge, -huge - 1, std::int64_t{-8}, std::int64_t{0}, std::int64_t{4}, std::int64_t{1} << 62}) {
      refused("operand", [&](auto& o) { o[0].view.strides[0] = stride; });
      refused("operand", [&](auto& o) { o[3].view.strides[0] = stride; });
      refused("operand", [&](auto& o) { o[1].view.strides[0] = stride; });
    }
    expect_refused(imbrex_embedding_refuse(op, rank == 0 ? nullptr : "no"), "");
    goes_on();
    expect_refused(imbrex_embedding_update(op, fine.operands.data(), 4, 1, nullptr), "without an optimizer");
    goes_on();

    imbrex_operand_info info{};
    info.size = sizeof info;
    for (const std::int32_t index : {-1, 4, std::numeric_limits<std::int32_t>::max()})
      expect_refused(imbrex_embedding_operand(op, 0, index, &info), "index = ");
    expect_refused(imbrex_embedding_operand(op, 1, 0, &info), "index = 0");
    info.size = 1;
    expect_refused(imbrex_embedding_operand(op, 0, 0, &info), "imbrex_operand_info.size = 1");
    expect_refused(imbrex_embedding_operand(op, 0, 0, nullptr), "is null");
    EXPECT_EQ(imbrex_world_barrier(worlds[0]), IMBREX_OK);
    EXPECT_NE(imbrex_world_destroy(worlds[0]), IMBREX_OK) << "while an operator lives";
    goes_on();
    EXPECT_EQ(imbrex_embedding_destroy(op), IMBREX_OK);
    EXPECT_EQ(imbrex_embedding_destroy(other), IMBREX_OK);
  });
}

TEST(HostileEmbedding, ARankThatNeverCallsEndsTheWait) {
  on_two_ranks(1, 1, [](int rank, imbrex_world** worlds) {
    imbrex_embedding* op = made(worlds[0]);
    Call call(op);
    if (rank == 0) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(imbrex_embedding_run(op, call.operands.data(), 4, nullptr), IMBREX_RUNTIME_FAILURE);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
      EXPECT_NE(std::string(imbrex_error_message()).find("rank 1"), std::string::npos) << imbrex_error_message();
      EXPECT_EQ(imbrex_embedding_run(op, call.operands.data(), 4, nullptr), IMBREX_RUNTIME_FAILURE);
      EXPECT_EQ(imbrex_embedding_report(op, nullptr), IMBREX_RUNTIME_FAILURE);
    } else {
      while (imbrex_world_check(worlds[0]) == IMBREX_OK) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(imbrex_embedding_run(op, call.operands.data(), 4, nullptr), IMBREX_RUNTIME_FAILURE);
    }
    EXPECT_EQ(imbrex_embedding_destroy(op), IMBREX_OK);
  });
}

TEST(HostileEmbedding, ARankThatFailsEndsTheOthersCalls) {
  on_two_ranks(20, 1, [](int rank, imbrex_world** worlds) {
    imbrex_embedding* op = made(worlds[0]);
    Call call(op);
    if (rank == 1) {
      EXPECT_EQ(imbrex_world_fail(worlds[0], "this rank has had enough"), IMBREX_OK);
    } else {
      EXPECT_EQ(imbrex_embedding_run(op, call.operands.data(), 4, nullptr), IMBREX_RUNTIME_FAILURE);
      EXPECT_NE(std::string(imbrex_error_message()).find("had enough"), std::string::npos) << imbrex_error_message();
    }
    EXPECT_EQ(imbrex_embedding_destroy(op), IMBREX_OK);
  });
}

}  // namespace
}  // namespace imbrex
