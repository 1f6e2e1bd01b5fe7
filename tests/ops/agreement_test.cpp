// Ranks that are not asked for the same: all of them learn which rank differs, in what, and can go on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "collectives/backend.hpp"
#include "imbrex/error.hpp"
#include "plan/task_stream.hpp"
#include "runtime/agreement.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Random;

constexpr WorldOptions roomy{.heap_bytes = 1 << 26, .wait_limit = 20};

struct Caught {
  int code = 0;
  std::string message;
};

Caught caught(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {-1, error.what()};
  }
  return {};
}

// The first byte that the heap would give: whether what was taken has been given back.
std::size_t first_free(World& world) {
  const std::size_t offset = world.heap().allocate(1);
  world.heap().release(offset);
  return offset;
}

enum class Call { operation, prepare, prepare_made, all_reduce, rms_norm, exchange };
constexpr Call calls[] = {Call::operation,  Call::prepare,  Call::prepare_made,
                          Call::all_reduce, Call::rms_norm, Call::exchange};

// What a rank is asked for.
struct Ask {
  Call call = Call::operation;
  Problem problem;
  OperatorOptions options;
  std::function<void(Plan&)> change_plan = [](Plan&) {};
  std::int64_t count = 0, hidden = 0;
  Type type = Type::bf16;
  AllReduceOptions all_reduce;
  AllReduceRmsNormOptions rms_norm;
  ExchangeKind kind = ExchangeKind::reduce_scatter;
  ExchangeOptions exchange;
};

// Makes it, and drops it.
void make(World& world, const Ask& ask) {
  const auto plan = [&] {
    Plan made = make_plan(ask.problem, *ask.options.strategy, *ask.options.knobs);
    ask.change_plan(made);
    return made;
  };
  const Problem& p = ask.problem;
  switch (ask.call) {
    case Call::operation:
      test::make_operator(world, p.op, {p.m, p.n, p.k, p.type, p.bias, p.scales, p.b_layout}, ask.options);
      return;
    case Call::prepare: static_cast<void>(make_cpu_executor(world, ask.options.cpu)->prepare(plan())); return;
    case Call::prepare_made:
      static_cast<void>(make_cpu_executor(world, ask.options.cpu)->prepare_tasks([&] {
        return plan::make_rank_tasks(p, *ask.options.strategy, *ask.options.knobs, world.rank());
      }));
      return;
    case Call::all_reduce: collectives::make_cpu_all_reduce(world, ask.count, ask.type, ask.all_reduce); return;
    case Call::rms_norm:
      collectives::make_cpu_all_reduce_rms_norm(world, ask.count, ask.hidden, ask.type, ask.rms_norm);
      return;
    case Call::exchange: collectives::make_cpu_exchange(world, ask.kind, ask.count, ask.type, ask.exchange); return;
  }
}

Ask random_ask(Random& random, Call call, int ranks) {
  Ask ask;
  ask.call = call;
  Problem& p = ask.problem;
  p.op = random.one_of(
      {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all});
  p.ranks = ranks;
  for (std::int64_t* size : {&p.m, &p.n, &p.k}) *size = 8 * ranks * random.between(1, 6);
  p.bias = random.chance(0.3);
  p.type = random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3});
  ask.options.device = Device::cpu;
  ask.options.strategy = random.one_of({Strategy::fused, Strategy::decomposed, Strategy::sequential});
  ask.options.knobs = Knobs{.tile_m = 16, .tile_n = 16, .partial = output_type(p.type)};
  ask.options.cpu.testing.first_epoch = static_cast<std::uint64_t>(random.between(0, 5));
  ask.count = random.between(1, 1000);
  ask.hidden = random.between(1, 64);
  ask.type = random.one_of({Type::bf16, Type::fp16, Type::fp32});
  if (random.chance(0.5)) ask.all_reduce.codec = parse_codec_pair("int8");
  if (ask.all_reduce.codec && random.chance(0.5)) ask.all_reduce.tolerance = 0.5f;
  ask.kind = random.one_of({ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all});
  return ask;
}

struct Change {
  std::string field;
  std::function<void(Ask&)> make;
};

