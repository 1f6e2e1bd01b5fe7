// The constants of a card, from what was measured on it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::program {

/// One rank's product, and the seconds that it took.
struct CardProduct {
  Problem problem;
  std::optional<Knobs> knobs;  ///< of Imbrex' own kernel; none: a library's
  double seconds = 0;
};

/// What was measured of a kind of GPU.
struct CardTimes {
  std::string gpu;                                 ///< its name, as the driver gives it
  std::string driver;                              ///< its version, in words
  int ranks = 1;                                   ///< GPUs that the collectives joined; 1: none was measured
  int sms = 0;                                     ///< of one GPU
  std::vector<CardProduct> fitted, held_out;       ///< what constants are fitted to, and what tells how good they are
  std::array<std::vector<CurvePoint>, 4> library;  ///< by Operator: its collective, by a library; 2 ranks and more
  std::vector<CurvePoint> one_shot, two_shot;      ///< all-reduces by Imbrex' own kernels; empty where none run
};

/// `start` with the constants that the times tell: rates of tiles, clocks under load, memory, curves of collectives,
/// links no slower than they were seen, and how far predictions are off on sizes that were held out (model_error). All
/// others are the start's, and say `unverified`. Throws Error(invalid_input) where there is no product of both kinds.
Machine fit_card(const Machine& start, const CardTimes& times);

/// Where such constants are kept for GPUs of that name: in the user's cache folder. Empty: no variable names one.
std::string card_file(const std::string& gpu);

/// Measures this machine's GPUs, `ranks` of one kind, in half a minute or so: products on the first one, collectives on
/// all. `said` is told what is measured next. Returns the exit code, as run does, and the times by `report`, in this
/// process. Throws Error(invalid_input) where there are too few GPUs.
int measure_card(int ranks, const std::function<void(const std::string&)>& said,
                 const std::function<void(const CardTimes&)>& report);

}  // namespace imbrex::program
