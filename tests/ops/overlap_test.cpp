// Operands that share memory: what is refused, on every rank, and leaves the operator as it was; and gathers in place,
// whose bits are those of operands that lie apart.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/convert.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "plan/problem.hpp"
#include "support/operators.hpp"
#include "support/random_run.hpp"

namespace imbrex {
namespace {

constexpr WorldOptions roomy{.heap_bytes = 1 << 25, .wait_limit = 60};

// Elements of an operand that has `poison` between its rows, as they lie in memory.
std::vector<std::byte> filled(const OperandInfo& info, std::uint64_t seed, int rank) {
  constexpr std::byte poison{0xff};
  test::Random random(seed * 64 + static_cast<std::uint64_t>(rank) + std::hash<std::string_view>()(info.name));
  const std::int64_t length = info.length(), pitch = info.pitch == 0 ? length : info.pitch;
  const std::size_t size = size_of(info.type);
  std::vector<std::byte> memory(info.bytes(), poison);
  for (std::int64_t line = 0; line < info.lines(); ++line) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < length; ++i) values.push_back(static_cast<float>(random.between(-9999, 9999)) * 1e-4f);
    const std::vector<std::byte> elements = base::elements_of(info.type, values);
    std::memcpy(memory.data() + static_cast<std::size_t>(line * pitch) * size, elements.data(), elements.size());
  }
  return memory;
}

// A call's outputs, with "a" at the place of a rank's rows, usually this one's, of the output of that name, or apart
// from all.
std::map<std::string, std::vector<std::byte>> outputs(World& world, GemmOperator& op, const Problem& problem,
                                                      std::uint64_t seed, std::string_view in = "", bool waits = false,
                                                      int part = -1) {
  std::map<std::string, std::vector<std::byte>> memory;
  std::vector<Operand> operands;
  const std::vector<OperandInfo> infos = operands_of(problem);
  for (const OperandInfo& info : infos)
    memory[std::string(info.name)] =
        info.role == OperandRole::input ? filled(info, seed, world.rank()) : std::vector(info.bytes(), std::byte{0xff});
  for (const OperandInfo& info : infos) {
    std::byte* data = memory[std::string(info.name)].data();
    if (info.name == "a" && !in.empty()) {
      const OperandInfo out = *std::find_if(infos.begin(), infos.end(), [&](auto& other) { return other.name == in; });
      const auto pitch = static_cast<std::size_t>(out.pitch == 0 ? out.cols : out.pitch) * size_of(out.type);
      std::byte* rows = memory[std::string(in)].data() +
                        static_cast<std::size_t>((part < 0 ? world.rank() : part) * info.rows) * pitch;
      const auto row = static_cast<std::size_t>(info.cols) * size_of(info.type);
      for (std::int64_t i = 0; i < info.rows; ++i)
        std::memcpy(rows + static_cast<std::size_t>(i) * pitch, data + static_cast<std::size_t>(i) * pitch, row);
      data = rows;
    }
    operands.push_back(op.operand(info.name, data, problem.m));
  }
  if (waits)
    op.run_and_wait(operands);
  else
    op.run(operands);
  std::erase_if(memory, [&](const auto& entry) {
    return std::none_of(infos.begin(), infos.end(), [&](const OperandInfo& info) {
      return info.name == entry.first && info.role == OperandRole::output;
    });
  });
  return memory;
}

// A random all-gather whose A could be rows of `in`.
Problem gather(test::Random& random, std::string_view in) {
  Problem p;
  p.op = Operator::all_gather_gemm;
  p.ranks = static_cast<int>(random.between(2, 4));
  p.m = p.ranks * random.between(1, 20);
  p.k = random.between(1, 30);
  p.n = in == "out" ? p.k * p.ranks : p.ranks * random.between(1, 20);
  p.bias = random.chance(0.4);
  test::set_type(random, p, random.one_of({Type::bf16, Type::fp16, Type::fp32}));
  p.gathered_a = in == "gathered" || (in != "out" && random.chance(0.5));
  if (in == "out1") p.more_n = {p.k * p.ranks, random.chance(0.5) ? 3 * p.ranks : 0};
  if (in == "gathered") return p;
  const std::int64_t pitch = random.chance(0.5) ? 0 : p.k + random.between(0, 5);
  p.lda = pitch;
  (in == "out" ? p.ldo : p.more_ldo[0]) = pitch;
  return p;
}

