#include "output/sweep.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "output/chart.hpp"
#include "program/suggestion.hpp"

namespace imbrex::cli {
namespace {

constexpr std::int64_t most_value = std::int64_t{1} << 31;
constexpr std::size_t most_values = 200;
const std::vector<std::string> names{"m", "n", "k", "ranks"};

[[noreturn]] void refuse_sweep(const std::string& text, const std::string& why) {
  refuse(fmt::format("--sweep '{}': {}", text, why));
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == by)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::int64_t value_of(const std::string& text, const std::string& part) {
  const bool digits = !part.empty() && part.size() <= 10 && part.find_first_not_of("0123456789") == std::string::npos;
  const std::int64_t value = digits ? std::stoll(part) : 0;
  if (value < 1 || value > most_value)
    refuse_sweep(text, fmt::format("'{}' is not an integer from 1 to {}", part, most_value));
  return value;
}

std::int64_t& size_of_sweep(PlanOptions& options, const std::string& name) {
  return name == "m" ? options.m : name == "n" ? options.n : name == "k" ? options.k : options.ranks;
}

// What one strategy takes for one value.
struct Predicted {
  std::string strategy;
  double seconds = 0;
};

struct Point {
  std::int64_t value = 0;
  Problem problem;
  std::vector<Predicted> predicted;  // strategies that the machine or the sizes refuse are missing
  std::string chosen;

  std::optional<double> seconds_of(const std::string& strategy) const {
    for (const Predicted& each : predicted)
      if (each.strategy == strategy) return each.seconds;
    return std::nullopt;
  }
  /// Over cuBLAS followed by NCCL.
  std::optional<double> gain_of(const std::string& strategy) const {
    const auto first = seconds_of("sequential"), own = seconds_of(strategy);
    return first && own ? std::optional(*first / *own) : std::nullopt;
  }
};

class Sweeping {
 public:
  Sweeping(const Program& program, const SweepRequest& request, const PlanOptions& plan, const Machine& machine)
      : program_(program), request_(request), plan_(plan), machine_(machine) {
    strategies_ = {"sequential", "decomposed", "signaled", "fused"};
    if (plan.strategy != "auto" && plan.strategy != "sequential") strategies_ = {"sequential", plan.strategy};
  }

  int run() {
    {
      Progress progress(fmt::format("simulating {}", plan_.op),
                        request_.sweep.values.size() * (strategies_.size() + 1));
      for (const std::int64_t value : request_.sweep.values) points_.push_back(point(value));
    }
    print_table();
    if (!request_.csv.empty()) write_result(request_.csv, csv());
    if (!request_.plot.empty()) write_result(request_.plot, to_svg(chart()));
    print_json(program_, json());
    return 0;
  }

 private:
  Point point(std::int64_t value) {
    PlanOptions options = plan_;
    size_of_sweep(options, request_.sweep.name) = value;
    Point result;
    result.value = value;
    result.problem = options.problem(false);
    validate(result.problem);
    for (const std::string& strategy : strategies_) {
      options.strategy = strategy;
      try {
        result.predicted.push_back({strategy, seconds(options.make(machine_))});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_input) throw;
        refused_.emplace(strategy, fmt::format("{} = {}: {}", request_.sweep.name, value, error.what()));
      }
      Progress::advance();
    }
    options.strategy = plan_.strategy;
    const Plan plan = options.make(machine_);
    result.chosen = name_of(plan.strategy);
    // auto may take a plan of a strategy with other knobs than those that the strategy takes by itself.
    result.predicted.push_back({"auto", seconds(plan)});
    Progress::advance();
    return result;
  }

  double seconds(const Plan& plan) {
    for (const std::string& caveat : program::caveats_of(plan, machine_)) caveats_.insert(caveat);
    return make_simulator(machine_, {})->prepare(plan)->run({}).seconds;
  }

  std::string what() const {
    std::string text = plan_.op;
    for (const std::string& name : names) {
      PlanOptions options = plan_;
      if (name != request_.sweep.name) text += fmt::format(", {} {}", name, size_of_sweep(options, name));
    }
    return fmt::format("{}, {}", text, name_of(plan_.type));
  }

  void print_table() const {
    print(program_, "{} on {}, predicted; times in us, speed-up over sequential (cuBLAS, then NCCL)", what(),
          machine_.name);
    std::string head = fmt::format("{:>8}", request_.sweep.name);
    for (const std::string& strategy : strategies_) head += fmt::format(" {:>11}", strategy);
    print(program_, "{} {:>11} {:>9}  {}", head, "Imbrex", "speed-up", "by");
    for (const Point& point : points_) {
      std::string line = fmt::format("{:>8}", point.value);
      for (const std::string& strategy : strategies_) {
        const auto seconds = point.seconds_of(strategy);
        line += fmt::format(" {:>11}", seconds ? fmt::format("{:.1f}", *seconds * 1e6) : "-");
      }
      const auto gain = point.gain_of("auto");
      print(program_, "{} {:>11.1f} {:>9}  {}", line, *point.seconds_of("auto") * 1e6,
            gain ? fmt::format("{:.2f}x", *gain) : "-", point.chosen);
    }
    for (const auto& [strategy, why] : refused_) print(program_, "  {} is left out where {}", strategy, why);
    for (const std::string& caveat : caveats_) print(program_, "  {}", caveat);
  }

