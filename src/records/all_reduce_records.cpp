#include "records/all_reduce_records.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace imbrex::records {
namespace {

std::optional<std::int64_t> size_or_null(const plan::Node& n) {
  if (n.null()) return std::nullopt;
  const auto bytes = n.integer<std::int64_t>();
  if (bytes < 0) n.refuse(fmt::format("{} bytes: it must not be negative, but may be null", bytes));
  return bytes;
}

std::string date_of(const plan::Node& n) {
  const std::string& text = n.string();
  constexpr std::string_view form = "0000-00-00";
  const bool sound =
      text.size() == form.size() && std::equal(text.begin(), text.end(), form.begin(),
                                               [](char c, char f) { return f == '0' ? c >= '0' && c <= '9' : c == f; });
  if (!sound) n.refuse("it must be a date, YYYY-MM-DD");  // the latest record counts
  return text;
}

std::string json_of(const std::optional<std::int64_t>& bytes) {
  return bytes ? fmt::format("{}", *bytes) : std::string("null");
}

double wire_bits(const CodecPair& pair) { return wire_bits(pair.reduce_scatter) + wire_bits(pair.all_gather); }

std::int64_t bytes_or_all(const std::optional<std::int64_t>& bytes) {
  return bytes.value_or(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

AllReduceRecord all_reduce_record_of(const plan::Node& n) {
  n.only({"ranks", "type", "date", "one_shot_below", "codecs"});
  AllReduceRecord r;
  r.ranks = n["ranks"].integer<int>();
  if (r.ranks < 2) n["ranks"].refuse(fmt::format("{}: it must be at least 2", r.ranks));
  r.type = n["type"].name(parse_type);
  r.date = date_of(n["date"]);
  r.one_shot_below = size_or_null(n["one_shot_below"]);
  n["codecs"].each([&](const plan::Node& c) {
    c.only({"codec", "exact_below"});
    const AllReduceRecord::Threshold t{c["codec"].name(parse_codec_pair), size_or_null(c["exact_below"])};
    if (std::any_of(r.codecs.begin(), r.codecs.end(), [&](const auto& other) { return other.codec == t.codec; }))
      c["codec"].refuse(fmt::format("{} comes twice; a record names a codec once", name_of(t.codec)));
    r.codecs.push_back(t);
  });
  return r;
}

std::string to_json(const AllReduceRecord& r) {
  std::string text = fmt::format(R"({{"ranks": {}, "type": "{}", "date": "{}", "one_shot_below": {}, "codecs": [)",
                                 r.ranks, name_of(r.type), r.date, json_of(r.one_shot_below));
  const char* separator = "";
  for (const AllReduceRecord::Threshold& t : r.codecs) {
    text +=
        fmt::format(R"({}{{"codec": "{}", "exact_below": {}}})", separator, name_of(t.codec), json_of(t.exact_below));
    separator = ", ";
  }
  return text + "]}";
}

const AllReduceRecord* find_record(const std::vector<AllReduceRecord>& records, int ranks, Type type) {
  const auto merit = [&](const AllReduceRecord& r) {
    const std::size_t own = size_of(r.type), wanted = size_of(type);
    const std::size_t away = own > wanted ? own - wanted : wanted - own;
    return std::tuple(r.type == type, -static_cast<std::int64_t>(away), std::string_view(r.date));
  };
  const AllReduceRecord* best = nullptr;
  for (const AllReduceRecord& r : records)
    if (r.ranks == ranks && (best == nullptr || merit(r) > merit(*best))) best = &r;
  return best;
}

std::int64_t exact_below(const AllReduceRecord& record, const CodecPair& codec, std::int64_t otherwise) {
  const double bits = wire_bits(codec);
  const AllReduceRecord::Threshold* nearest = nullptr;
  std::int64_t of_fewer_bits = otherwise;
  for (const AllReduceRecord::Threshold& t : record.codecs) {
    if (t.codec == codec) return bytes_or_all(t.exact_below);
    if (wire_bits(t.codec) < bits)
      of_fewer_bits = std::max(of_fewer_bits, bytes_or_all(t.exact_below));
    else if (nearest == nullptr || wire_bits(t.codec) < wire_bits(nearest->codec))
      nearest = &t;
  }
  return nearest != nullptr ? bytes_or_all(nearest->exact_below) : of_fewer_bits;
}

void put_record(std::vector<AllReduceRecord>& records, const AllReduceRecord& record) {
  const auto alike = [&](const AllReduceRecord& r) { return r.ranks == record.ranks && r.type == record.type; };
  AllReduceRecord merged = record;
  while (const AllReduceRecord* const latest = find_record(records, record.ranks, record.type)) {
    if (!alike(*latest)) break;
    for (const AllReduceRecord::Threshold& t : latest->codecs)
      if (std::none_of(merged.codecs.begin(), merged.codecs.end(), [&](const auto& m) { return m.codec == t.codec; }))
        merged.codecs.push_back(t);
    records.erase(records.begin() + (latest - records.data()));
  }
  records.push_back(std::move(merged));
}

}  // namespace imbrex::records
