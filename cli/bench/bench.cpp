// imbrex bench: Imbrex compared with cuBLAS and NCCL on this machine's GPUs. imbrex tune: which plan is fastest, for
// later runs.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>

#include "bench/bench_all.hpp"
#include "bench/bench_shmem.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "output/measured.hpp"
#include "own_operators.hpp"
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

struct BenchArguments {
  std::vector<std::string> ops;
  std::vector<std::int64_t> sizes;
  std::vector<std::string> layers;
  std::int64_t ranks = 4, rounds = 9, runs = 0;  // runs: 0: by how long they take
  Type type = Type::bf16;
  std::optional<Scales> scales;
  std::optional<Layout> b_layout;
  std::string strategy = "auto", world = "processes", out, met, csv, plot;  // met: --auto
  std::vector<std::string> tries, codecs;
  bool serve = false, products = false, card = false;
  std::vector<std::shared_ptr<OwnOperator>> own;  // with options of their own, that bench takes
  CLI::App* app = nullptr;

  bool given(const char* name) const { return app->get_option(name)->count() > 0; }
};

constexpr std::int64_t most_rows = std::int64_t{1} << 31;

// "NxK" of the whole operator.
Problem layer(const std::string& text, Problem p) {
  const std::size_t cross = text.find('x');
  const auto number = [&](const std::string& part) {
    const bool digits = !part.empty() && part.size() <= 10 && part.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t value = digits ? std::stoll(part) : 0;
    if (value < 1 || value > most_rows)
      refuse(fmt::format("layer '{}': it must be NxK, two integers from 1 to {}", text, most_rows));
    return value;
  };
  p.n = number(text.substr(0, cross));
  p.k = cross == std::string::npos ? number("") : number(text.substr(cross + 1));
  return p;
}

// Whether the operator takes these sizes; `why` says why not.
bool takes(const Problem& problem, std::string& why) {
  try {
    validate(problem);
  } catch (const Error& error) {
    why = error.what();
    return false;
  }
  return true;
}

// Every operator with every M and layer, once, but those that the operator does not take: an M of one row fits an
// all-reduce only. Some must be left.
std::vector<Problem> grid(const BenchArguments& o) {
  std::vector<Problem> problems, seen;
  std::string why;
  for (const std::string& l : o.layers)
    for (const std::string& op : o.ops)
      for (const std::int64_t m : o.sizes) {
        const Problem p = layer(l, {parse_operator(op), m, 0, 0, static_cast<int>(o.ranks), o.type, false,
                                    chosen_scales(o.scales, o.type), chosen_b_layout(o.b_layout, o.type)});
        if (std::find(seen.begin(), seen.end(), p) != seen.end()) continue;
        seen.push_back(p);
        if (takes(p, why))
          problems.push_back(p);
        else
          print_error(fmt::format("left out: {} {} x {} x {}: {}", op, m, p.n, p.k, why));
      }
  if (problems.empty()) throw Error(ErrorCode::invalid_input, why);
  return problems;
}

