// The one table of a machine's plain constants: place in the file, unit, rule and member.
#pragma once

#include <array>
#include <string_view>

#include "imbrex/machine.hpp"

namespace imbrex::machine {

enum class Rule : unsigned char {
  rate,   ///< at least 1 per second
  time,   ///< 0 to 1e6 seconds
  ratio,  ///< above 0, at most 1
  count,  ///< integer, 1 to 65536
  tally,  ///< integer, 0 to 65536
  size,   ///< at least 0
};

/// The longest time that a constant or a curve's point may be.
inline constexpr double most_seconds = 1e6;

struct Field {
  std::string_view section, key, unit;
  Rule rule;
  Constant Machine::*member;
};

inline constexpr std::array<Field, 21> fields{{
    {"compute", "sms", "count", Rule::count, &Machine::sms},
    {"compute", "memory_bandwidth", "bytes/s", Rule::rate, &Machine::memory_bandwidth},
    {"compute", "sm_memory_bandwidth", "bytes/s", Rule::rate, &Machine::sm_memory_bandwidth},
    {"compute", "l2_bytes", "bytes", Rule::size, &Machine::l2_bytes},
    {"compute", "sustained_ratio", "ratio", Rule::ratio, &Machine::sustained_ratio},
    {"compute", "sustained_onset", "s", Rule::time, &Machine::sustained_onset},
    {"compute", "launch_gap", "s", Rule::time, &Machine::launch_gap},
    {"copy_engine", "fixed", "s", Rule::time, &Machine::copy_fixed},
    {"copy_engine", "flag", "s", Rule::time, &Machine::copy_flag},
    {"copy_engine", "latency", "s", Rule::time, &Machine::copy_latency},
    {"copy_engine", "bandwidth", "bytes/s", Rule::rate, &Machine::copy_bandwidth},
    {"stores", "sm_bandwidth", "bytes/s", Rule::rate, &Machine::store_sm_bandwidth},
    {"stores", "bandwidth", "bytes/s", Rule::rate, &Machine::store_bandwidth},
    {"links", "egress_bandwidth", "bytes/s", Rule::rate, &Machine::egress_bandwidth},
    {"links", "ingress_bandwidth", "bytes/s", Rule::rate, &Machine::ingress_bandwidth},
    {"links", "latency", "s", Rule::time, &Machine::link_latency},
    {"signals", "flag_latency", "s", Rule::time, &Machine::flag_latency},
    {"signals", "flag_latency_local", "s", Rule::time, &Machine::flag_latency_local},
    {"signals", "poll", "s", Rule::time, &Machine::poll},
    {"signals", "fence", "s", Rule::time, &Machine::fence},
    {"collectives", "sms", "count", Rule::tally, &Machine::collective_sms},
}};

/// Constants that a file may leave out: 0.
inline constexpr std::array<Field, 7> optional_fields{{
    {"compute", "sm_unaligned_bandwidth", "bytes/s", Rule::rate, &Machine::sm_unaligned_bandwidth},
    {"compute", "model_error", "ratio", Rule::ratio, &Machine::model_error},
    {"copy_engine", "pull_bandwidth", "bytes/s", Rule::rate, &Machine::copy_pull_bandwidth},
    {"links", "peer_access", "count", Rule::count, &Machine::peer_access},
    {"collectives", "ranks", "count", Rule::count, &Machine::collective_ranks},
    {"collectives", "step", "s", Rule::time, &Machine::collective_step},
    {"collectives", "coding_bandwidth", "bytes/s", Rule::rate, &Machine::coding_bandwidth},
}};

/// The section of links between hosts, all of it or nothing of it.
inline constexpr std::array<Field, 4> host_fields{{
    {"hosts", "devices", "count", Rule::count, &Machine::host_devices},
    {"hosts", "bandwidth", "bytes/s", Rule::rate, &Machine::host_bandwidth},
    {"hosts", "latency", "s", Rule::time, &Machine::host_latency},
    {"hosts", "message", "s", Rule::time, &Machine::host_message},
}};

/// The constants of a level.
struct LevelField {
  std::string_view key, unit;
  Rule rule;
  Constant Level::*member;
};
inline constexpr std::array<LevelField, 3> level_fields{{
    {"devices", "count", Rule::count, &Level::devices},
    {"bandwidth", "bytes/s", Rule::rate, &Level::bandwidth},
    {"latency", "s", Rule::time, &Level::latency},
}};

struct CurveField {
  std::string_view key;
  Curve Machine::*member;
};

inline constexpr std::array<CurveField, 4> curves{{{"all_gather", &Machine::all_gather},
                                                   {"reduce_scatter", &Machine::reduce_scatter},
                                                   {"all_reduce", &Machine::all_reduce},
                                                   {"all_to_all", &Machine::all_to_all}}};

/// Curves that a file may leave out: in "compute", and in "collectives".
inline constexpr std::array<CurveField, 2> row_curves{
    {{"random_rows", &Machine::random_rows}, {"short_rows", &Machine::short_rows}}};
inline constexpr std::array<CurveField, 3> own_curves{{{"own_one_step", &Machine::own_one_step},
                                                       {"own_two_steps", &Machine::own_two_steps},
                                                       {"own_coded", &Machine::own_coded}}};

/// Throws Error(invalid_input) unless `value` obeys `rule`; `place` names it.
void check_rule(Rule rule, double value, std::string_view place);

/// Whether any constant of links between hosts is given.
bool has_hosts(const Machine& machine);

/// Throws Error(invalid_input) unless the levels are as Level says.
void check_levels(const Machine& machine);

/// Throws Error(invalid_input) unless the curve is as Curve says.
void check_curve(const Curve& curve, std::string_view place);

}  // namespace imbrex::machine
