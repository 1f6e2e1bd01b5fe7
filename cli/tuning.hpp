// What `imbrex bench` and `imbrex tune` share, and tuning of all-reduces.
#pragma once

#include "command.hpp"
#include "imbrex/measure.hpp"

namespace imbrex::cli {

/// YYYY-MM-DD, in UTC.
std::string today();

/// Of seconds, to a hundredth.
double microseconds(double seconds);

/// --out FILE of a table, before a long run: its text where there is one, else empty. Throws Error(invalid_input) where
/// it could not be written, or what is there is no table.
std::string table_at(const std::string& path);

/// Writes what `make` returns, once it is the `last`; until then finds out whether it can be made. Nothing without a
/// path.
void write_table(const std::string& path, bool last, const std::function<std::string()>& make);

/// `imbrex tune --ops all_reduce`.
int tune_all_reduces(const Program& program, const AllReduceMeasureRequest& request, const std::string& out);

/// What --codecs names.
std::vector<CodecPair> codecs_named(const std::vector<std::string>& names);

}  // namespace imbrex::cli