  std::string csv() const {
    std::string text = csv_line({"operator", "m", "n", "k", "ranks", "type", "machine", "strategy", "us",
                                 "speed_up_over_sequential", "auto_takes"});
    for (const Point& point : points_)
      for (const Predicted& each : point.predicted) {
        const Problem& p = point.problem;
        const auto gain = point.gain_of(each.strategy);
        text += csv_line({std::string(name_of(p.op)), fmt::format("{}", p.m), fmt::format("{}", p.n),
                          fmt::format("{}", p.k), fmt::format("{}", p.ranks), std::string(name_of(p.type)),
                          machine_.name, each.strategy, fmt::format("{:.3f}", each.seconds * 1e6),
                          gain ? fmt::format("{:.4f}", *gain) : std::string(), point.chosen});
      }
    return text;
  }

  Chart chart() const {
    Chart chart;
    chart.title = what();
    chart.source = fmt::format("predicted by the simulator for {}: {}", machine_.name, machine_.about);
    chart.x_title = request_.sweep.name == "ranks" ? "ranks"
                    : request_.sweep.name == "m"   ? "M, rows of A"
                    : request_.sweep.name == "n"   ? "N, columns of B"
                                                   : "K, which the product sums over";
    chart.y_title = "speed-up over cuBLAS, then NCCL";
    chart.line_name = "cuBLAS, then NCCL: 1";
    chart.log_x = request_.sweep.by_factor;
    for (const std::string& strategy : strategies_) {
      if (strategy == "sequential") continue;
      Curve curve{strategy, {}, false};
      for (const Point& point : points_)
        if (const auto gain = point.gain_of(strategy))
          curve.points.emplace_back(static_cast<double>(point.value), *gain);
      chart.curves.push_back(std::move(curve));
    }
    Curve chosen{plan_.strategy == "auto" ? "what auto takes" : plan_.strategy + ", as asked", {}, true};
    for (const Point& point : points_)
      if (const auto gain = point.gain_of("auto")) chosen.points.emplace_back(static_cast<double>(point.value), *gain);
    chart.curves.push_back(std::move(chosen));
    return chart;
  }

  Json json() const {
    Json rows = Json::array();
    for (const Point& point : points_) {
      Json seconds;
      for (const Predicted& each : point.predicted) seconds[each.strategy] = each.seconds;
      rows.push_back({{"problem", to_json_value(point.problem)}, {"strategy", point.chosen}, {"seconds", seconds}});
    }
    Json result{{"machine", machine_.name}, {"sweep", request_.sweep.name}, {"rows", rows}};
    for (const auto& [strategy, why] : refused_) result["left_out"].push_back({{"strategy", strategy}, {"why", why}});
    if (!caveats_.empty()) result["notes"] = caveats_;
    return result;
  }

  const Program& program_;
  const SweepRequest& request_;
  const PlanOptions& plan_;
  const Machine& machine_;
  std::vector<std::string> strategies_;
  std::vector<Point> points_;
  std::map<std::string, std::string> refused_;  // by strategy: where and why first
  std::set<std::string> caveats_;
};

}  // namespace

Sweep parse_sweep(const std::string& text) {
  const std::size_t equals = text.find('=');
  Sweep sweep;
  sweep.name = text.substr(0, equals);
  if (std::find(names.begin(), names.end(), sweep.name) == names.end())
    refuse_sweep(text, fmt::format("'{}' is no size; it must be one of {}{}", sweep.name, fmt::join(names, ", "),
                                   program::did_you_mean(sweep.name, names)));
  if (equals == std::string::npos) refuse_sweep(text, "values are missing, such as m=1024:16384:x2");
  const std::string values = text.substr(equals + 1);
  const std::vector<std::string> range = split(values, ':');
  if (range.size() == 1) {
    for (const std::string& part : split(values, ',')) sweep.values.push_back(value_of(text, part));
  } else {
    if (range.size() != 3 || range[2].size() < 2 || (range[2][0] != 'x' && range[2][0] != '+'))
      refuse_sweep(text, "a range is FIRST:LAST:xFACTOR or FIRST:LAST:+STEP, and a list A,B,C");
    const std::int64_t first = value_of(text, range[0]), last = value_of(text, range[1]),
                       step = value_of(text, range[2].substr(1));
    sweep.by_factor = range[2][0] == 'x';
    if (sweep.by_factor && step < 2) refuse_sweep(text, "a factor of 1 leads nowhere; it must be 2 or more");
    if (last < first) refuse_sweep(text, fmt::format("{} is below {}", last, first));
    for (std::int64_t value = first; value <= last && sweep.values.size() <= most_values;
         value = sweep.by_factor ? value * step : value + step)
      sweep.values.push_back(value);
  }
  if (sweep.values.size() > most_values) refuse_sweep(text, fmt::format("more than {} values", most_values));
  if (!std::is_sorted(sweep.values.begin(), sweep.values.end()) ||
      std::adjacent_find(sweep.values.begin(), sweep.values.end()) != sweep.values.end())
    refuse_sweep(text, "each value must be above the one before it");
  return sweep;
}

int simulate_sweep(const Program& program, const SweepRequest& request, const PlanOptions& plan,
                   const Machine& machine) {
  return Sweeping(program, request, plan, machine).run();
}

}  // namespace imbrex::cli