std::vector<Change> changes_of(const Ask& ask) {
  std::vector<Change> list;
  const std::int64_t step = 8 * ask.problem.ranks;
  const auto of_problem = [&] {
    list.push_back({"m", [=](Ask& a) { a.problem.m += step; }});
    list.push_back({"n", [=](Ask& a) { a.problem.n += step; }});
    list.push_back({"k", [=](Ask& a) { a.problem.k += step; }});
    list.push_back({"bias", [](Ask& a) { a.problem.bias = !a.problem.bias; }});
    list.push_back({"type", [](Ask& a) { a.problem.type = a.problem.type == Type::bf16 ? Type::fp32 : Type::bf16; }});
    if (ask.problem.type == Type::e4m3) list.push_back({"scales", [](Ask& a) { a.problem.scales = Scales::row; }});
    if (ask.problem.type != Type::e4m3)
      list.push_back({"b_layout", [](Ask& a) {
                        const bool by_rows = a.problem.b_layout == Layout::row_major;
                        a.problem.b_layout = by_rows ? Layout::column_major : Layout::row_major;
                      }});
    list.push_back({"operator", [](Ask& a) {
                      a.problem.op = a.problem.op == Operator::gemm_all_reduce ? Operator::gemm_reduce_scatter
                                                                               : Operator::gemm_all_reduce;
                    }});
    list.push_back({"strategy", [](Ask& a) {
                      a.options.strategy =
                          a.options.strategy == Strategy::fused ? Strategy::sequential : Strategy::fused;
                    }});
    list.push_back({"tile_m", [](Ask& a) { a.options.knobs->tile_m = 8; }});
    list.push_back({"tile_n", [](Ask& a) { a.options.knobs->tile_n = 24; }});
    list.push_back({"group", [](Ask& a) { a.options.knobs->group = 3; }});
    list.push_back({"chunks", [](Ask& a) { a.options.knobs->chunks = 4; }});
    list.push_back({"order", [](Ask& a) { a.options.knobs->order = TileOrder::naive; }});
  };
  switch (ask.call) {
    case Call::operation:
      of_problem();
      list.push_back({"knobs", [](Ask& a) { a.options.knobs.reset(); }});
      list.push_back({"strategy", [](Ask& a) { a.options.strategy.reset(); }});
      list.push_back({"device", [](Ask& a) { a.options.device = Device::automatic; }});
      break;
    case Call::prepare:
      list.push_back(
          {"digest of the buffers", [](Ask& a) { a.change_plan = [](Plan& p) { p.buffers.back().rows += 1; }; }});
      list.push_back({"digest of rank 1's tasks",
                      [](Ask& a) { a.change_plan = [](Plan& p) { p.ranks[1].queues[0].workers += 1; }; }});
      list.push_back({"digest of rank 0's tasks", [](Ask& a) {
                        a.change_plan = [](Plan& p) {
                          auto& tasks = p.ranks[0].queues[0].tasks;
                          tasks.push_back({Transfer{}, {}, {}});
                        };
                      }});
      list.push_back({"signal_copies", [](Ask& a) { a.change_plan = [](Plan& p) { p.signal_copies = 1; }; }});
      [[fallthrough]];
    case Call::prepare_made:
      of_problem();
      list.push_back({"first_epoch", [](Ask& a) { a.options.cpu.testing.first_epoch += 1; }});
      break;
    case Call::all_reduce:
      list.push_back({"max_count", [](Ask& a) { a.count += 1; }});
      list.push_back({"type", [](Ask& a) { a.type = a.type == Type::fp32 ? Type::bf16 : Type::fp32; }});
      list.push_back({"codec", [](Ask& a) { a.all_reduce.codec = parse_codec_pair("int8+int4-asym"); }});
      list.push_back({"algorithm", [](Ask& a) { a.all_reduce.algorithm = AllReduceAlgorithm::two_shot; }});
      list.push_back({"batch_invariant", [](Ask& a) { a.all_reduce.batch_invariant = true; }});
      list.push_back({"report", [](Ask& a) { a.all_reduce.report = false; }});
      list.push_back({"ctas", [](Ask& a) { a.all_reduce.ctas = 4; }});
      if (ask.all_reduce.codec) {
        list.push_back({"tolerance", [](Ask& a) { a.all_reduce.tolerance = 0.1f; }});
        list.push_back({"exact_below", [](Ask& a) { a.all_reduce.exact_below = exact_below_measured; }});
      }
      if (ask.all_reduce.tolerance) list.push_back({"whole_call", [](Ask& a) { a.all_reduce.whole_call = true; }});
      break;
    case Call::rms_norm:
      list.push_back({"max_rows", [](Ask& a) { a.count += 1; }});
      list.push_back({"hidden", [](Ask& a) { a.hidden += 1; }});
      list.push_back({"type", [](Ask& a) { a.type = a.type == Type::fp32 ? Type::bf16 : Type::fp32; }});
      list.push_back({"eps", [](Ask& a) { a.rms_norm.eps = 1e-5f; }});
      list.push_back({"algorithm", [](Ask& a) { a.rms_norm.algorithm = AllReduceAlgorithm::one_shot; }});
      list.push_back({"ctas", [](Ask& a) { a.rms_norm.ctas = 4; }});
      if (ask.type != Type::fp32) list.push_back({"weight_type", [](Ask& a) { a.rms_norm.weight_type = Type::fp32; }});
      break;
    case Call::exchange:
      list.push_back({"max_count", [](Ask& a) { a.count += 1; }});
      list.push_back({"type", [](Ask& a) { a.type = a.type == Type::fp32 ? Type::bf16 : Type::fp32; }});
      list.push_back({"codec", [](Ask& a) { a.exchange.codec = parse_codec("int6"); }});
      list.push_back({"report", [](Ask& a) { a.exchange.report = false; }});
      list.push_back({"ctas", [](Ask& a) { a.exchange.ctas = 4; }});
      break;
  }
  return list;
}

