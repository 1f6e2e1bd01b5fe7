#include "embedding/random_step.hpp"

#include <cmath>

#include "base/convert.hpp"

namespace imbrex::test {

using namespace embedding;

void draw_gradients(std::mt19937_64& random, RandomBags& bags) {
  for (auto& part : bags.part) {
    std::vector<float> values(part.size() / imbrex::size_of(bags.out));
    for (float& value : values)
      value = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 8) - 6);
    base::from_float(bags.out, values.data(), part.data(), std::ssize(values));
  }
}

RandomStep random_step(std::mt19937_64& random, const BagLimits& limits) {
  RandomStep s;
  do s.bags = random_bags(random, limits);
  while (s.bags.type == TableRows::int8);
  draw_gradients(random, s.bags);
  for (const Table& table : s.bags.table) {
    s.states.emplace_back(static_cast<std::size_t>(table.count));
    for (float& state : s.states.back()) state = static_cast<float>(random() % 4) / 8;
  }
  for (auto& states : s.states) s.state.push_back(states.data());
  s.step = {random() % 2 == 0 ? Optimizer::sgd : Optimizer::row_wise_adagrad, 0.03125f, 1e-6f, s.state.data()};
  return s;
}

}  // namespace imbrex::test
