// What `imbrex bench` and `imbrex tune` share, and tuning of all-reduces.
#pragma once

#include "command.hpp"
#include "program/measure/measure.hpp"

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

/// Writes what the table at --out FILE has become, after each size, so that a run that ends early leaves what it
/// measured. `last`: says how many entries were added, replaced and kept. Nothing where `path` is empty; "-" gets the
/// last one only.
void write_table(const Program& program, const std::string& path, const Table& before, const std::string& table,
                 bool last);

/// `imbrex tune --ops all_reduce`.
int tune_all_reduces(const Program& program, program::AllReduceMeasureRequest request, const std::string& out);

/// `imbrex tune --products`.
int tune_products(const Program& program, program::ProductMeasureRequest request, const std::string& out);

/// `imbrex tune --card`, on so many GPUs; 0: all of one kind, eight at most. Without `out` in the user's cache folder.
int tune_card(const Program& program, std::int64_t ranks, const std::string& out);

/// What --codecs names.
std::vector<CodecPair> codecs_named(const std::vector<std::string>& names);

}  // namespace imbrex::cli
