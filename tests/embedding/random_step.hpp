// Random steps of training on random lookups.
#pragma once

#include <random>
#include <vector>

#include "embedding/random_bags.hpp"
#include "embedding/update.hpp"

namespace imbrex::test {

/// The output of `bags` holds gradients.
struct RandomStep {
  RandomBags bags;
  std::vector<std::vector<float>> states;
  std::vector<float*> state;
  embedding::Step step{};
};

/// No rows of int8; about `limits.bag` indices a bag.
RandomStep random_step(std::mt19937_64& random, const BagLimits& limits = {});

/// Other gradients.
void draw_gradients(std::mt19937_64& random, RandomBags& bags);

}  // namespace imbrex::test