// "rank 1 asks for <a>, ranks 0 and 2 for <b>": of two ranks, the later one comes first.
bool names(const std::string& message, int odd, int ranks, const std::string& field) {
  const std::string wish = field.empty() ? "" : field + " = ";
  const auto asks = [&](const std::string& who, const std::string& verb) {
    return message.find(fmt::format("{}{} for {}", who, verb, wish)) != std::string::npos;
  };
  std::string rest;
  for (int rank = 0, left = ranks - 1; rank < ranks; ++rank)
    if (rank != odd) rest += fmt::format("{}{}", rank, --left == 0 ? "" : left == 1 ? " and " : ", ");
  rest = (ranks > 2 ? "ranks " : "rank ") + rest;
  const std::string one = fmt::format("rank {}", odd);
  if (ranks == 2 && odd == 0) return asks(rest, " asks") && asks(one, "");
  return asks(one, " asks") && asks(rest, "");
}

// What is wrong with how a rank takes it that `odd` is asked for something else.
std::string wrong(World& world, const Ask& usual, const Ask& other, int odd, const std::string& field) {
  const std::size_t before = first_free(world);
  const Caught first = caught([&] { make(world, world.rank() == odd ? other : usual); });
  if (first.code != 2 || !names(first.message, odd, world.size(), field))
    return fmt::format("{} on rank {}: exit {}: {}", field, odd, first.code, first.message);
  if (first_free(world) != before) return field + ": memory is not given back";
  // No rank is left behind: all can go on.
  const Caught second = caught([&] { make(world, usual); });
  return second.code == 0 ? "" : fmt::format("{}, then the same: {}", field, second.message);
}

int try_all(World& world, std::uint64_t seed, int trials) {
  Random random(seed);
  for (int trial = 0; trial < trials; ++trial) {
    const Ask usual = random_ask(random, calls[trial % std::ssize(calls)], world.size());
    const int odd = static_cast<int>(random.between(0, world.size() - 1));
    const std::vector<Change> changes = changes_of(usual);
    const Change& change = changes[static_cast<std::size_t>(random.between(0, std::ssize(changes) - 1))];
    Ask other = usual;
    change.make(other);
    if (const std::string text = wrong(world, usual, other, odd, change.field); !text.empty()) {
      fmt::print(stderr, "trial {}: {}\n", trial, text);
      return 1;
    }
  }
  return 0;
}

TEST(Agreement, OneFieldThatDiffersIsNamedOnEveryRank) {
  const std::uint64_t seed = test::seed_from_environment();
  for (int ranks : {2, 3, 4}) {
    EXPECT_EQ(run_threads(ranks, roomy, [&](World& world) { return try_all(world, seed, 250); }), 0);
    EXPECT_EQ(run_processes(ranks, roomy, [&](World& world) { return try_all(world, seed + 1, 100); }), 0);
  }
}

