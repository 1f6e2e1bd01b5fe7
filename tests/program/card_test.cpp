// The constants of a card are found again in the times that they give.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "choose/quick_times.hpp"
#include "imbrex/error.hpp"
#include "program/card/card.hpp"
#include "program/card/least_squares.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// Times of a card's products as the cost model has them, each longer or shorter by a chance of so much.
program::CardTimes times_of(const Machine& card, test::Random& random, double noise) {
  program::CardTimes times;
  times.gpu = "NVIDIA X1";
  times.driver = "1.2";
  times.ranks = 2;
  times.sms = static_cast<int>(card.sms);
  const auto put = [&](std::vector<program::CardProduct>& to, std::int64_t m, std::int64_t n, std::int64_t k) {
    const Problem p{Operator::gemm_all_to_all, m, n, k, 1, Type::bf16};
    const auto add = [&](Strategy strategy, const std::optional<Knobs>& knobs) {
      const double seconds = choose::quick_seconds(p, {strategy, knobs.value_or(Knobs{})}, card);
      to.push_back({p, knobs, seconds * (1 + noise * (random.between(0, 2000) / 1000.0 - 1))});
    };
    add(Strategy::sequential, {});
    for (const TileRate& tile : card.tiles) {
      Knobs knobs;
      knobs.tile_m = tile.tile_m, knobs.tile_n = tile.tile_n, knobs.cluster = 1;
      add(Strategy::fused, knobs);
    }
  };
  for (const std::int64_t m : {16, 128, 512, 2048, 4096, 8192})
    for (const std::int64_t n : {4096, 8192}) put(times.fitted, m, n, m > 1000 ? 4096 : 8192);
  for (const std::int64_t m : {40, 384, 1536, 3000, 6144}) put(times.held_out, m, 5120, 4352);
  for (auto& points : times.library)
    for (double bytes = 1 << 19; bytes < 2e8; bytes *= 4) points.push_back({bytes, 1e-5 + bytes / 2e11});
  for (double bytes = 1 << 14; bytes < 1e8; bytes *= 2) times.one_shot.push_back({bytes, 2e-6 + bytes / 3e11});
  times.two_shot = times.one_shot;
  return times;
}

// Rates, clocks and memory unlike those that the fit begins with.
Machine card_of(test::Random& random) {
  Machine card = load_machine("4xh100");
  const auto scale = [&](Constant& c, double least, double most) {
    c.value *= least + (most - least) * random.between(0, 1000) / 1000.0;
  };
  scale(card.sm_rate[Type::bf16], 0.3, 2);
  scale(card.memory_bandwidth, 0.3, 2);
  card.sustained_onset.value = 5e-4;
  for (TileRate& tile : card.tiles) {
    if (tile.efficiency < 1) scale(tile.efficiency, 0.8, 1);
    tile.sustained = {0.7 + 0.3 * random.between(0, 1000) / 1000.0, Provenance::fitted, "test"};
    tile.prologue.value = 5e-7 + 2e-6 * random.between(0, 1000) / 1000.0;
  }
  return card;
}

TEST(Card, IsFoundAgainInItsTimes) {
  for (const double noise : {0.0, 0.03}) {
    test::Random random(test::seed_from_environment());
    for (int i = 0; i < 6; ++i) {
      const Machine card = card_of(random);
      const program::CardTimes times = times_of(card, random, noise);
      const Machine found = program::fit_card(load_machine("4xh200"), times);
      std::cout << "noise " << noise << ": model error " << found.model_error.value << '\n';
      EXPECT_LT(found.model_error, noise + 0.03);
      EXPECT_EQ(found.gpus, std::vector<std::string>{"NVIDIA X1"});
      EXPECT_EQ(found.tiles.size(), card.tiles.size());
      // What runs next is predicted as on the card.
      for (const std::int64_t m : {200, 1000, 5000}) {
        const Problem p{Operator::gemm_all_to_all, m, 7168, 6144, 1, Type::bf16};
        for (const TileRate& tile : card.tiles) {
          Knobs knobs;
          knobs.tile_m = tile.tile_m, knobs.tile_n = tile.tile_n, knobs.cluster = 1;
          const plan::Candidate own{Strategy::fused, knobs};
          EXPECT_NEAR(choose::quick_seconds(p, own, found) / choose::quick_seconds(p, own, card), 1, 0.1 + 2 * noise)
              << m << ' ' << tile.tile_m << 'x' << tile.tile_n;
        }
      }
      EXPECT_NEAR(found.ingress_bandwidth, 3e11, 2e10);
      EXPECT_NEAR(seconds_of(found.all_reduce, 1 << 23), seconds_of({times.library[2], {}, {}}, 1 << 23), 1e-7);
      EXPECT_EQ(parse_machine(to_json(found), "found"), found);
    }
  }
}

TEST(Card, SaysWhatWasNotMeasured) {
  test::Random random(1);
  const Machine start = load_machine("4xh200"), card = card_of(random);
  program::CardTimes times = times_of(card, random, 0);
  times.ranks = 1;
  const Machine found = program::fit_card(start, times);
  EXPECT_EQ(found.sm_rate.at(Type::bf16).source, Provenance::fitted);
  EXPECT_EQ(found.model_error.source, Provenance::measured);
  for (const Constant* one : {&found.fence, &found.poll, &found.copy_fixed, &found.ingress_bandwidth}) {
    EXPECT_EQ(one->source, Provenance::unverified);
    EXPECT_EQ(one->from, "as 4xh200: not measured on this card");
  }
  EXPECT_EQ(found.all_reduce.source, Provenance::unverified);
  times.fitted.erase(times.fitted.begin() + 1, times.fitted.end());
  EXPECT_THROW(program::fit_card(start, times), Error);
  times.fitted.clear();
  EXPECT_THROW(program::fit_card(start, times), Error);
}

TEST(LeastSquares, FindsProductsOfPowers) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 50; ++i) {
    const double x = random.between(1, 1000) / 10.0, y = random.between(1, 1000) / 1e3;
    std::vector<program::Unknown> unknowns{{3, 1e-3, 1e3}, {0.3, 1e-6, 1e2}};
    program::fit(unknowns, [&](const std::vector<program::Unknown>& at) {
      std::vector<double> errors;
      for (const double a : {0.1, 1.0, 10.0, 100.0})
        errors.push_back(std::log((at[0].value + a * at[1].value) / (x + a * y)));
      return errors;
    });
    EXPECT_NEAR(unknowns[0].value / x, 1, 0.02);
    EXPECT_NEAR(unknowns[1].value / y, 1, 0.02);
  }
  // Bounds hold, and what no error depends on stays.
  std::vector<program::Unknown> unknowns{{5, 1, 8}, {2, 1, 3}};
  program::fit(unknowns,
               [](const std::vector<program::Unknown>& at) { return std::vector<double>{std::log(at[0].value / 20)}; });
  EXPECT_NEAR(unknowns[0].value, 8, 1e-6);
  EXPECT_NEAR(unknowns[1].value, 2, 1e-6);
}

}  // namespace
}  // namespace imbrex
