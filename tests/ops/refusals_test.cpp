// Calls that some ranks refuse: every rank gets the reason, and the next call is right.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "imbrex/collectives.hpp"
#include "imbrex/embedding.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "runtime/calls.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

constexpr WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 20};

OperatorOptions on_cpu() {
  OperatorOptions cpu;
  cpu.device = Device::cpu;
  return cpu;
}

int run(int ranks, bool processes, const std::function<int(World&)>& body) {
  return processes ? run_processes(ranks, options, body) : run_threads(ranks, options, body);
}

// What a call gave: text of its Error(invalid_input), or nothing.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_input ? error.what() : std::string("failed: ") + error.what();
  }
  return "";
}

// Objects of a world, whose calls all have `value` in each operand of every rank.
class Objects {
 public:
  static constexpr int kinds = 8;

  explicit Objects(World& world)
      : world_(world),
        ranks_(world.size()),
        sum_(world, {.m = 4, .n = 8, .k = 4 * ranks_, .type = Type::fp32}, on_cpu()),
        any_(world, {.m = 8, .n = 8, .k = 4 * ranks_, .type = Type::fp32, .any_m = true}, on_cpu()),
        scatter_(world, {.m = 4 * ranks_, .n = 8, .k = 4 * ranks_, .type = Type::fp32}, on_cpu()),
        gather_(world, {.m = 4 * ranks_, .n = 8 * ranks_, .k = 4, .type = Type::fp32}, on_cpu()),
        reduce_(world, 64, Type::fp32, {}, Device::cpu),
        norm_(world, 8, 16, Type::fp32, {}, Device::cpu),
        exchange_(world, ExchangeKind::all_to_all, 16, Type::fp32, {}, Device::cpu),
        look_up_(world, tables(2 * ranks_), on_cpu()) {}

  /// Whether calls of one object may have different sizes.
  static bool has_sizes(int kind) { return kind == 1 || (kind >= 4 && kind <= 6); }

  // Returns whether the results are right. `wrong`: an operand is null. `m`: rows, elements, where calls have sizes.
  bool call(int kind, float value, std::int64_t m, bool wrong) {
    const auto rows = static_cast<std::size_t>(m);
    const auto r = static_cast<float>(ranks_);
    switch (kind) {
      case 0: return product(sum_, 4, 4, 4, 8, value, 4 * r * value * value, wrong);
      case 1: return product(any_, m, 4, m, 8, value, 4 * r * value * value, wrong);
      case 2: return product(scatter_, 4 * ranks_, 4, 4, 8, value, 4 * r * value * value, wrong);
      case 3: return product(gather_, 4, 4, 4 * ranks_, 8, value, 4 * value * value, wrong);
      case 4: {
        std::vector<float> x(3 * rows, value), y(x.size());
        reduce_.run({{"in", View::vector(wrong ? nullptr : x.data(), Type::fp32, 3 * m)},
                     {"out", View::vector(y.data(), Type::fp32, 3 * m)}});
        return all(y, r * value);
      }
      case 5: {
        std::vector<float> x(16 * rows, value), w(16, 1), s(x.size()), y(x.size());
        norm_.run({{"in", View::vector(x.data(), Type::fp32, 16 * m)},
                   {"weight", View::vector(w.data(), Type::fp32, wrong ? 15 : 16)},
                   {"residual_out", View::vector(s.data(), Type::fp32, 16 * m)},
                   {"out", View::vector(y.data(), Type::fp32, 16 * m)}});
        return all(s, r * value);
      }
      case 6: {
        std::vector<float> x(rows * static_cast<std::size_t>(ranks_), value), y(x.size());
        exchange_.run({{"in", View::vector(x.data(), Type::fp32, m * ranks_)},
                       {"out", View::vector(y.data(), Type::fp32, wrong ? m * ranks_ - 1 : m * ranks_)}});
        return all(y, value);
      }
      default: return look_up(value, wrong);
    }
  }

 private:
  static EmbeddingShape tables(std::int64_t batch) {
    EmbeddingShape shape;
    shape.tables = {{.rows = 4, .dim = 4}, {.rows = 4, .dim = 4}};
    shape.batch = batch;
    shape.optimizer = Optimizer::sgd;
    return shape;
  }

  static bool all(const std::vector<float>& y, float value) {
    for (const float one : y)
      if (one != value) return false;
    return true;
  }

  bool product(GemmOperator& op, std::int64_t m, std::int64_t k, std::int64_t rows, std::int64_t n, float value,
               float result, bool wrong) {
    std::vector<float> a(static_cast<std::size_t>(m * k), value), b(static_cast<std::size_t>(k * n), value),
        out(static_cast<std::size_t>(rows * n));
    op.run({{"a", View::matrix(wrong ? nullptr : a.data(), Type::fp32, m, k)},
            {"b", View::matrix(b.data(), Type::fp32, k, n)},
            {"out", View::matrix(out.data(), Type::fp32, rows, n)}});
    return all(out, result);
  }

