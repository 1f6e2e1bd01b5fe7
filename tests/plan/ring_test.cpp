// Decomposed gathers: every rank's block of A goes round a ring by exchanges of the kind send_receive, and is
// multiplied wherever it comes by.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "imbrex/error.hpp"
#include "plan/expect_fault.hpp"
#include "plan/operand_buffers.hpp"

namespace imbrex {
namespace {

using test::expect_fault;

Problem gather(int ranks, std::int64_t rows = 5) {
  return {Operator::all_gather_gemm, rows * ranks, 6 * ranks, 8, ranks, Type::bf16};
}
Plan ring(const Problem& problem, int chunks = 1) {
  return make_plan(problem, Strategy::decomposed, {.chunks = chunks});
}
Plan ring(int ranks, int chunks = 1) { return ring(gather(ranks), chunks); }

std::vector<Task>& lane(Plan& plan, int rank, int queue) {
  return plan.ranks[static_cast<std::size_t>(rank)].queues[static_cast<std::size_t>(queue)].tasks;
}
std::vector<Task>& products(Plan& plan, int rank) { return lane(plan, rank, 1); }
std::vector<Task>& exchanges(Plan& plan, int rank) { return lane(plan, rank, 0); }
Product& product(Plan& plan, int rank, std::size_t task) {
  return std::get<Product>(products(plan, rank).at(task).work);
}
Collective& exchange(Plan& plan, int rank, std::size_t task) {
  return std::get<Collective>(exchanges(plan, rank).at(task).work);
}

template <typename F>
std::string refusal_of(F&& make) {
  try {
    make();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

// The rows of a chunk of a block of five: the first ones are longer.
std::vector<std::int64_t> heights(int chunks) {
  return chunks == 1   ? std::vector<std::int64_t>{5}
         : chunks == 2 ? std::vector<std::int64_t>{2, 3}
                       : std::vector<std::int64_t>{1, 2, 2};
}

TEST(Ring, EachStepMultipliesWhatCameWhileItGoesOn) {
  for (const bool gathered : {false, true})
    for (int ranks = 2; ranks <= 8; ++ranks)
      for (int chunks = 1; chunks <= 3; ++chunks) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << chunks << " chunks, gathered " << gathered);
        Problem problem = gather(ranks);
        problem.gathered_a = gathered;
        Plan plan = ring(problem, chunks);
        ASSERT_FALSE(check(plan).has_value());
        const auto steps = static_cast<std::size_t>(ranks - 1), parts = static_cast<std::size_t>(chunks);
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_EQ(products(plan, rank).size(), 1 + steps * parts);
          ASSERT_EQ(exchanges(plan, rank).size(), steps * parts);
          // The own rows wait for nothing and lie in the caller's memory.
          EXPECT_TRUE(products(plan, rank)[0].waits.empty());
          EXPECT_EQ(product(plan, rank, 0).a, (Region{rank, plan::buffer_a, 0, 0, 5, 8}));
          EXPECT_EQ(product(plan, rank, 0).to.row, rank * 5);
          std::int64_t row = 0;  // in the block
          for (std::size_t e = 0; e < steps * parts; ++e) {
            const Collective& c = exchange(plan, rank, e);
            EXPECT_EQ(c.kind, CollectiveKind::send_receive);
            EXPECT_EQ(c.group, static_cast<int>(e));
            EXPECT_EQ(c.send_to, (rank + 1) % ranks);
            EXPECT_EQ(c.receive_from, (rank + ranks - 1) % ranks);
            EXPECT_TRUE(exchanges(plan, rank)[e].waits.empty());
            // What goes on is what came in the step before, or the own block.
            if (e % parts == 0) row = 0;
            EXPECT_EQ(c.from, e < parts ? (Region{rank, plan::buffer_a, row, 0, c.from.rows, 8})
                                        : exchange(plan, rank, e - parts).to);
            // What comes is multiplied once it is there.
            const Product& p = product(plan, rank, e + 1);
            EXPECT_EQ(p.a, c.to);
            ASSERT_EQ(products(plan, rank)[e + 1].waits.size(), 1u);
            ASSERT_EQ(exchanges(plan, rank)[e].posts.size(), 1u);
            EXPECT_EQ(products(plan, rank)[e + 1].waits[0].signal, exchanges(plan, rank)[e].posts[0].signal);
            const int source = (rank + ranks - static_cast<int>(e / parts) - 1) % ranks;
            EXPECT_EQ(p.to.row, source * 5 + row);
            if (gathered) {
              EXPECT_EQ(c.to, (Region{rank, plan::buffer_gathered(problem), source * 5 + row, 0, c.to.rows, 8}));
            }
            row += c.to.rows;
            EXPECT_EQ(c.to.rows, heights(chunks)[e % parts]);
          }
        }
        // Where the caller takes the gathered A, there is no other room for it, and one copy: of the own rows.
        EXPECT_EQ(std::ssize(plan.buffers), plan::count_operands(problem) + (gathered ? 0 : 1));
        EXPECT_EQ(plan.ranks[0].queues.size(), gathered ? 3u : 2u);
        if (gathered) {
          EXPECT_EQ(lane(plan, 0, 2).size(), 1u);
        }
      }
}

TEST(Ring, EveryBIsMultipliedByWhatCame) {
  Problem problem = gather(3);
  problem.more_n = {3, 6};
  problem.bias = true;
  Plan plan = ring(problem, 2);
  ASSERT_FALSE(check(plan).has_value());
  EXPECT_EQ(exchanges(plan, 0).size(), 4u);
  ASSERT_EQ(products(plan, 0).size(), 3u * 5);
  for (std::size_t p = 0; p < 15; ++p) {
    EXPECT_EQ(product(plan, 0, p).b.buffer, plan::buffer_b_of(problem, static_cast<int>(p % 3)));
    EXPECT_EQ(product(plan, 0, p).a, product(plan, 0, p / 3 * 3).a);
  }
}

// A block has as many chunks as rows at most; one rank sends nothing.
TEST(Ring, ChunksAreNeverEmpty) {
  Plan plan = ring(gather(3, 4), 100);
  EXPECT_FALSE(check(plan).has_value());
  EXPECT_EQ(exchanges(plan, 1).size(), 8u);
  plan = ring(1, 100);
  EXPECT_EQ(count_tasks(plan), 1u);
}

TEST(Ring, RefusesKnobsByName) {
  EXPECT_EQ(refusal_of([] { ring(4, 0); }), "knob chunks = 0: it must be from 1 to 2147483647");
  const Knobs stored{.transport = Transport::store};
  EXPECT_EQ(
      refusal_of([&] { make_plan(gather(4), Strategy::decomposed, stored); }),
      "knob transport = store: decomposed plans of all_gather_gemm send blocks from rank to rank, and Imbrex' own "
      "collectives do not; transport push or pull takes NCCL's");
  EXPECT_NO_THROW(make_plan(gather(4), Strategy::sequential, stored));
  EXPECT_NO_THROW(make_plan({Operator::gemm_reduce_scatter, 16, 16, 16, 4, Type::bf16}, Strategy::decomposed, stored));
}

TEST(Ring, RowsWithGapsAreBroughtTogetherBeforeTheyGo) {
  Problem problem = gather(3);
  problem.lda = 12;
  Plan plan = ring(problem, 2);
  ASSERT_FALSE(check(plan).has_value());
  ASSERT_EQ(exchanges(plan, 1).size(), 2u + 4u);
  EXPECT_EQ(product(plan, 1, 0).a.buffer, plan::buffer_a);
  const auto& copy = std::get<Transfer>(exchanges(plan, 1)[0].work);
  EXPECT_EQ(copy.from, (Region{1, plan::buffer_a, 0, 0, 2, 8}));
  EXPECT_EQ(copy.to, exchange(plan, 1, 1).from);
}

TEST(Ring, TravelsAsJson) {
  const Plan plan = ring(3, 2);
  const std::string text = to_json(plan);
  EXPECT_TRUE(parse_plan(text) == plan);
  EXPECT_NE(text.find(R"({"kind": "send_receive", "group": 0, )"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("send_to": 1, "receive_from": 2})"), std::string::npos) << text;
  EXPECT_EQ(to_json(make_plan(gather(3), Strategy::sequential, {})).find("send_to"), std::string::npos);
  std::string spoilt = text;
  spoilt.replace(spoilt.find(R"("send_to": 1)"), 12, R"("send_to": "")");
  EXPECT_NE(refusal_of([&] { parse_plan(spoilt); }).find("collective.send_to"), std::string::npos);
}

TEST(Ring, CheckerNamesExchangesThatDoNotFit) {
  const auto expect = [](auto&& spoil, const char* text) {
    Plan plan = ring(4);
    spoil(plan);
    expect_fault(plan, Fault::malformed, text);
  };
  expect([](Plan& p) { exchange(p, 1, 1).send_to = 3; },
         "rank 1 sends to rank 3 in collective 1, which receives from rank 2 there");
  expect([](Plan& p) { exchange(p, 1, 1).receive_from = 2; },
         "rank 0 sends to rank 1 in collective 1, which receives from rank 2 there");
  expect(
      [](Plan& p) { exchange(p, 1, 1).send_to = 1; },
      "rank 1 queue 0 task 1 (collective): a send_receive sends to rank 1: it must be one of ranks 0, 1, 2, 3, and not "
      "its own");
  expect([](Plan& p) { exchange(p, 1, 1).receive_from = 4; },
         "receives from rank 4: it must be one of ranks 0, 1, 2, 3");
  expect([](Plan& p) { exchange(p, 1, 1).send_to = -1; }, "sends to rank -1: it must be one of ranks");
  expect([](Plan& p) { exchange(p, 1, 1).to.rows = 4; }, "send_receive of 5 rows gives 4 rows on 4 ranks");
  expect([](Plan& p) { exchange(p, 1, 1).to.rank = 2; }, "a collective's regions are on its own rank");
  expect([](Plan& p) { exchange(p, 1, 1).from.rows = exchange(p, 1, 1).to.rows = 4; },
         "is send_receive of 4 x 8 here, but send_receive of 5 x 8 elsewhere");
  expect([](Plan& p) { exchange(p, 1, 1).codec = parse_codec_pair("int8"); }, "only all_reduce and reduce_scatter");
  expect([](Plan& p) { exchanges(p, 1).pop_back(); }, "rank 1 does not take part in collective 2, which joins it");
  Plan plan = make_plan(gather(4), Strategy::sequential, {});
  std::get<Collective>(plan.ranks[2].queues[1].tasks[0].work).send_to = 1;
  expect_fault(plan, Fault::malformed, "a collective of kind all_gather sends to rank 1: only a send_receive does so");
}

TEST(Ring, CheckerFollowsBlocksRoundTheRing) {
  for (const bool gathered : {false, true}) {
    Problem problem = gather(4);
    problem.gathered_a = gathered;
    const auto expect = [&](auto&& spoil, Fault fault, const char* text) {
      Plan plan = ring(problem, 2);
      ASSERT_FALSE(check(plan).has_value());
      spoil(plan);
      expect_fault(plan, fault, text);
    };
    // A step that all ranks take the other way round: it brings another rank's block.
    expect(
        [](Plan& p) {
          for (int rank = 0; rank < 4; ++rank)
            std::swap(exchange(p, rank, 2).send_to, exchange(p, rank, 2).receive_from);
        },
        Fault::coverage, "with what belongs elsewhere");
    // Into another step's block.
    expect([](Plan& p) { exchange(p, 1, 4).to = exchange(p, 1, 0).to; }, Fault::coverage, "writes too");
    expect([](Plan& p) { std::swap(exchange(p, 1, 4).to.row, exchange(p, 1, 0).to.row); }, Fault::race, "may read");
    // What came in the round before the last goes on, or what is yet to come.
    expect([](Plan& p) { exchange(p, 1, 4).from = exchange(p, 1, 0).to; }, Fault::coverage,
           "with what belongs elsewhere");
    expect([](Plan& p) { exchange(p, 1, 2).from = exchange(p, 1, 4).to; }, Fault::race, "may read");
    // A step that is left out, by all ranks.
    expect(
        [](Plan& p) {
          for (int rank = 0; rank < 4; ++rank) exchanges(p, rank).erase(exchanges(p, rank).begin() + 2);
        },
        Fault::deadlock, "waits for 1 posts to signal 2, but an epoch has only 0");
    // Ranks that take steps in different orders wait for each other.
    expect([](Plan& p) { std::swap(exchanges(p, 1)[0], exchanges(p, 1)[2]); }, Fault::deadlock,
           "some rank never reaches this collective");
    // A product ahead of its rows, and one of rows that another step brought.
    expect([](Plan& p) { products(p, 2)[3].waits.clear(); }, Fault::race,
           "before rank 2 queue 0 task 2 (collective) has written it");
    expect([](Plan& p) { product(p, 2, 3).a = product(p, 2, 1).a; }, Fault::coverage, "with what belongs elsewhere");
  }
}

// A rank that pulls rows of another's A, which may be read from that rank's entry into the epoch to its exit, on a
// queue of its own after exchange `after` and, where there is one, before exchange `before`.
Plan with_pull(int ranks, int chunks, int from, int after, int before) {
  Plan plan = ring(ranks, chunks);
  const int pulled = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back({"pulled", BufferRole::workspace, Layout::row_major, Type::bf16, 5, 8, 1});
  const int done = plan.ranks[0].signals++;
  plan.ranks[0].queues.push_back({Engine::copy,
                                  0,
                                  {{Transfer{{from, plan::buffer_a, 0, 0, 5, 8}, {0, pulled, 0, 0, 5, 8}},
                                    {{exchanges(plan, 0)[static_cast<std::size_t>(after)].posts[0].signal}},
                                    {{0, done}}}}});
  if (before >= 0) exchanges(plan, 0)[static_cast<std::size_t>(before)].waits.push_back({done});
  return plan;
}

// An exchange is no meeting of all ranks: one that has ended says that the rank it received from had begun, and no
// more; one that begins holds the rank that it sends to, and no other.
TEST(Ring, AnExchangeOrdersTwoRanksOnly) {
  EXPECT_FALSE(check(with_pull(2, 2, 1, 0, 1)).has_value());
  // Behind the first step, rank 0 knows that rank 2 has come, after the second one, of rank 1 by way of rank 2.
  expect_fault(with_pull(3, 1, 1, 0, 1), Fault::race, "before that rank is known to have entered the epoch");
  expect_fault(with_pull(3, 1, 1, 1, -1), Fault::race, "that rank may leave the epoch before it is done");
  // Rank 1 waits for rank 0's last exchange, rank 2 does not; for the one before it does, by way of rank 1.
  expect_fault(with_pull(3, 1, 2, 0, 1), Fault::race, "that rank may leave the epoch before it is done");
  expect_fault(with_pull(3, 2, 2, 0, 3), Fault::race, "that rank may leave the epoch before it is done");
  EXPECT_FALSE(check(with_pull(3, 2, 2, 0, 2)).has_value());
}

// Rank 0 reads, behind its first exchange, what rank `from` has put there before its own first exchange.
Plan with_push(int from) {
  Plan plan = ring(3);
  const int pushed = static_cast<int>(plan.buffers.size());
  for (const char* name : {"pushed", "seen"})
    plan.buffers.push_back({name, BufferRole::workspace, Layout::row_major, Type::bf16, 5, 8, 2});
  RankPlan& sender = plan.ranks[static_cast<std::size_t>(from)];
  const int sent = sender.signals++;
  const Transfer push{{from, plan::buffer_a, 0, 0, 5, 8}, {0, pushed, 0, 0, 5, 8}};
  sender.queues.push_back({Engine::copy, 0, {{push, {}, {{from, sent}}}}});
  exchanges(plan, from)[0].waits.push_back({sent});
  const Transfer look{push.to, {0, pushed + 1, 0, 0, 5, 8}};
  plan.ranks[0].queues.push_back({Engine::copy, 0, {{look, {{exchanges(plan, 0)[0].posts[0].signal}}, {}}}});
  return plan;
}

TEST(Ring, AnExchangeBringsWhatItsSourceHasDone) {
  Plan plan = with_push(2);
  ASSERT_EQ(exchange(plan, 0, 0).receive_from, 2);
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  expect_fault(with_push(1), Fault::race, "may read rows 0+5 cols 0+8 of pushed on rank 0 before rank 1");
}

}  // namespace
}  // namespace imbrex
