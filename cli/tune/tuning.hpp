// What `imbrex bench` and `imbrex tune` share, and tuning of all-reduces.
#pragma once

#include "command.hpp"
#include "jobs/measure/measure.hpp"

namespace imbrex::cli {

/// YYYY-MM-DD, in UTC.
std::string today();

/// `seconds` in microseconds, to a hundredth.
double microseconds(double seconds);

/// What --out FILE will complete; empty where there is no file yet.
struct Table {
  std::string text, gpu;
};

/// Throws Error(invalid_input), before a long run, where a table cannot be written, or what is there is none.
Table table_at(const std::string& path);

/// `imbrex tune --ops all_reduce`.
int tune_all_reduces(const Program& program, jobs::AllReduceMeasureRequest request, const std::string& out);

/// `imbrex tune --products`.
int tune_products(const Program& program, jobs::ProductMeasureRequest request, const std::string& out);

/// What --codecs names.
std::vector<CodecPair> codecs_named(const std::vector<std::string>& names);

}  // namespace imbrex::cli