  // Every row of every table is `value` but what an update of rate 0 leaves as it is; bags of one row.
  bool look_up(float value, bool wrong) {
    std::vector<std::vector<float>> rows;
    std::vector<Operand> operands;
    std::vector<std::int64_t> indices, offsets{0};
    std::vector<float> out(static_cast<std::size_t>(2 * 8));
    for (const EmbeddingOperand& info : look_up_.operands()) {
      if (info.name.starts_with("rows")) {
        rows.emplace_back(16, value);
        operands.push_back(look_up_.operand(info.name, rows.back().data()));
        for (int i = 0; i < 2 * ranks_; ++i) indices.push_back(i % 4), offsets.push_back(std::ssize(offsets));
      }
    }
    for (const EmbeddingOperand& info : look_up_.operands()) {
      if (info.name == "indices") operands.push_back(look_up_.operand(info.name, indices.data(), std::ssize(indices)));
      if (info.name == "offsets") operands.push_back(look_up_.operand(info.name, offsets.data()));
      if (info.name == "out") operands.push_back(look_up_.operand(info.name, wrong ? nullptr : out.data()));
    }
    look_up_.run(operands);
    return all(out, value);
  }

  World& world_;
  int ranks_;
  GemmAllReduce sum_, any_;
  GemmReduceScatter scatter_;
  AllGatherGemm gather_;
  AllReduce reduce_;
  AllReduceRmsNorm norm_;
  Exchange exchange_;
  EmbeddingAllToAll look_up_;
};

// Every rank draws the same; some refuse in the library, some before it, at different times.
int random_calls(World& world, std::uint64_t seed, int calls) {
  Objects objects(world);
  test::Random random(seed), own(seed + 1000 + static_cast<std::uint64_t>(world.rank()));
  int wrong = 0;
  for (int i = 0; i < calls; ++i) {
    int kind = static_cast<int>(random.between(0, Objects::kinds - 1));
    const auto value = static_cast<float>(random.between(1, 9));
    std::int64_t m = random.between(1, 8);
    // No rank, some, or all.
    const std::int64_t among = random.between(0, 5);
    std::vector<int> how;
    bool refused = false;
    for (int r = 0; r < world.size(); ++r) {
      how.push_back(among < 3    ? 0
                    : among == 5 ? static_cast<int>(random.between(1, 2))
                                 : static_cast<int>(random.between(0, 3) % 3));
      refused = refused || how.back() != 0;
    }
    // The first rank says what the call is, and how large. Others that call another object, or with another size,
    // refuse that, besides what they refuse anyway.
    const auto own_of = [&](auto usual, auto other) {
      std::vector<decltype(usual)> all;
      for (int r = 0; r < world.size(); ++r) all.push_back(random.chance(0.5) ? usual : other);
      const auto mine = all[static_cast<std::size_t>(world.rank())];
      for (const auto one : all) refused = refused || one != mine;
      return mine;
    };
    if (random.chance(0.25))
      kind = own_of(kind, static_cast<int>(random.between(0, Objects::kinds - 1)));
    else if (Objects::has_sizes(kind) && random.chance(0.25))
      m = own_of(m, random.between(1, 8));
    if (own.between(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own.between(0, 500)));
    const int mine = how[static_cast<std::size_t>(world.rank())];
    bool right = false;
    const std::string told = refusal_of([&] {
      if (mine == 2) {
        runtime::calls_of(world).refuse("what its front refuses");
        throw Error(ErrorCode::invalid_input, "what its front refuses");
      }
      right = objects.call(kind, value, m, mine == 1);
    });
    const bool as_wanted = refused ? !told.empty() && !told.starts_with("failed") : right;
    if (as_wanted) continue;
    ++wrong;
    ADD_FAILURE() << "rank " << world.rank() << " of " << world.size() << ", seed " << seed << ", call " << i
                  << " of kind " << kind << (refused ? " that some refuse" : "") << ": "
                  << (told.empty() ? "another result, or none" : told);
    break;
  }
  return wrong == 0 ? 0 : 1;
}

TEST(Refusals, ReachEveryRankAndTheNextCallIsRight) {
  const std::uint64_t seed = test::seed_from_environment();
  for (const bool processes : {false, true})
    for (const int ranks : {1, 2, 3, 4})
      EXPECT_EQ(run(ranks, processes,
                    [&](World& world) { return random_calls(world, seed + static_cast<std::uint64_t>(ranks), 150); }),
                0)
          << ranks << (processes ? " processes" : " threads") << ", seed " << seed;
}