// What no operator takes is refused before each of them is asked.
void expect_options(const BenchArguments& o) {
  static_cast<void>(chosen_scales(o.scales, o.type));
  static_cast<void>(chosen_b_layout(o.b_layout, o.type));
  if (o.world != "processes" && o.world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", o.world));
}

// The sizes that a program met, of those ranks that --ranks names, or of all of them, which then have one number.
std::vector<Problem> problems_met(const BenchArguments& o) {
  for (const char* name : {"--ops", "--m", "--layers", "--type", "--scales", "--b-layout"})
    if (o.given(name)) refuse(fmt::format("{}: --auto takes what FILE says", name));
  const std::string where = fmt::format("--auto '{}'", o.met);
  const std::vector<Problem> all = program::problems_of_lines(read_file(o.met), where);
  if (all.empty()) refuse(fmt::format("{}: there is no size in it", where));
  const auto ranks = o.given("--ranks") ? static_cast<int>(o.ranks) : all.front().ranks;
  std::vector<Problem> problems;
  std::copy_if(all.begin(), all.end(), std::back_inserter(problems),
               [&](const Problem& p) { return p.ranks == ranks; });
  const auto other = std::find_if(all.begin(), all.end(), [&](const Problem& p) { return p.ranks != ranks; });
  if (other != all.end() && !o.given("--ranks"))
    refuse(fmt::format("{}: it has sizes of {} ranks and of {}; --ranks says which", where, ranks, other->ranks));
  if (problems.empty()) refuse(fmt::format("{}: it has no size of {} ranks, but of {}", where, ranks, other->ranks));
  return problems;
}

std::vector<Problem> problems_of(const BenchArguments& o) { return o.met.empty() ? grid(o) : problems_met(o); }

program::MeasureRequest request_of(const BenchArguments& o, bool all) {
  expect_options(o);
  program::MeasureRequest request;
  if (!o.serve) request.problems = problems_of(o);
  request.ranks = o.serve ? static_cast<int>(o.ranks) : request.problems.front().ranks;
  request.all = all;
  request.strategy = strategy_named(o.strategy);
  request.tries = o.tries;
  request.rounds = static_cast<int>(o.rounds);
  if (o.runs > 0) request.runs = static_cast<int>(o.runs);
  request.threads = o.world == "threads";
  return request;
}

Json json_of(const program::Measurement& m) {
  Json plans = Json::array();
  for (const program::Measured& p : m.plans) {
    Json plan{{"name", name_of_plan(p)},
              {"us", microseconds(p.seconds)},
              {"chosen", p.chosen},
              {"strategy", name_of(p.strategy)},
              {"knobs", Json::parse(program::knobs_to_json(p.knobs))}};
    if (!p.tried.empty()) plan["try"] = p.tried;
    plans.push_back(std::move(plan));
  }
  Json row{{"problem", to_json_value(m.problem)},
           {"cublas_us", microseconds(m.product_seconds)},
           {"wire_us", microseconds(m.wire_seconds)},
           {"runs", m.runs},
           {"plans", plans}};
  for (const program::Refused& r : m.refused) row["refused"].push_back({{"try", r.tried}, {"why", r.message}});
  return row;
}

void print_row(const Program& program, const program::Measurement& m, const program::Measured& best) {
  const Problem& p = m.problem;
  const double sequential = m.plans.front().seconds, roofline = program::roofline_seconds(m);
  const std::string gain = fmt::format("{:6.2f}x", sequential / best.seconds);
  print(program, "{:19} {:6} {:6} {:6} {:9.1f} {:9.1f} {:9.1f} {:6.2f} {}  {}", name_of(p.op), p.m, p.n, p.k,
        roofline * 1e6, sequential * 1e6, best.seconds * 1e6, roofline / best.seconds,
        coloured(program, sequential < best.seconds ? Colour::bad : Colour::good, gain), name_of_plan(best));
}

void print_head(const Program& program) {
  print(program, "{:19} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>6} {:>7}  {}", "operator", "M", "N", "K", "roofline",
        "sequential", "Imbrex", "of it", "speed-up", "plan (times in us)");
}

void print_tries(const Program& program, const program::Measurement& m) {
  for (const program::Measured& p : m.plans)
    if (!p.tried.empty()) print(program, "  {:50} {:9.1f} us", p.tried, p.seconds * 1e6);
  for (const program::Refused& r : m.refused) print(program, "  {:50} refused: {}", r.tried, r.message);
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += std::log(v);
  return values.empty() ? 1 : std::exp(sum / static_cast<double>(values.size()));
}

int measure_and_print(const Program& program, const BenchArguments& options, bool all) {
  if (options.csv != "-") expect_named("--csv", options.csv, ".csv");
  expect_named("--plot", options.plot, ".svg");
  const Table before = table_at(options.out);
  program::MeasureRequest request = request_of(options, all);
  request.gpu = before.gpu;
  std::vector<double> fractions, gains;
  Json rows = Json::array();
  std::vector<program::Measurement> measurements;
  const auto report = [&](const program::Measurement& m) {
    Progress::advance();
    if (rows.empty()) print_head(program);
    const program::Measured& best = plan_shown(m, all);
    print_row(program, m, best);
    print_tries(program, m);
    fractions.push_back(program::roofline_seconds(m) / best.seconds);
    gains.push_back(m.plans.front().seconds / best.seconds);
    rows.push_back(json_of(m));
    measurements.push_back(m);
    const bool last = rows.size() == request.problems.size();
    if (all) write_table(program, options.out, before, program::tuning_table(measurements, today(), before.text), last);
    if (!last) return;
    if (!options.csv.empty()) write_result(options.csv, csv_of(measurements, all, today()));
    if (!options.plot.empty()) write_result(options.plot, to_svg(chart_of(measurements, all, today())));
    print(program, "geometric means: {:.3f} of the roofline, {:.3f}x sequential", geometric_mean(fractions),
          geometric_mean(gains));
    print_json(program, {{"gpu", m.gpu},
                         {"date", today()},
                         {"rounds", request.rounds},
                         {"strategy", all ? "auto" : options.strategy},
                         {"rows", rows}});
  };
  // Ranks that are threads share their process with the timer, which is not to disturb what they measure.
  std::optional<Progress> progress;
  if (!World::launched() && !request.threads)
    progress.emplace(fmt::format("measuring over {} ranks", request.ranks), request.problems.size());
  return program::measure(request, report);
}

// A problem from a line of standard input; lines that are none are answered.
std::optional<Problem> read_problem(const BenchArguments& options) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string op, rest;
    Problem p;
    p.ranks = static_cast<int>(options.ranks);
    p.type = options.type;
    p.scales = chosen_scales(options.scales, options.type);
    p.b_layout = chosen_b_layout(options.b_layout, options.type);
    try {
      if (!(words >> op >> p.m >> p.n >> p.k) || words >> rest)
        throw Error(ErrorCode::invalid_input, fmt::format("'{}': a line is OP M N K", line));
      p.op = parse_operator(op);
      validate(p);
      return p;
    } catch (const Error& error) {
      print_text(Json{{"error", error.what()}}.dump() + "\n");
    }
  }
  return std::nullopt;
}

