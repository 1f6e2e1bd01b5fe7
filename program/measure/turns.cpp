#include "program/measure/turns.hpp"

#include <algorithm>

namespace imbrex::program {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<double> timed_in_turn(std::size_t count, int rounds, const Sample& sample, int lead, std::size_t begin) {
  std::vector<std::vector<double>> times(count);
  for (int round = 0; round < lead + rounds; ++round)
    for (std::size_t turn = 0; turn < count; ++turn) {
      const std::size_t number = begin + static_cast<std::size_t>(round), step = number % 2 == 0 ? turn : count - turn;
      const std::size_t i = (number + step) % count;
      const double seconds = sample(i);
      if (round >= lead) times[i].push_back(seconds);
    }
  std::vector<double> medians;
  for (std::vector<double>& t : times) medians.push_back(median(std::move(t)));
  return medians;
}

std::vector<double> timed_with_run_off(std::size_t count, std::size_t references, int rounds, const Sample& sample) {
  constexpr double margin = 1.06;
  std::vector<double> times = timed_in_turn(count, rounds, sample);
  if (references >= count) return times;
  const auto first = times.begin() + static_cast<std::ptrdiff_t>(references);
  const auto fastest = static_cast<std::size_t>(std::min_element(first, times.end()) - times.begin());
  std::vector<std::size_t> again;
  for (std::size_t i = 0; i < count; ++i)
    if (i < references || times[i] <= margin * times[fastest]) again.push_back(i);
  if (again.size() <= references + 1) return times;
  const std::vector<double> second =
      timed_in_turn(again.size(), 3 * rounds, [&](std::size_t place) { return sample(again[place]); });
  const auto place = static_cast<std::size_t>(std::find(again.begin(), again.end(), fastest) - again.begin());
  const double change = second[place] / times[fastest];
  for (double& t : times) t *= change;
  for (std::size_t i = 0; i < again.size(); ++i) times[again[i]] = second[i];
  return times;
}

}  // namespace imbrex::program
