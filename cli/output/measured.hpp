// What `imbrex bench` and `imbrex tune` measured, as CSV and as a plot.
#pragma once

#include <string>
#include <vector>

#include "output/chart.hpp"
#include "program/measure/measure.hpp"

namespace imbrex::cli {

/// The name of a plan in tables: "fused 128x224x2 store column_major shift 24 group 8".
std::string name_of_plan(const program::Measured& plan);

/// The plan that Imbrex ran. `tuned`: the fastest of all; else the one that was chosen beforehand.
const program::Measured& plan_shown(const program::Measurement& m, bool tuned);

/// A line for each measurement, after a line of names.
std::string csv_of(const std::vector<program::Measurement>& measurements, bool tuned, const std::string& date);

/// Speed-ups over cuBLAS followed by NCCL over M, a curve for each operator and layer. Throws nothing.
Chart chart_of(const std::vector<program::Measurement>& measurements, bool tuned, const std::string& date);

}  // namespace imbrex::cli