int serve(const BenchArguments& options) {
  for (const char* name : {"--csv", "--plot"})
    if (options.given(name)) refuse(fmt::format("{}: --serve answers on standard output only", name));
  program::MeasureRequest request = request_of(options, false);
  request.next = [&] { return read_problem(options); };
  return program::measure(request, [](const program::Measurement& m) { print_text(json_of(m).dump() + "\n"); });
}

// --ops all_reduce goes alone.
bool is_all_reduce(const BenchArguments& o) {
  const bool asked = std::find(o.ops.begin(), o.ops.end(), "all_reduce") != o.ops.end();
  if (asked && o.ops.size() > 1) refuse("--ops: all_reduce is tuned alone; --out keeps what the table says of others");
  if (!asked && o.given("--codecs")) refuse("--codecs is about --ops all_reduce");
  for (const char* name : {"--m", "--layers", "--b-layout", "--auto"})
    if (asked && o.given(name)) refuse(fmt::format("{} is about operators with a GEMM, not all_reduce", name));
  return asked;
}

// The operator with options of its own that --ops names; null if it names none.
const OwnOperator* own_of(const BenchArguments& o) {
  const OwnOperator* asked = nullptr;
  for (const auto& own : o.own)
    if (std::find(o.ops.begin(), o.ops.end(), own->name()) != o.ops.end()) asked = own.get();
  if (asked != nullptr && o.ops.size() > 1) refuse(fmt::format("--ops: {} is timed alone", asked->name()));
  for (const auto& own : o.own)
    for (const CLI::Option* option : o.app->get_options()) {
      if (option->count() == 0) continue;
      const bool its = option->get_group() == own->group();
      if (its && own.get() != asked) refuse(fmt::format("{} is about --ops {}", option->get_name(), own->name()));
      if (!its && own.get() == asked && !own->shares(option->get_name()))
        refuse(fmt::format("{} is about operators with a GEMM, not {}", option->get_name(), own->name()));
    }
  return asked;
}

int bench(const Program& program, const BenchArguments& o) {
  const OwnOperator* own = own_of(o);
  if (own == nullptr) return o.serve ? serve(o) : measure_and_print(program, o, false);
  expect_options(o);
  return own->bench(program, {static_cast<int>(o.ranks), static_cast<int>(o.rounds), static_cast<int>(o.runs), o.type,
                              strategy_named(o.strategy), o.world == "threads"});
}

int tune_products(const Program& program, const BenchArguments& o) {
  expect_options(o);
  program::ProductMeasureRequest request;
  request.problems = problems_of(o);
  request.rounds = static_cast<int>(o.rounds);
  if (o.runs > 0) request.runs = static_cast<int>(o.runs);
  return tune_products(program, request, o.out);
}

