// Who is timed when, where the clock that all of them run at moves by more than they differ.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace imbrex::program {

/// For an even number of values, the upper one of the two in the middle. There is one value at least.
double median(std::vector<double> values);

/// Seconds of one sample of a candidate.
using Sample = std::function<double(std::size_t)>;

/// The median of each of `count` candidates' samples, `rounds` of each. They are taken in turn, forwards and backwards,
/// and another one begins each round, candidate `begin` the first one: no candidate always follows the one that leaves
/// the GPU cool. Before those, `lead` rounds do not count: the first one after a pause finds the GPU cooler.
std::vector<double> timed_in_turn(std::size_t count, int rounds, const Sample& sample, int lead = 1,
                                  std::size_t begin = 0);

/// timed_in_turn, then a run-off: candidates that come within 6 % of the fastest are timed again, in three times as
/// many rounds among themselves, and those times stand. The first `references` candidates are timed with them, whatever
/// they took, and cannot be the fastest. Times of those left out are scaled as the fastest one's changed, so that all
/// compare.
std::vector<double> timed_with_run_off(std::size_t count, std::size_t references, int rounds, const Sample& sample);

}  // namespace imbrex::program