TEST(InPlace, GathersGiveTheBitsOfOperandsApart) {
  const std::uint64_t seed = test::seed_from_environment();
  test::Random random(seed);
  int cases[4] = {};
  for (int i = 0; i < 60; ++i) {
    const std::string_view in =
        std::vector<std::string_view>{"out", "gathered", "out1"}[static_cast<std::size_t>(i % 3)];
    Problem p = gather(random, in);
    OperatorOptions options = test::on_cpu();
    options.strategy = random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled});
    // It takes one B.
    if (in != "out" && *options.strategy == Strategy::signaled) options.strategy = Strategy::fused;
    options.knobs = test::random_knobs(random, p, *options.strategy);
    options.knobs->groups = {};
    options.cpu.workers = static_cast<int>(random.between(1, 3));
    options.cpu.testing = {.delays = random.chance(0.3) ? seed + 1 : 0, .max_delay = 1e-4};
    const bool any_m = random.chance(0.5);
    const std::int64_t less = any_m ? p.ranks * random.between(1, p.m / p.ranks) : p.m;
    ++cases[static_cast<int>(*options.strategy)];
    SCOPED_TRACE("seed " + std::to_string(seed) + ", in " + std::string(in) + ": " +
                 test::describe({p, *options.strategy, *options.knobs}));
    const auto body = [&](World& world) {
      GemmShape shape = test::shape_of(p);
      shape.any_m = any_m;
      const auto op = test::make_operator(world, p.op, shape, options);
      for (const std::int64_t m : {p.m, less, p.m}) {
        Problem of_m = p;
        of_m.m = m;
        const auto apart = outputs(world, *op, of_m, seed), in_place = outputs(world, *op, of_m, seed, in),
                   waited = outputs(world, *op, of_m, seed, in, true),
                   mixed = outputs(world, *op, of_m, seed, world.rank() == 0 ? in : ""),
                   first = outputs(world, *op, of_m, seed, in, false, 0);
        if (apart != in_place || apart != waited || apart != mixed || apart != first) return 1;
        if (outputs(world, *op, of_m, seed) != apart) return 2;
      }
      return 0;
    };
    ASSERT_EQ(i % 10 == 0 ? run_processes(p.ranks, roomy, body) : run_threads(p.ranks, roomy, body), 0);
  }
  for (const int count : cases) EXPECT_GT(count, 2);
}

// An operator that chooses for itself, and codes of e4m3, of which only the gathered A has A's type.
TEST(InPlace, GathersOfE4m3AndOfAChosenPlan) {
  for (const Type type : {Type::e4m3, Type::bf16})
    for (const Scales scales : {Scales::none, Scales::row}) {
      if (type != Type::e4m3 && scales != Scales::none) continue;
      const Problem p{.op = Operator::all_gather_gemm,
                      .m = 48,
                      .n = 96,
                      .k = 32,
                      .ranks = 3,
                      .type = type,
                      .scales = scales,
                      .gathered_a = true};
      EXPECT_EQ(run_threads(3, roomy,
                            [&](World& world) {
                              const auto op = test::make_operator(world, p.op, test::shape_of(p), test::on_cpu());
                              const auto apart = outputs(world, *op, p, 3);
                              for (int i = 0; i < 3; ++i)
                                if (outputs(world, *op, p, 3, "gathered", i == 1) != apart) return 1;
                              return type == Type::e4m3 || outputs(world, *op, p, 3, "out") == apart ? 0 : 2;
                            }),
                0);
    }
}

// Every input of every operator, by all ranks; the next call is right.
TEST(Overlaps, AreRefusedOnEveryRank) {
  for (const Operator kind :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const bool any_m : {false, true}) {
      Problem p{.op = kind, .m = 8, .n = 8, .k = 12, .ranks = 2, .type = Type::fp32, .bias = true};
      if (kind == Operator::all_gather_gemm) p.more_n = {6, 0}, p.gathered_a = true;
      const auto body = [&](World& world) {
        GemmShape shape = test::shape_of(p);
        shape.any_m = any_m;
        const auto op = test::make_operator(world, kind, shape, test::on_cpu());
        const auto right = outputs(world, *op, p, 7);
        std::vector<std::vector<std::byte>> memory;
        std::vector<Operand> good;
        for (const OperandInfo& info : operands_of(p)) {
          memory.push_back(filled(info, 7, world.rank()));
          memory.back().resize(memory.back().size() + 4096);
          good.push_back(op->operand(info.name, memory.back().data(), p.m));
        }
        int refused = 0;
        for (const Operand& out : good) {
          if (!out.name.starts_with("out") && out.name != "gathered") continue;
          for (std::size_t i = 0; i < good.size(); ++i) {
            if (good[i].name == out.name) continue;
            std::vector<Operand> bad = good;
            // Its first element is the output's last but one.
            const OperandInfo info = *std::find_if(op->operands().begin(), op->operands().end(),
                                                   [&](const OperandInfo& of) { return of.name == out.name; });
            bad[i].view.data = static_cast<std::byte*>(out.view.data) + info.bytes() - 8;
            for (const bool waits : {false, true}) {
              const std::string message = test::error_of([&] {
                if (waits)
                  op->run_and_wait(bad);
                else
                  op->run(bad);
              });
              if (message.find(" overlaps operand ") == std::string::npos ||
                  message.find("an output must be apart from every other operand") == std::string::npos)
                return 1;
              ++refused;
            }
          }
          world.barrier();  // ranks may be so many refusals apart, not all of these
        }
        EXPECT_EQ(refused, 2 * (kind == Operator::all_gather_gemm ? 3 * 7 : 3));
        return outputs(world, *op, p, 7) == right ? 0 : 2;
      };
      EXPECT_EQ(run_threads(2, roomy, body), 0) << name_of(kind);
    }
}

