// How long plans take, by an analytical cost model: a microsecond where a simulation takes milliseconds, and rougher.
#pragma once

#include "choose/choose.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::choose {

/// Seconds that the candidate's plan would take for the problem on the machine: a product of whole waves of tiles, or
/// what its operands take to load, and the wire, concurrent with it or after it. Right within a factor of two or so;
/// ratios of plans for the same problem are what it is good for: of the candidates for random problems of two and four
/// ranks, the one with the least takes 1 % longer, simulated, than the best does (`QuickTimes.ChooseAsTheSimulator`).
double quick_seconds(const Problem& problem, const plan::Candidate& candidate, const Machine& machine);

/// Tiles of a rank's fused product: those of each rank's rows; of an all-reduce with few rows of each rank's columns,
/// and about as many. Where knobs ask for clusters that share columns, with the idle ones that fill up pairs.
std::int64_t fused_tiles(const Problem& problem, const Knobs& knobs);

}  // namespace imbrex::choose