// The reason and the rank are named, however late a rank comes.
TEST(Refusals, NameTheRankAndItsReason) {
  for (const bool refuser_first : {false, true})
    for (const bool processes : {false, true})
      EXPECT_EQ(run(3, processes,
                    [&](World& world) {
                      Objects objects(world);
                      world.barrier();
                      if ((world.rank() == 1) != refuser_first)
                        std::this_thread::sleep_for(std::chrono::milliseconds(30));
                      const auto begin = std::chrono::steady_clock::now();
                      const std::string told = refusal_of([&] { objects.call(0, 2, 1, world.rank() == 1); });
                      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
                      EXPECT_LT(took.count(), 10);
                      EXPECT_NE(told.find("operand a: its address is null"), std::string::npos) << told;
                      EXPECT_TRUE(world.rank() == 1 || told.starts_with("rank 1 refused this call: ")) << told;
                      EXPECT_TRUE(objects.call(0, 3, 1, false));
                      return testing::Test::HasFailure() ? 1 : 0;
                    }),
                0);
}

// The first rank says the size. All others that have another one name both, and stand in; no rank gets a result.
TEST(Refusals, NameSizesThatDiffer) {
  const auto body = [](World& world) {
    Objects objects(world);
    constexpr const char* names[] = {"M = 3, another rank with 2", "elements = 9, another rank with 6",
                                     "rows = 3, another rank with 2", "elements of a block = 3, another rank with 2"};
    int i = 0;
    for (const int kind : {1, 4, 5, 6}) {
      const std::string name = names[i++];
      const auto begin = std::chrono::steady_clock::now();
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::string told = refusal_of([&] { objects.call(kind, 2, world.rank() == 1 ? 3 : 2, false); });
      const std::string reason = "rank 1 calls with " + name + ": it must be the same on every rank";
      EXPECT_EQ(told, world.rank() == 1 ? reason : "rank 1 refused this call: " + reason);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      EXPECT_TRUE(objects.call(kind, 3, 3, false));
    }
    return testing::Test::HasFailure() ? 1 : 0;
  };
  for (const bool processes : {false, true})
    for (const int ranks : {2, 3}) EXPECT_EQ(run(ranks, processes, body), 0) << ranks << " ranks";
}

// Ranks that call different objects do not wait for each other.
TEST(Refusals, NameObjectsThatDiffer) {
  const auto body = [](World& world) {
    Objects objects(world);
    for (int kind = 0; kind < Objects::kinds; ++kind) {
      const int other = (kind + 3) % Objects::kinds;
      const auto begin = std::chrono::steady_clock::now();
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::string told = refusal_of([&] { objects.call(world.rank() == 1 ? other : kind, 2, 2, false); });
      const std::string reason = "rank 1 calls one object with ";
      const bool agrees = kind == 7 || other == 7;  // lookups of all ranks begin with an agreement, which says so
      EXPECT_NE(told, "");
      EXPECT_FALSE(told.starts_with("failed")) << told;
      EXPECT_TRUE(agrees || told.starts_with(world.rank() == 1 ? reason : "rank 1 refused this call: " + reason))
          << told;
      EXPECT_TRUE(agrees || told.ends_with(": the ranks' calls differ")) << told;
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      EXPECT_TRUE(objects.call(kind, 3, 3, false));
      EXPECT_TRUE(objects.call(other, 3, 3, false));
    }
    return testing::Test::HasFailure() ? 1 : 0;
  };
  for (const bool processes : {false, true})
    for (const int ranks : {2, 3}) EXPECT_EQ(run(ranks, processes, body), 0) << ranks << " ranks";
}

// A rank that goes to make an object for its call hears of the refusal there.
TEST(Refusals, EndTheMakingOfAnObject) {
  for (const bool refuser_first : {false, true})
    EXPECT_EQ(run(3, true,
                  [&](World& world) {
                    Objects objects(world);
                    world.barrier();
                    if ((world.rank() == 2) != refuser_first)
                      std::this_thread::sleep_for(std::chrono::milliseconds(30));
                    runtime::Calls& calls = runtime::calls_of(world);
                    const std::string told = refusal_of([&] {
                      try {
                        if (world.rank() == 2) throw Error(ErrorCode::invalid_input, "x is of type fp64");
                        const AllReduce made(world, 8, Type::fp32, {}, Device::cpu);
                      } catch (const Error& error) {  // as a front does that makes objects for calls
                        calls.refuse(error.what());
                        throw;
                      }
                    });
                    EXPECT_NE(told.find("x is of type fp64"), std::string::npos) << told;
                    AllReduce made(world, 8, Type::fp32, {}, Device::cpu);
                    for (int kind = 0; kind < Objects::kinds; ++kind)
                      EXPECT_TRUE(objects.call(kind, 2, 3, false)) << kind;
                    return testing::Test::HasFailure() ? 1 : 0;
                  }),
              0);
}

