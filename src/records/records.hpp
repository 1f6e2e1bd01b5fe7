// What measuring has found to be fastest: `imbrex tune` writes it; plans, and the ways of all-reduces, are chosen by
// it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/strategies/candidate.hpp"
#include "records/all_reduce_record.hpp"
#include "records/product_records.hpp"

namespace imbrex::records {

/// The fastest plan of a problem on a GPU. It is the nearest, among those measured for its N and K, to M from m_low
/// to m_high.
struct Record {
  Problem problem;  ///< with the M that was measured
  std::int64_t m_low = 0, m_high = 0;
  plan::Candidate candidate;
  double seconds = 0, sequential_seconds = 0;
};

struct Records {
  std::string gpu;   ///< its name, as the driver gives it
  std::string date;  ///< of the measurement
  std::vector<Record> list;
  std::vector<AllReduceRecord> all_reduces = {};
  std::vector<ProductRecord> products = {};
};

/// The seconds that microseconds in a table are. Throws Error(invalid_input) naming the place and the rule.
double seconds_of(const plan::Node& n);

/// How a record says that B lies by columns, after its type; empty where it lies by rows, as in files of before.
std::string b_layout_text(Layout layout);

/// Whether one record stands for both problems: they differ in nothing that a record keeps.
bool same_entry(const Problem& a, const Problem& b);

/// Gives every record its range: up to halfway, as a ratio, to the next M that was measured for the same operator,
/// type, kind of scales, layout of B, ranks, N and K; half as far beyond the first and the last.
void set_ranges(Records& records);

/// Throws Error(invalid_input) naming `where`, the place and the rule.
Records parse_records(std::string_view text, std::string_view where);
std::string to_json(const Records& records);

/// How a table's entries, of all kinds, become another's.
struct TableChange {
  int added = 0, replaced = 0, kept = 0;
};
TableChange change_between(const Records& before, const Records& after);

/// Throws Error(invalid_input) unless the table is of this GPU.
void expect_gpu(const std::string& of_table, const std::string& gpu);

/// All records for GPUs of this name that came with the library, from machines/tuned/. Tables add to each other, entry
/// by entry: of two entries for one problem the first folder's counts, of those in one folder the latest table's, of
/// those the last by name of the file; all-reduces have dates of their own (find_record). None is no error.
Records load_records(const std::string& gpu);

/// Loads the records from the folders' subfolders tuned/.
Records load_records(const std::string& gpu, const std::vector<std::string>& folders);

/// The GPU's records, read once in this process. Any thread may call it.
const Records& records_of(const std::string& gpu);

}  // namespace imbrex::records