// Each field of each call at least once, whatever the seed.
TEST(Agreement, EveryFieldIsCompared) {
  const auto body = [](World& world) {
    for (const bool scaled : {false, true})
      for (const Call call : calls) {
        Random random(1);
        Ask usual = random_ask(random, call, world.size());
        usual.problem.type = scaled ? Type::e4m3 : Type::fp16;
        usual.options.knobs->partial = output_type(usual.problem.type);
        usual.all_reduce.codec = parse_codec_pair("int8");
        if (scaled) usual.all_reduce.tolerance = 0.5f;
        for (const Change& change : changes_of(usual)) {
          Ask other = usual;
          change.make(other);
          if (const std::string text = wrong(world, usual, other, world.size() - 1, change.field); !text.empty()) {
            fmt::print(stderr, "{}\n", text);
            return 1;
          }
        }
      }
    return 0;
  };
  EXPECT_EQ(run_threads(3, roomy, body), 0);
  EXPECT_EQ(run_processes(2, roomy, body), 0);
}

TEST(Agreement, AnotherKindOfCallIsNamed) {
  const auto body = [](World& world) {
    Random random(2);
    for (const Call call : calls)
      for (const Call other : calls) {
        const auto plan = [](Call c) { return c == Call::prepare || c == Call::prepare_made; };
        if (call == other || (plan(call) && plan(other))) continue;
        const Ask usual = random_ask(random, call, world.size());
        const std::string text = wrong(world, usual, random_ask(random, other, world.size()), 1, "");
        if (text.empty()) continue;
        fmt::print(stderr, "{}\n", text);
        return 1;
      }
    const Caught error = caught([&] {
      if (world.rank() == 0)
        test::make_operator(world, Operator::gemm_all_reduce, {9, 9, 9}, {});
      else
        collectives::make_cpu_all_reduce(world, 10, Type::bf16);
    });
    EXPECT_EQ(error.message,
              "ranks are asked for different things: rank 0 asks for an operator, ranks 1 and 2 for an all_reduce");
    return 0;
  };
  EXPECT_EQ(run_threads(3, roomy, body), 0);
}

TEST(Agreement, WhatOneRankRefusesAllRefuse) {
  const auto body = [](World& world) {
    const std::size_t before = first_free(world);
    const auto expect = [&](const std::string& says, const std::function<void(bool odd)>& call, int code = 2) {
      const Caught error = caught([&] { call(world.rank() == 1); });
      const std::string message = world.rank() == 1 ? says : "rank 1: " + says;
      EXPECT_TRUE(error.code == code && error.message.starts_with(message)) << error.message;
      EXPECT_EQ(first_free(world), before);
    };
    const Problem problem{.op = Operator::gemm_all_reduce, .m = 24, .n = 24, .k = 24, .ranks = 3};
    const Plan plan = make_plan(problem, Strategy::fused, {});
    const auto executor = make_cpu_executor(world, {});
    OperatorOptions on_cpu;
    on_cpu.device = Device::cpu;
    expect("K = 25 does not divide by 3 ranks", [&](bool odd) {
      test::make_operator(world, Operator::gemm_all_reduce, {24, 24, odd ? 25 : 24}, on_cpu);
    });
    expect("malformed: ", [&](bool odd) {
      Plan mine = plan;
      if (odd) mine.ranks[0].queues[0].tasks[0].posts.push_back({9, 9});
      static_cast<void>(executor->prepare(mine));
    });
    expect("knob ", [&](bool odd) {
      static_cast<void>(executor->prepare_tasks(
          [&] { return plan::make_rank_tasks(problem, Strategy::fused, {.tile_m = odd ? -1 : 128}, world.rank()); }));
    });
    expect("the plan is for 2 ranks", [&](bool odd) {
      Problem two = problem;
      two.ranks = 2;
      static_cast<void>(executor->prepare(odd ? make_plan(two, Strategy::fused, {}) : plan));
    });
    expect(
        "symmetric heap is full",
        [&](bool odd) {
          Problem large = problem;
          large.m = large.n = 30000;
          static_cast<void>(executor->prepare(odd ? make_plan(large, Strategy::sequential, {}) : plan));
        },
        3);
    expect("all_reduce: ctas = -1",
           [&](bool odd) { collectives::make_cpu_all_reduce(world, 10, Type::bf16, {.ctas = odd ? -1 : 0}); });
    expect("all_reduce: type e4m3",
           [&](bool odd) { collectives::make_cpu_all_reduce(world, 10, odd ? Type::e4m3 : Type::bf16); });
    expect("all_reduce_rms_norm: hidden = 0",
           [&](bool odd) { collectives::make_cpu_all_reduce_rms_norm(world, 10, odd ? 0 : 8, Type::bf16); });
    expect("all_to_all: max_count = -1", [&](bool odd) {
      collectives::make_cpu_exchange(world, ExchangeKind::all_to_all, odd ? -1 : 1, Type::bf16);
    });
    const auto execution = executor->prepare(plan);  // the executor can go on
    return 0;
  };
  EXPECT_EQ(run_threads(3, roomy, body), 0);
}