int tune(const Program& program, const BenchArguments& o) {
  if (o.card) {
    for (const char* name : {"--ops", "--m", "--layers", "--type", "--scales", "--b-layout", "--rounds", "--runs",
                             "--world", "--products", "--auto", "--codecs", "--csv", "--plot"})
      if (o.given(name)) refuse(fmt::format("{}: --card measures sizes and types of its own", name));
    return tune_card(program, o.given("--ranks") ? o.ranks : 0, o.out);
  }
  const bool all_reduce = is_all_reduce(o);
  if (o.products && all_reduce) refuse("--products is about operators with a GEMM, not all_reduce");
  for (const char* name : {"--csv", "--plot"})
    if ((o.products || all_reduce) && o.given(name))
      refuse(fmt::format("{} is about operators with a GEMM and their collective", name));
  if (o.products) return tune_products(program, o);
  if (!all_reduce) return measure_and_print(program, o, true);
  expect_options(o);
  program::AllReduceMeasureRequest request;
  request.ranks = static_cast<int>(o.ranks);
  request.type = o.type;
  request.codecs = codecs_named(o.codecs);
  request.rounds = static_cast<int>(o.rounds);
  if (o.runs > 0) request.runs = static_cast<int>(o.runs);
  request.threads = o.world == "threads";
  return tune_all_reduces(program, request, o.out);
}

void add_options(CLI::App& command, BenchArguments& o, const char* ops) {
  o.app = &command;
  command.add_option(ops, o.ops, "Operators; default: all four")->type_name("OP...");
  add_integers(command, "--m", o.sizes, 1, most_rows,
               "Rows; default: 64 512 2048 8192. Operators that do not take an M go without it")
      ->type_name("M...");
  command.add_option("--layers", o.layers, "N and K of the whole operator, as NxK; default: 8192x8192")
      ->type_name("NxK...");
  add_integer(command, "--ranks", o.ranks, 1, 64, "GPUs (default: as many ranks as a launcher started, else 4)");
  add_named<Type>(command, "--type", o.type, parse_type, "bf16 (default), fp16, fp32 or e4m3");
  add_scales(command, o.scales);
  add_b_layout(command, o.b_layout);
  add_integer(command, "--rounds", o.rounds, 1, 1000, "Samples of each candidate; they run in turn (default 9)");
  add_integer(command, "--runs", o.runs, 2, 1000,
              "Operations in a sample, even (default 8; from 0.1 ms on, as many as fill 10 ms, after 0.15 s of "
              "warm-up; tune: 2 from 0.5 ms on; all-reduces: 20)");
  command.add_option("--world", o.world, "Ranks are processes (default) or threads")->type_name("NAME");
  command.add_option("--csv", o.csv, "Write the table to FILE.csv at the end, for operators with a GEMM")
      ->type_name("FILE|-");
  command.add_option("--plot", o.plot, "Write a plot of the speed-ups over M to FILE.svg at the end")
      ->type_name("FILE");
}

std::shared_ptr<BenchArguments> defaults() {
  auto options = std::make_shared<BenchArguments>();
  options->ops = {"all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_to_all"};
  options->sizes = {64, 512, 2048, 8192};
  options->layers = {"8192x8192"};
  return options;
}

}  // namespace

