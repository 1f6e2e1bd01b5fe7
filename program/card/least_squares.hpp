// Least squares over positive constants.
#pragma once

#include <functional>
#include <vector>

namespace imbrex::program {

/// A constant, and what it may be.
struct Unknown {
  double value = 0;
  double least = 0, most = 0;  ///< above 0
};

/// Changes the unknowns within their bounds so that the sum of the squares of `errors` at them becomes small. Gauss and
/// Newton over logarithms, with differences of 3 %, which are large against the steps of whole waves of tiles, damped
/// as Levenberg and Marquardt have it. Ends after so many rounds, or where one gains less than a thousandth.
void fit(std::vector<Unknown>& unknowns, const std::function<std::vector<double>(const std::vector<Unknown>&)>& errors,
         int rounds = 20);

}  // namespace imbrex::program