TEST(Overlaps, ThatOneRankGivesEndOnAll) {
  std::string messages[2];
  run_threads(2, {.heap_bytes = 1 << 22, .wait_limit = 20}, [&](World& world) {
    GemmAllReduce op(world, {.m = 8, .n = 8, .k = 16, .type = Type::fp32}, test::on_cpu());
    std::vector<float> a(64), b(64), out(64);
    messages[world.rank()] = test::error_of([&] {
      op.run({op.operand("a", a.data()), op.operand("b", b.data()),
              op.operand("out", world.rank() == 0 ? a.data() : out.data())});
    });
    return 0;
  });
  for (const std::string& message : messages)
    EXPECT_NE(message.find("overlaps operand a"), std::string::npos) << message;
}

// Halves of one buffer's columns: A, and a place for the result.
TEST(Overlaps, AreNoneWhereRowsInterleave) {
  const int code = run_threads(2, roomy, [](World& world) {
    constexpr std::int64_t m = 6, k = 5, n = 4, pitch = 9;
    GemmAllReduce op(world, {.m = m, .n = n, .k = 2 * k, .type = Type::fp32, .lda = pitch, .ldo = pitch},
                     test::on_cpu());
    std::vector<float> buffer(static_cast<std::size_t>(m * pitch)), b(static_cast<std::size_t>(k * n), 2);
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<float>(i / 9 + 1);
    op.run({op.operand("a", buffer.data()), op.operand("b", b.data()), op.operand("out", buffer.data() + k)});
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      const float row = static_cast<float>(i / 9 + 1);
      if (buffer[i] != (i % 9 < static_cast<std::size_t>(k) ? row : 2 * 2 * 5 * row)) return 1;
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// In place: in a block of that number.
std::vector<std::byte> exchanged(Exchange& op, World& world, ExchangeKind kind, Type type, std::int64_t count,
                                 std::optional<int> in_place) {
  const bool gather = kind == ExchangeKind::all_gather, scatter = kind == ExchangeKind::reduce_scatter;
  const OperandInfo block{"in", OperandRole::input, type, 1, count},
      blocks{"in", OperandRole::input, type, world.size(), count};
  std::vector<std::byte> in = filled(gather ? block : blocks, 5, world.rank()),
                         out((scatter ? block : blocks).bytes(), std::byte{0xff});
  const std::size_t own = static_cast<std::size_t>(in_place.value_or(0)) * block.bytes();
  std::byte *from = in.data(), *to = out.data();
  if (in_place && gather) {
    std::memcpy(to + own, from, in.size());
    from = to + own;
  }
  if (in_place && scatter) to = from + own;
  op.run({{"in", View::vector(from, type, gather ? count : world.size() * count)},
          {"out", View::vector(to, type, scatter ? count : world.size() * count)}});
  return {to, to + out.size()};
}

TEST(InPlace, ExchangesGiveTheBitsOfOperandsApart) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (const ExchangeKind kind : {ExchangeKind::all_gather, ExchangeKind::reduce_scatter})
      for (const char* codec : {"", "int4", "fp8"})
        EXPECT_EQ(run_threads(ranks, roomy,
                              [&](World& world) {
                                for (const Type type : {Type::fp32, Type::bf16}) {
                                  ExchangeOptions options;
                                  if (*codec) options.codec = parse_codec(codec);
                                  Exchange op(world, kind, 70000, type, options, Device::cpu);
                                  for (const std::int64_t count : {70000, 1, 130}) {
                                    const auto apart = exchanged(op, world, kind, type, count, {});
                                    const ExchangeReport told = op.report();
                                    for (const int block : {world.rank(), 0, world.size() - 1})
                                      if (exchanged(op, world, kind, type, count, block) != apart) return 1;
                                    if (op.report().largest_error != told.largest_error) return 2;
                                  }
                                }
                                return 0;
                              }),
                  0)
            << name_of(kind) << " of " << ranks << " " << codec;
}

TEST(Overlaps, OfExchangesAreRefusedButInPlace) {
  const int code = run_threads(2, roomy, [](World& world) {
    std::vector<float> memory(64);
    const auto refusal = [&](ExchangeKind kind, std::int64_t in, std::int64_t out) {
      Exchange op(world, kind, 8, Type::fp32, {}, Device::cpu);
      return test::error_of([&] {
        op.run({{"in", View::vector(memory.data() + in, Type::fp32, kind == ExchangeKind::all_gather ? 8 : 16)},
                {"out", View::vector(memory.data() + out, Type::fp32, kind == ExchangeKind::reduce_scatter ? 8 : 16)}});
      });
    };
    using enum ExchangeKind;
    for (const std::int64_t block : {8, 0}) {
      EXPECT_EQ(refusal(all_gather, block, 0), "");
      EXPECT_EQ(refusal(reduce_scatter, 0, block), "");
    }
    for (const std::int64_t place : {1, 7, 9, 15}) {
      EXPECT_TRUE(refusal(all_gather, place, 0).ends_with(": they must be apart, or in be a block of out"));
      EXPECT_TRUE(refusal(reduce_scatter, 0, place).ends_with(": they must be apart, or out be a block of in"));
    }
    EXPECT_TRUE(refusal(all_gather, 0, 1).ends_with(": they must be apart, or in be a block of out"));
    EXPECT_TRUE(refusal(all_to_all, 0, 0).ends_with(": they must be apart"));
    EXPECT_EQ(refusal(all_to_all, 0, 16), "");
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// Two tables of four columns for each of two ranks, which may be columns of one matrix.
TEST(Overlaps, OfEmbeddingsAreRefused) {
  const int code = run_threads(2, roomy, [](World& world) {
    EmbeddingShape shape;
    for (int i = 0; i < 4; ++i) shape.tables.push_back({.rows = 6, .dim = 4, .hotness = 1});
    for (int i = 0; i < 4; ++i) shape.shards.push_back({.table = i, .rank = i / 2, .begin = 0, .end = 4});
    shape.batch = 2, shape.out = Type::fp32, shape.optimizer = Optimizer::row_wise_adagrad;
    EmbeddingAllToAll op(world, shape, test::on_cpu());
    struct alignas(16) Memory {
      float tables[6 * 8], states[2][6], matrix[16];
      std::int64_t indices[4] = {0, 1, 2, 3}, offsets[5] = {0, 1, 2, 3, 4};
    };
    const auto call = [&](const std::function<void(Memory&, std::vector<Operand>&)>& spoil, bool update) {
      Memory memory{};
      std::fill_n(memory.tables, 48, 1.0f);
      std::vector<Operand> operands;
      for (int i = 0; i < 2; ++i) {
        operands.push_back(op.operand(i == 0 ? "rows0" : "rows1", memory.tables + 4 * i));
        operands.back().view.strides[0] = 8;
      }
      operands.push_back(op.operand("indices", memory.indices, 4));
      operands.push_back(op.operand("offsets", memory.offsets));
      operands.push_back(op.operand(update ? "gradients" : "out", memory.matrix));
      if (update)
        for (int i = 0; i < 2; ++i) operands.push_back(op.operand(i == 0 ? "states0" : "states1", memory.states[i]));
      spoil(memory, operands);
      return test::error_of([&] {
        if (update)
          op.update(operands, 0.1f);
        else
          op.run(operands);
      });
    };
    const auto refused = [&](bool update, const char* what, const char* by, std::size_t moved, auto&& place) {
      const std::string message =
          call([&](Memory& m, std::vector<Operand>& o) { o[moved].view.data = place(m); }, update);
      EXPECT_NE(message.find(std::string("operand ") + what + " at "), std::string::npos) << message;
      EXPECT_NE(message.find(std::string(" overlaps operand ") + by + " at "), std::string::npos) << message;
      EXPECT_NE(message.find(": what is written must be apart from every other operand"), std::string::npos) << message;
    };
    const auto nothing = [](Memory&, std::vector<Operand>&) {};
    for (int round = 0; round < 2; ++round) {
      // Rows of the two tables interleave; inputs of a lookup may be one.
      EXPECT_EQ(call(nothing, false), "");
      EXPECT_EQ(call(nothing, true), "");
      EXPECT_EQ(call([](Memory& m, std::vector<Operand>& o) { o[1].view.data = m.tables; }, false), "");
      refused(false, "out", "rows1", 4, [](Memory& m) { return m.tables + 44; });
      refused(false, "out", "indices", 4, [](Memory& m) { return m.indices; });
      refused(false, "out", "offsets", 3, [](Memory& m) { return m.matrix + 14; });
      refused(true, "rows0", "rows1", 1, [](Memory& m) { return m.tables; });
      refused(true, "rows0", "gradients", 4, [](Memory& m) { return m.tables; });
      refused(true, "rows1", "indices", 2, [](Memory& m) { return m.tables + 44; });
      refused(true, "states1", "offsets", 3, [](Memory& m) { return m.states[1] + 4; });
      refused(true, "states0", "states1", 6, [](Memory& m) { return m.states[0] + 5; });
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