TEST(Agreement, ARefusalKeepsItsTypeAndCode) {
  EXPECT_EQ(run_threads(3, roomy,
                        [](World& world) {
                          bool same_type = false;
                          const Caught error = caught([&] {
                            try {
                              runtime::agree(world, [&]() -> runtime::Terms {
                                if (world.rank() == 2) throw std::bad_alloc();
                                return runtime::Terms("a thing");
                              });
                            } catch (const std::bad_alloc&) {
                              same_type = true;
                              throw;
                            }
                          });
                          EXPECT_EQ(same_type, world.rank() == 2);
                          if (world.rank() != 2) {
                            EXPECT_EQ(error.message, "rank 2: out of memory");
                            EXPECT_EQ(error.code, 3);
                          }
                          return 0;
                        }),
            0);
}

TEST(Agreement, EveryRankLearnsWhatTheOthersTell) {
  EXPECT_EQ(run_threads(4, roomy,
                        [](World& world) {
                          const auto told =
                              runtime::agree(world, [&] { return runtime::Terms("a thing").tell(10 * world.rank()); });
                          EXPECT_EQ(told, (std::vector<std::int64_t>{0, 10, 20, 30}));
                          return 0;
                        }),
            0);
}

// Texts take several rounds, values are cut, and only some of many wishes are listed.
TEST(Agreement, LongTermsAndManyWishes) {
  EXPECT_EQ(run_threads(8, roomy,
                        [](World& world) {
                          const auto error_of = [&](const std::function<void(runtime::Terms&)>& add) {
                            return caught([&] {
                              runtime::agree(world, [&] {
                                runtime::Terms terms("a thing");
                                add(terms);
                                return terms;
                              });
                            });
                          };
                          EXPECT_EQ(error_of([&](auto& terms) {
                                      for (int i = 0; i < 1000; ++i) terms.add(fmt::format("field {}", i), i);
                                      terms.add("last", world.rank() < 6 ? 1 : world.rank());
                                    }).message,
                                    "ranks disagree on a thing: rank 7 asks for last = 7, rank 6 for last = 6, ranks "
                                    "0, 1, 2, 3, 4 and 5 for last = 1");
                          EXPECT_EQ(error_of([&](auto& terms) { terms.add("n", world.rank()); }).message,
                                    "ranks disagree on a thing: rank 7 asks for n = 7, rank 6 for n = 6, rank 5 for n "
                                    "= 5, other ranks for something else");
                          EXPECT_LT(error_of([&](auto& terms) {
                                      terms.add("n", std::string(9000, world.rank() == 0 ? 'x' : 'y'));
                                    }).message.size(),
                                    400u);
                          EXPECT_EQ(error_of([&](auto& terms) { terms.add("n", 1); }).message, "");
                          return 0;
                        }),
            0);
}

// A rank that is elsewhere altogether ends the agreement with a message, not by its wait limit.
TEST(Agreement, APeerInAnotherCollectiveIsNamed) {
  EXPECT_EQ(
      run_threads(2, roomy,
                  [](World& world) {
                    const auto agree = [&] { runtime::agree(world, [] { return runtime::Terms("a thing"); }); };
                    std::byte bytes[2 * 64] = {};
                    const auto expect = [&](const std::string& says, const std::function<void()>& other) {
                      const Caught error = caught([&] { world.rank() == 0 ? agree() : other(); });
                      EXPECT_TRUE(world.rank() == 1 || error.message.find(says) != std::string::npos) << error.message;
                    };
                    expect("rank 1 is at a barrier", [&] { world.barrier(); });
                    expect("different sizes", [&] { world.all_gather(bytes, bytes, 8); });
                    expect("rank 1 is in an all_gather of its own", [&] { world.all_gather(bytes + 64, bytes, 64); });
                    agree();
                    return 0;
                  }),
      0);
}

}  // namespace
}  // namespace imbrex
