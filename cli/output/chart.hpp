// A plot of curves over sizes as SVG, in which no text lies on another.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace imbrex::cli {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x, y; in the order of x
  bool dots = false;                              ///< without lines between them
};

struct Chart {
  std::string title, source;  ///< what it shows; where the numbers are from
  std::string x_title, y_title;
  bool log_x = false;         ///< every x is above 0
  std::vector<Curve> curves;  ///< may be empty, and so may their points
  double line = 1;            ///< a value of y that has a line of its own
  std::string line_name;
};

std::string to_svg(const Chart& chart);

/// "x,y" without what CSV sets apart: a cell with a comma, a quote or a line break stands in quotes.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace imbrex::cli