TEST(Refusals, CallsWithoutRowsAreLegalWhereNoRankHasSome) {
  for (const int ranks : {1, 2, 4})
    EXPECT_EQ(run(ranks, true,
                  [&](World& world) {
                    Objects objects(world);
                    test::Random random(7), own(world.rank() + 1);
                    for (int i = 0; i < 200; ++i) {
                      // Which ranks have rows; now and then a rank refuses its rows.
                      const std::int64_t kind = random.between(0, 3);
                      int with = 0, refusers = 0, mine = 0;
                      for (int r = 0; r < world.size(); ++r) {
                        const int has = kind == 0 ? 0 : kind == 1 ? 1 : static_cast<int>(random.between(0, 2));
                        with += has != 0 ? 1 : 0;
                        refusers += has == 2 ? 1 : 0;
                        if (r == world.rank()) mine = has;
                      }
                      if (own.between(0, 7) == 0)
                        std::this_thread::sleep_for(std::chrono::microseconds(own.between(0, 300)));
                      bool right = true;
                      const std::string told = refusal_of([&] {
                        if (mine == 0)
                          runtime::calls_of(world).skip("a is 0 x 4");
                        else
                          right = objects.call(1, 2, 5, mine == 2);
                      });
                      const bool legal = refusers == 0 && (with == 0 || with == world.size());
                      if (legal ? told.empty() && right : !told.empty() && !told.starts_with("failed")) continue;
                      ADD_FAILURE() << "rank " << world.rank() << " call " << i << ": "
                                    << (told.empty() ? "no refusal" : told);
                      return 1;
                    }
                    return 0;
                  }),
              0)
        << ranks;
}

TEST(Refusals, ACallWithoutRowsDoesNotWaitForARankThatHasLeft) {
  std::string told;
  double seconds = 0;
  EXPECT_NE(run_threads(2, {.heap_bytes = 1 << 20, .wait_limit = 20},
                        [&](World& world) {
                          if (world.rank() == 1) return 0;
                          const auto begin = std::chrono::steady_clock::now();
                          try {
                            runtime::calls_of(world).skip("a is 0 x 4");
                          } catch (const Error& error) {
                            told = error.what();
                          }
                          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
                          return told.empty() ? 0 : 1;
                        }),
            0);
  EXPECT_NE(told.find("at a call without rows, but rank 1 has left the world"), std::string::npos) << told;
  EXPECT_LT(seconds, 10);
}

TEST(Refusals, AForkedChildIsNoRank) {
  EXPECT_EQ(
      run(2, true,
          [&](World& world) {
            Objects objects(world);
            int status = 0;
            const pid_t child = fork();
            if (child == 0) {
              const std::string told = refusal_of([&] { objects.call(0, 5, 1, false); });
              const std::string refused = refusal_of([&] { runtime::calls_of(world).refuse("no"); });
              _exit(told.find("is no rank") != std::string::npos && refused.find("is no rank") != std::string::npos
                        ? 0
                        : 1);
            }
            EXPECT_EQ(waitpid(child, &status, 0), child);
            EXPECT_EQ(status, 0);
            for (int i = 1; i < 4; ++i) EXPECT_TRUE(objects.call(i % Objects::kinds, static_cast<float>(i), 2, false));
            return testing::Test::HasFailure() ? 1 : 0;
          }),
      0);
}

// A call that some ranks alone make: the message names the operator, its sizes, and who is missing.
TEST(Refusals, WhoIsMissingFromACallIsNamed) {
  std::vector<std::string> messages(3);
  run_threads(3, {.heap_bytes = 1 << 24, .wait_limit = 0.5}, [&](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 8, .k = 12, .type = Type::fp32}, on_cpu());
    if (world.rank() == 2) return std::this_thread::sleep_for(std::chrono::seconds(1)), 0;
    std::vector<float> a(16, 1), b(32, 1), out(32);
    try {
      op.run({op.operand("a", a.data()), op.operand("b", b.data()), op.operand("out", out.data())});
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
    return 0;
  });
  for (const int rank : {0, 1}) {
    const std::string& message = messages[static_cast<std::size_t>(rank)];
    EXPECT_NE(message.find(", in gemm_all_reduce M=4 N=8 K=12 fp32 over 3 ranks; rank 2 has not come to this call"),
              std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace imbrex