void add_bench(Program& program) {
  auto options = defaults();
  auto shmem = std::make_shared<std::function<int()>>(), everything = std::make_shared<std::function<int()>>();
  CLI::App& command = add_command(
      program, "bench",
      "Times what Imbrex runs by itself, and cuBLAS with NCCL, on this machine's GPUs.\n"
      "All candidates are replayed from captured graphs, in turn, on random data. Times are medians of the slowest "
      "rank.\n"
      "The roofline is the longer of two times: cuBLAS alone, and the bytes on the wire at the links' rate in the "
      "machine\n"
      "file of these GPUs. GPUs without a machine file have cuBLAS alone.\n"
      "For embedding_all_to_all the strategies take turns, one call queued after the other; it also runs on the CPU.",
      "Examples:\n"
      "  imbrex bench --ops gemm_reduce_scatter --m 512 8192 --layers 8192x28672 --csv bench.csv --plot bench.svg\n"
      "  imbrex bench --ranks 2 --json bench.json\n"
      "  imbrex bench embedding_all_to_all --tables tables.json --batch 4096 65536\n"
      "  imbrex bench --ranks 1 --strategy fused                 products, by Imbrex' kernels and by cuBLAS\n"
      "  imbrex bench --ops all_gather_gemm --m 4096 --try comm_rows=256 --try order=column_major,own_shift=4\n"
      "  imbrex bench shmem --help                               OpenSHMEM calls in kernels\n"
      "  imbrex bench all --minutes 10 --out results             everything here, and a page of it",
      [options, shmem, everything, &program] {
        if (options->app->got_subcommand("all")) return (*everything)();
        return options->app->got_subcommand("shmem") ? (*shmem)() : bench(program, *options);
      });
  *shmem = add_bench_shmem(program, command);
  *everything = add_bench_all(command);
  add_options(command, *options, "--ops,OP");
  command.get_option("--ops")->description(
      "Operators; default: the four with a GEMM. embedding_all_to_all must be the only one");
  for (auto& own : own_operators())
    if (own->is_timed()) options->own.push_back(own), own->add_bench_to(command);
  command
      .add_option("--strategy", options->strategy,
                  "What Imbrex runs: sequential, decomposed, fused, or auto (default), what it runs by itself")
      ->type_name("NAME");
  command
      .add_option("--try", options->tries,
                  "Time also the chosen fused plan with these knobs changed, named as in a plan file")
      ->type_name("KNOB=VALUE,...")
      ->expected(1)
      ->take_all();
  command.add_flag("--serve", options->serve,
                   "Read problems from standard input, one a line (OP M N K), and answer each with a line of JSON. The "
                   "next one must come within IMBREX_WAIT_LIMIT");
}

void add_tune(Program& program) {
  auto options = defaults();
  CLI::App& command = add_command(
      program, "tune",
      "Times every plan worth trying on this machine's GPUs and writes down the fastest.\n"
      "A table in the folder machines/tuned/ decides what strategy auto runs on GPUs of that name. Measured sizes run "
      "the\n"
      "fastest plan; other sizes run the plan that the results of similar sizes predict to be fastest.\n"
      "All-reduces: the table says from which size on algorithm auto takes two shots, and --exact-below auto a codec.\n"
      "--products: the table names the algorithm of cuBLASLt's suggestions that is faster than the first. Strategy\n"
      "sequential takes it. One GPU measures them for any number of ranks.\n"
      "--auto FILE: a program that ran with IMBREX_UNTUNED_SIZES=FILE has written the sizes that no table has to "
      "FILE.\n"
      "--card: measures the compute and link rates of GPUs that Imbrex does not know, in half a minute.",
      "Examples:\n"
      "  imbrex tune --ops all_gather_gemm --m 64 512 4096 --layers 28672x4096 --out machines/tuned/mine.json\n"
      "  imbrex tune --products --ranks 4 --m 16 128 --layers 28672x4096 --out machines/tuned/mine.json\n"
      "  imbrex tune --ops all_reduce --codecs int8 int4 --ranks 4 --out machines/tuned/mine.json\n"
      "  imbrex tune --auto sizes.txt --out machines/tuned/mine.json\n"
      "  imbrex tune --card",
      [options, &program] { return tune(program, *options); });
  add_options(command, *options, "--ops");
  command.get_option("--ops")->description("Operators; default: the four with a GEMM. all_reduce must be the only one");
  command.add_flag("--products", options->products,
                   "Time the algorithms that cuBLASLt suggests for one rank's GEMM, on one GPU");
  command.add_flag("--card", options->card,
                   "Measure this machine's GPUs. auto uses the result for sizes that no table has. It is kept in the "
                   "user's cache folder (IMBREX_CACHE)");
  command
      .add_option("--auto", options->met,
                  "Measure the sizes in this file, which a program wrote (IMBREX_UNTUNED_SIZES). If it has several "
                  "numbers of ranks, only those for --ranks")
      ->type_name("FILE");
  options->codecs = {"int8", "fp8-g128", "int6", "flash6", "int4"};
  command
      .add_option("--codecs", options->codecs,
                  "For all_reduce: codecs to measure; default: int8 fp8-g128 int6 flash6 int4")
      ->type_name("CODEC...");
  command
      .add_option("--out", options->out,
                  "Write the results to this file. Entries of the same sizes are replaced, others kept. The output "
                  "ends with how many were added, replaced and kept")
      ->type_name("FILE");
}

}  // namespace imbrex::cli
