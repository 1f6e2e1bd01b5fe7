// The collectives as users call them, on the CPU.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex {
namespace {

constexpr WorldOptions roomy{.heap_bytes = 1 << 24, .wait_limit = 30};

View view_of(std::vector<float>& values) { return View::vector(values.data(), Type::fp32, std::ssize(values)); }

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Collectives, AddUp) {
  const int code = run_processes(3, roomy, [](World& world) {
    AllReduce op{world, 600, Type::fp32, {}, Device::cpu};
    std::vector<float> in(600), out(600);
    for (int count : {600, 1, 0, 24}) {
      for (int i = 0; i < count; ++i) in[static_cast<std::size_t>(i)] = static_cast<float>(i + world.rank());
      const View view{in.data(), Type::fp32, 2, {count / 4, 4}, {4, 1}};
      if (count % 4 == 0)
        op.run({{"out", View::vector(out.data(), Type::fp32, count)}, {"in", view}});
      else
        op.run(
            {{"in", View::vector(in.data(), Type::fp32, count)}, {"out", View::vector(out.data(), Type::fp32, count)}});
      for (int i = 0; i < count; ++i)
        if (out[static_cast<std::size_t>(i)] != static_cast<float>(3 * i + 3)) return 1;
    }
    op.synchronize();
    return op.device() == Device::cpu && op.report().exact ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

TEST(Collectives, ExchangeBlocks) {
  const int code = run_threads(2, roomy, [](World& world) {
    const auto rank = static_cast<float>(world.rank());
    std::vector<float> one{rank + 1, rank + 2}, two{rank, rank + 10, rank + 20, rank + 30}, small(2), large(4);
    const auto run = [&](ExchangeKind kind, std::vector<float>& in, std::vector<float>& out) {
      Exchange op{world, kind, 2, Type::fp32, {}, Device::cpu};
      op.run({{"in", view_of(in)}, {"out", view_of(out)}});
      return out;
    };
    using V = std::vector<float>;
    EXPECT_EQ(run(ExchangeKind::all_gather, one, large), (V{1, 2, 2, 3}));
    EXPECT_EQ(run(ExchangeKind::reduce_scatter, two, small), world.rank() == 0 ? (V{1, 21}) : (V{41, 61}));
    EXPECT_EQ(run(ExchangeKind::all_to_all, two, large), world.rank() == 0 ? (V{0, 10, 1, 11}) : (V{20, 30, 21, 31}));
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(Collectives, NormalizeRowsWithOrWithoutAResidual) {
  const int code = run_threads(2, roomy, [](World& world) {
    AllReduceRmsNorm op{world, 2, 4, Type::fp32, {.eps = 0}, Device::cpu};
    std::vector<float> in(8, 1), residual(8, 2), weight(4, 3), sum(8), out(8);
    op.run({{"in", view_of(in)}, {"weight", view_of(weight)}, {"residual_out", view_of(sum)}, {"out", view_of(out)}});
    EXPECT_EQ(sum, std::vector<float>(8, 2));
    EXPECT_EQ(out, std::vector<float>(8, 3));
    op.run({{"in", view_of(in)},
            {"residual", view_of(residual)},
            {"weight", view_of(weight)},
            {"residual_out", view_of(sum)},
            {"out", view_of(out)}});
    EXPECT_EQ(sum, std::vector<float>(8, 4));
    EXPECT_EQ(out, std::vector<float>(8, 3));
    EXPECT_NE(op.algorithm_of(2), AllReduceAlgorithm::automatic);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// A rank that refuses its call makes one of the same size all the same, with a weight of as many bytes.
TEST(Collectives, NormalizeRowsByAWeightOfFp32) {
  const int code = run_threads(2, roomy, [](World& world) {
    AllReduceRmsNorm op{world, 2, 4, Type::bf16, {.eps = 0, .weight_type = Type::fp32}, Device::cpu};
    std::vector<std::uint16_t> in(8, 0x3f80), sum(8), out(8);  // 1
    std::vector<float> weight(4, 1 + 0x1p-7f), large(4, 0x1p120f);
    const auto rows = [](std::vector<std::uint16_t>& of) { return View::matrix(of.data(), Type::bf16, 2, 4); };
    const auto call = [&](const View& by) {
      op.run({{"in", rows(in)}, {"weight", by}, {"residual_out", rows(sum)}, {"out", rows(out)}});
    };
    call(view_of(weight));
    EXPECT_EQ(sum, std::vector<std::uint16_t>(8, 0x4000));  // 2
    EXPECT_EQ(out, std::vector<std::uint16_t>(8, 0x3f81));
    const std::string own =
        error_of([&] { call(world.rank() == 1 ? View::vector(in.data(), Type::bf16, 4) : view_of(weight)); });
    EXPECT_TRUE(own.ends_with("operand weight is of type bf16; it must be fp32")) << own;
    call(view_of(large));
    EXPECT_EQ(out, std::vector<std::uint16_t>(8, 0x7b80));  // 2^120
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(Collectives, RefuseOperandsThatDoNotFit) {
  const int code = run_threads(2, roomy, [](World& world) {
    AllReduce op{world, 8, Type::fp32, {}, Device::cpu};
    Exchange gather{world, ExchangeKind::all_gather, 8, Type::fp32, {}, Device::cpu};
    AllReduceRmsNorm norm{world, 2, 4, Type::fp32, {}, Device::cpu};
    std::vector<float> eight(8), nine(9);
    const auto refused = [&](const std::vector<Operand>& operands, const std::string& message) {
      EXPECT_EQ(error_of([&] { op.run(operands); }), message);
    };
    const View good = view_of(eight);
    refused({{"in", good}}, "operand out is missing; this collective's operands are in, out");
    refused({{"in", good}, {"out", good}, {"in", good}}, "operand in is given twice");
    refused({{"in", good}, {"to", good}},
            "operand to: this collective has no operand of that name; its operands are in, out");
    refused({{"in", good}, {"out", View::vector(eight.data(), Type::fp32, 7)}},
            "operand out has 7 elements, operand in 8; they must be equal");
    refused({{"in", View::vector(eight.data(), Type::bf16, 8)}, {"out", good}},
            "operand in is of type bf16; it must be fp32");
    refused({{"in", View::vector(static_cast<void*>(nullptr), Type::fp32, 8)}, {"out", good}},
            "operand in: its address is null");
    refused({{"in", View{eight.data(), Type::fp32, 2, {2, 4}, {5, 1}}}, {"out", good}},
            "operand in: extent 0 has a stride of 5 elements; it must be 4, as operands have no gaps");
    refused({{"in", View{eight.data(), Type::fp32, 7}}, {"out", good}},
            "an operand has 7 extents; there may be 0 to 4");
    refused({{"in", View::vector(eight.data(), Type::fp32, -8)}, {"out", good}},
            "an operand has an extent of -8: extents are not negative, and their product is at most 2^40");
    refused({{"in", View{eight.data(), Type::fp32, 3, {1 << 20, 1 << 20, 1 << 20}, {0, 0, 1}}}, {"out", good}},
            "an operand has an extent of 1048576: extents are not negative, and their product is at most 2^40");
    refused({{"in", view_of(nine)}, {"out", view_of(nine)}},
            "operand in holds 9 elements for each rank; this object is for up to 8");
    const std::string overlap = error_of([&] {
      op.run({{"in", View::vector(nine.data(), Type::fp32, 8)}, {"out", View::vector(nine.data() + 1, Type::fp32, 8)}});
    });
    EXPECT_TRUE(overlap.ends_with(": they must be apart, or the same memory")) << overlap;
    const std::string odd = error_of([&] {
      op.run({{"in", View::vector(reinterpret_cast<std::byte*>(nine.data()) + 1, Type::fp32, 8)}, {"out", good}});
    });
    EXPECT_TRUE(odd.ends_with(": it must be aligned to its elements of 4 bytes")) << odd;
    EXPECT_EQ(error_of([&] {
                gather.run({{"in", good}, {"out", good}});
              }),
              "operand in has 8 elements and operand out 8; all_gather takes a block and gives one from each rank");
    EXPECT_EQ(error_of([&] {
                norm.run({{"in", view_of(nine)}, {"weight", good}, {"residual_out", good}, {"out", good}});
              }),
              "operand in has 9 elements; it must have rows of 4");
    EXPECT_EQ(error_of([&] {
                norm.run({{"in", good}, {"weight", good}, {"residual_out", good}, {"out", good}});
              }),
              "operand weight has 8 elements; it must have 4");
    EXPECT_NE(error_of([&] {
                op.run({{"in", good}, {"out", good}}, reinterpret_cast<CudaStream>(eight.data()));
              }).find("works on the CPU"),
              std::string::npos);
    op.run({{"in", good}, {"out", good}});  // nothing has happened
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(Collectives, WhatOneRankRefusesEndsOnAll) {
  const auto body = [](World& world) {
    AllReduce op{world, 8, Type::fp32, {}, Device::cpu};
    std::vector<float> values(8);
    world.barrier();
    const Type type = world.rank() == 1 ? Type::bf16 : Type::fp32;
    const auto begin = std::chrono::steady_clock::now();
    const std::string own = error_of([&] {
      op.run({{"in", View::vector(values.data(), type, 8)}, {"out", view_of(values)}});
    });
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(2)) return 1;
    return own.ends_with("operand in is of type bf16; it must be fp32") && (world.rank() == 1) == own.starts_with("op")
               ? 0
               : 1;
  };
  EXPECT_EQ(run_threads(3, roomy, body), 0);
  EXPECT_EQ(run_processes(3, roomy, body), 0);
}

TEST(Collectives, AgreeOnTheDevice) {
  const int code = run_threads(2, roomy, [](World& world) {
    const Device device = world.rank() == 0 ? Device::cpu : Device::automatic;
    const std::string own = error_of([&] { AllReduce{world, 8, Type::fp32, {}, device}; });
    return own.starts_with("ranks disagree on a collective: ") ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
