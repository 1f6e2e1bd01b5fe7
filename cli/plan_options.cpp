// OP, sizes, strategy and knobs on the command line.
#include <algorithm>

#include <fmt/ranges.h>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "own_operators.hpp"
#include "program/explain.hpp"

namespace imbrex::cli {
namespace {

constexpr std::int64_t most = std::int64_t{1} << 31;
constexpr const char* layout_group = "Layouts and further operands";
constexpr const char* knob_group = "Knobs (how the plan is made; names as in a plan file; what is not given is chosen)";

GroupSizes group_sizes(const std::vector<std::int64_t>& given) {
  GroupSizes sizes{};
  if (given.size() > sizes.size())
    refuse(fmt::format("--groups has {} sizes; it may have {}", given.size(), sizes.size()));
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] < 1 || given[i] >= most)
      refuse(fmt::format("--groups: a size of {}; it must be from 1 to {}", given[i], most - 1));
    sizes[i] = static_cast<std::int32_t>(given[i]);
  }
  return sizes;
}

// What each B after the first has, up to the last one that has it.
std::vector<std::int64_t> further(const std::array<std::int64_t, max_products - 1>& list) {
  std::vector<std::int64_t> all(list.begin(), list.end());
  while (!all.empty() && all.back() == 0) all.pop_back();
  return all;
}

std::vector<std::int64_t> further_n_of(const Problem& problem) { return further(problem.more_n); }

bool has_pitches(const Problem& p) {
  return p.lda != 0 || p.ldb != 0 || p.ldo != 0 || !further(p.more_ldb).empty() || !further(p.more_ldo).empty();
}

std::string text_of(const std::vector<std::int64_t>& sizes) {
  return sizes.empty() ? "none" : fmt::format("{}", fmt::join(sizes, ","));
}

}  // namespace

void add_scales(CLI::App& app, std::optional<Scales>& to) {
  add_named<std::optional<Scales>>(
      app, "--scales", to, [](std::string_view text) -> std::optional<Scales> { return parse_scales(text); },
      "e4m3: scales that products are multiplied by. tensor (default): one for each rank's A and one for its B; row: "
      "one for each row of A and column of B; none");
}

Scales chosen_scales(const std::optional<Scales>& given, Type type) {
  if (given && *given != Scales::none && type != Type::e4m3)
    refuse(fmt::format("--scales {} with type {}: only e4m3 has scales", name_of(*given), name_of(type)));
  return given.value_or(type == Type::e4m3 ? Scales::tensor : Scales::none);
}

void add_b_layout(CLI::App& app, std::optional<Layout>& to) {
  add_named<std::optional<Layout>>(
      app, "--b-layout", to,
      [](std::string_view text) -> std::optional<Layout> {
        if (text == "kxn") return Layout::row_major;
        if (text == "nxk") return Layout::column_major;
        refuse(fmt::format("'{}' is not a layout of B; it must be kxn or nxk", text));
      },
      "How B lies in memory: kxn (default) is K x N by rows; nxk is N x K by rows, like the weights of a linear layer. "
      "B of e4m3 is always nxk. Files hold K x N");
}

Layout chosen_b_layout(const std::optional<Layout>& given, Type type) {
  if (type != Type::e4m3) return given.value_or(Layout::row_major);
  if (given == Layout::row_major) refuse("--b-layout kxn with type e4m3: B of e4m3 lies nxk");
  return Layout::row_major;  // what an e4m3 problem says, whose B has one layout
}

const char* name_of_b_layout(Layout layout) { return layout == Layout::column_major ? "nxk" : "kxn"; }

void PlanOptions::add_to(CLI::App& command) {
  app = &command;
  std::string names;
  for (const program::OperatorHelp& each : program::list_operators())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
  command.add_option("OP", op, names)->type_name("");
  own = own_operators();
  for (const auto& each : own) each->add_to(command);
  constexpr std::int64_t largest = std::int64_t{1} << 40;
  add_integer(command, "--m", m, 1, largest, "Rows M of the product, in elements");
  add_integer(command, "--n", n, 1, largest, "Columns N of the product, in elements");
  add_integer(command, "--k", k, 1, largest, "Depth K that the product sums over, in elements");
  add_integer(command, "--ranks", ranks, 1, max_ranks,
              "Ranks R that share the work, 1 to 64 (default: as many as a launcher started, else 4)");
  const auto parse = [this](std::string_view text) {
    type_name = text;
    const auto knows = [&](const auto& each) { return each->has_type(text); };
    return std::any_of(own.begin(), own.end(), knows) ? type : parse_type(text);  // expect_type comes when OP is known
  };
  add_named<Type>(command, "--type", type, parse,
                  "Element type: bf16, fp16, fp32, or e4m3 with bf16 results (default bf16); jacobi: fp32 (default) or "
                  "fp64");
  add_scales(command, scales);
  add_b_layout(command, b_layout);
  command.add_flag("--with-bias", bias,
                   "Add a row, the bias, to every row of the output (where ranks exchange products: of each one)");
  add_integers(command, "--more-n", more_n, 1, largest,
               "all_gather_gemm: columns N of a second and a third B. The gathered A is multiplied by these too")
      ->type_name("INT[,INT]")
      ->delimiter(',')
      ->expected(1, max_products - 1)
      ->group(layout_group);
  command.add_flag("--gathered-a", gathered_a, "all_gather_gemm: the gathered A is an output, too")
      ->group(layout_group);
  add_integer(command, "--lda", lda, 0, most - 1,
              "Leading dimension of A: elements from one row to the next in memory; 0 (default): without gaps")
      ->group(layout_group);
  add_integer(command, "--ldb", ldb, 0, most - 1,
              "Leading dimension of B; 0 (default): without gaps. For nxk, it counts from one row of N x K to the next")
      ->group(layout_group);
  add_integer(command, "--ldo", ldo, 0, most - 1, "Leading dimension of the output; 0 (default): without gaps")
      ->group(layout_group);
  add_integers(command, "--more-ldb", more_ldb, 0, most - 1, "Leading dimensions of the second and the third B")
      ->type_name("INT[,INT]")
      ->delimiter(',')
      ->expected(1, max_products - 1)
      ->group(layout_group);
  add_integers(command, "--more-ldo", more_ldo, 0, most - 1, "Leading dimensions of their outputs")
      ->type_name("INT[,INT]")
      ->delimiter(',')
      ->expected(1, max_products - 1)
      ->group(layout_group);
  command
      .add_option("--strategy", strategy,
                  "sequential (GEMM, then collective), decomposed (in chunks), fused (tile by tile), signaled (in tile "
                  "groups), or auto (default): the fastest by prediction")
      ->type_name("NAME");

  add_integer(command, "--tile-m", knobs.tile_m, 1, most, "Rows of a tile (default 128)")->group(knob_group);
  add_integer(command, "--tile-n", knobs.tile_n, 1, most, "Columns of a tile (default 128)")->group(knob_group);
  add_integer(command, "--cluster", cluster, 0, 2,
              "Tiles that share their part of B on a GPU: 1, 2, or 0 (default) for either")
      ->group(knob_group);
  add_integer(command, "--cluster-k", cluster_k, 1, 2,
              "Split-K within a cluster: CTAs that share a tile, each with its share of K: 1 (default) or 2")
      ->group(knob_group);
  add_integer(command, "--group", group, 1, most - 1, "Tile rows per CTA swizzle group (default 8)")->group(knob_group);
  add_named<TileOrder>(command, "--order", knobs.order, parse_tile_order,
                       "owner_major (default), column_major or naive")
      ->group(knob_group);
  add_named<Transport>(command, "--transport", knobs.transport, parse_transport,
                       "store, push (default) or pull: who moves the data (library strategies on GPUs: store is "
                       "Imbrex' own collectives)")
      ->group(knob_group);
  add_named<Reducer>(command, "--reducer", knobs.reducer, parse_reducer,
                     "tile (default), tail or reserved: who adds the ranks' products, and when")
      ->group(knob_group);
  add_integer(command, "--comm-rows", knobs.comm_rows, 0, most, "Rows per copy; 0 (default): a whole shard")
      ->group(knob_group);
  add_integer(command, "--k-slices", k_slices, 1, most - 1, "K slices in which a row block travels (default 1)")
      ->group(knob_group);
  add_integer(command, "--split-k", split_k, 1, most - 1,
              "fused: split-K: parts that each tile's K is cut into, of 128 or more (default 1). The worker of the "
              "last part adds the others")
      ->group(knob_group);
  command
      .add_option("--codec", codec,
                  "Codec of sums on the wire (docs/quantization.md): exact (default), int8, int4-g128 ...; int4+int8: "
                  "one for each phase. Fused plans with a GEMM: exact only")
      ->type_name("NAME")
      ->group(knob_group);
  add_integer(command, "--chunks", chunks, 1, most - 1,
              "decomposed: parts of the result, or of each block of A that all_gather_gemm passes on (default 2); "
              "signaled: groups, equal if possible (default: chosen)")
      ->group(knob_group);
  command
      .add_option("--groups", groups,
                  "signaled: sizes of the groups, at most 16 groups. They count rows of tiles of each rank's part; "
                  "with --packed, tiles")
      ->delimiter(',')
      ->type_name("N,...")
      ->group(knob_group);
  command.add_flag("--packed", knobs.packed, "signaled, gemm_all_reduce: let groups be any number of tiles")
      ->group(knob_group);
  add_integer(command, "--kept-free", kept_free, 0, most - 1,
              "signaled: SMs that the product leaves to the collectives (default 0)")
      ->group(knob_group);
  add_integer(command, "--nodes", nodes, 1, max_ranks,
              "sequential, decomposed, fused without a GEMM: hosts that share the ranks equally (default 1). "
              "Collectives then cross between hosts once")
      ->group(knob_group);
  add_integer(command, "--library-tile", library_tile, 0, most - 1,
              "sequential, decomposed: use cuBLASLt's suggested algorithm whose tile has this id; 0 (default): its "
              "first suggestion")
      ->group(knob_group);
  add_integer(command, "--library-parts", library_parts, 1, most - 1,
              "And that splits K into this many parts (default 1)")
      ->group(knob_group);
  add_integer(command, "--own-shift", own_shift, 0, most - 1,
              "column_major: columns by which own tiles run after the others (all_gather_gemm: before them; default 0)")
      ->group(knob_group);
  add_integer(command, "--abreast", abreast, 0, most - 1,
              "column_major: owners whose rows run side by side before those of the next owners; 0 (default): all")
      ->group(knob_group);
  command.add_flag("--span-shards", knobs.span_shards, "Let tiles cover rows of several ranks")->group(knob_group);
  command.add_flag("--one-shot", knobs.one_shot, "gemm_all_reduce: every rank sends its product to all others")
      ->group(knob_group);
  add_named<Type>(command, "--partial", knobs.partial, parse_type,
                  "Element type of partial products on the wire (default: as --type; for e4m3, bf16)")
      ->group(knob_group);
}

void PlanOptions::add_plan_file(CLI::App& command) {
  command.add_option("--plan", plan_file, "Take this plan instead (JSON; - is standard input), after checking it")
      ->type_name("FILE|-");
  command.add_flag("--unchecked", unchecked, "Take the plan of --plan without checking it");
}

Problem PlanOptions::problem(bool from_files) const {
  if (op.empty()) refuse("no operator was given; name OP, or a plan with --plan");
  for (const auto& each : own)
    if (each->name() == op) each->expect_plan();
  const Operator known = parse_operator(op);
  if (const OwnOperator* asked = asked_for()) return asked->problem(*this);
  Problem problem{known,
                  m,
                  n,
                  k,
                  static_cast<int>(ranks),
                  type,
                  bias,
                  chosen_scales(scales, type),
                  chosen_b_layout(b_layout, type),
                  {},
                  gathered_a,
                  lda,
                  ldb,
                  ldo};
  std::copy(more_n.begin(), more_n.end(), problem.more_n.begin());
  std::copy(more_ldb.begin(), more_ldb.end(), problem.more_ldb.begin());
  std::copy(more_ldo.begin(), more_ldo.end(), problem.more_ldo.begin());
  if (from_files && !has_sizes()) return problem;
  for (const auto& [name, value] : {std::pair{"--m", m}, {"--n", n}, {"--k", k}})
    if (value == 0) refuse(fmt::format("{} is missing; --m, --n and --k are needed together", name));
  validate(problem);
  return problem;
}

CLI::Option* add_device(CLI::App& app, std::string& to, const std::string& about) {
  return app.add_option("--device", to, about)->type_name("NAME");
}

Device device_named(const std::string& name) {
  if (name != "auto" && name != "cpu" && name != "cuda")
    refuse(with_suggestion(name, fmt::format("--device '{}': it must be auto, cpu or cuda", name)));
  return parse_device(name);
}

std::optional<CodecPair> codec_named(const std::string& name) {
  if (name == "exact") return std::nullopt;
  return naming(
      "--codec: ", [&] { return parse_codec_pair(name); }, "; or exact");
}

std::optional<Strategy> PlanOptions::chosen_strategy() const { return strategy_named(strategy); }

std::optional<Strategy> strategy_named(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return naming(
      "--strategy: ", [&] { return parse_strategy(name); }, "; or auto");
}

plan::GivenKnobs PlanOptions::chosen_knobs() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options())
    if (option->get_group() == knob_group && option->count() > 0) {
      std::string name = option->get_name().substr(2);
      std::replace(name.begin(), name.end(), '-', '_');
      names.push_back(std::move(name));
    }
  if (names.empty()) return {};
  Knobs result = knobs;
  result.group = static_cast<int>(group);
  result.k_slices = static_cast<int>(k_slices);
  result.split_k = static_cast<int>(split_k);
  result.chunks = static_cast<int>(chunks);
  result.groups = group_sizes(groups);
  result.kept_free = static_cast<int>(kept_free);
  result.nodes = static_cast<int>(nodes);
  result.cluster = static_cast<int>(cluster);
  result.cluster_k = static_cast<int>(cluster_k);
  result.library_tile = static_cast<int>(library_tile);
  result.library_parts = static_cast<int>(library_parts);
  result.own_shift = static_cast<int>(own_shift);
  result.abreast = static_cast<int>(abreast);
  result.codec = codec_named(codec);
  return {result, names};
}

std::optional<Plan> PlanOptions::read_plan() const {
  if (plan_file.empty()) {
    if (unchecked) refuse("--unchecked is about --plan, which was not given");
    return std::nullopt;
  }
  const std::string text = read_file(plan_file);
  Plan plan = naming(plan_file + ": ", [&] { return parse_plan(text); });
  const Problem& problem = plan.problem;
  const auto expect_same = [&](const char* name, const auto& given, const auto& planned) {
    if (app->get_option(name)->count() > 0 && given != planned)
      refuse(fmt::format("{} is {}, but plan {} was made for {}", name, given, plan_file, planned));
  };
  expect_same("OP", op, name_of(problem.op));
  expect_same("--m", m, problem.m);
  expect_same("--n", n, problem.n);
  expect_same("--k", k, problem.k);
  expect_same("--ranks", ranks, problem.ranks);
  expect_same("--with-bias", bias, problem.bias);
  expect_type(nullptr);
  expect_same("--type", name_of(type), name_of(problem.type));
  if (scales) expect_same("--scales", name_of(*scales), name_of(problem.scales));
  if (b_layout)
    expect_same("--b-layout", name_of_b_layout(*b_layout), name_of_b_layout(operands_of(problem)[1].layout));
  expect_same("--more-n", text_of(more_n), text_of(further_n_of(problem)));
  expect_same("--gathered-a", gathered_a, problem.gathered_a);
  expect_same("--lda", lda, problem.lda);
  expect_same("--ldb", ldb, problem.ldb);
  expect_same("--ldo", ldo, problem.ldo);
  expect_same("--more-ldb", text_of(more_ldb), text_of(further(problem.more_ldb)));
  expect_same("--more-ldo", text_of(more_ldo), text_of(further(problem.more_ldo)));
  if (chosen_strategy()) expect_same("--strategy", strategy, name_of(plan.strategy));
  if (chosen_knobs()) refuse(fmt::format("plan {} is made; knobs belong to a plan that is to be made", plan_file));
  return plan;
}

std::optional<Plan> PlanOptions::read_checked_plan() const {
  auto plan = read_plan();
  if (!plan) return plan;
  if (const auto finding = unchecked ? check_format(*plan) : check(*plan))
    throw Error(ErrorCode::unsound, fmt::format("plan {} is unsound: {}", plan_file, describe(*finding)));
  return plan;
}

Plan PlanOptions::make(const Machine& machine) const {
  if (auto plan = read_checked_plan()) return *std::move(plan);
  const plan::GivenKnobs given = chosen_knobs();
  OperatorOptions options{.strategy = chosen_strategy(), .knobs = given.optional(), .cpu = {}};
  options.fixed_knobs = given.names();
  return choose_plan(problem(false), machine, options);
}

Json to_json_value(const Problem& problem) {
  if (const auto known = own_operator(name_of(problem.op))) return known->json(problem);
  Json json{{"operator", name_of(problem.op)},
            {"m", problem.m},
            {"n", problem.n},
            {"k", problem.k},
            {"ranks", problem.ranks},
            {"type", name_of(problem.type)},
            {"bias", problem.bias}};
  if (problem.scales != Scales::none) json["scales"] = name_of(problem.scales);
  if (problem.b_layout != Layout::row_major) json["b_layout"] = name_of_b_layout(problem.b_layout);
  if (const auto more_n = further_n_of(problem); !more_n.empty()) json["more_n"] = more_n;
  if (problem.gathered_a) json["gathered_a"] = true;
  for (const auto& [key, value] : {std::pair("lda", problem.lda), {"ldb", problem.ldb}, {"ldo", problem.ldo}})
    if (value != 0) json[key] = value;
  if (const auto list = further(problem.more_ldb); !list.empty()) json["more_ldb"] = list;
  if (const auto list = further(problem.more_ldo); !list.empty()) json["more_ldo"] = list;
  return json;
}

std::string describe(const Plan& plan) {
  const Problem& p = plan.problem;
  if (const auto known = own_operator(name_of(p.op)))
    return fmt::format("{}, {} rank{}, {}", known->title(p), p.ranks, p.ranks == 1 ? "" : "s", name_of(plan.strategy));
  std::string n = fmt::format("{}", p.n);
  for (const std::int64_t further : further_n_of(p)) n += fmt::format("+{}", further);
  return fmt::format("{} {} x {} x {} {}{}{}{}{}{}, {} rank{}, {}", name_of(p.op), p.m, n, p.k, name_of(p.type),
                     p.scales == Scales::none ? "" : fmt::format(" with scales a {}", name_of(p.scales)),
                     p.bias ? " with bias" : "", p.b_layout == Layout::row_major ? "" : ", B nxk",
                     p.gathered_a ? ", A given" : "", has_pitches(p) ? ", rows with gaps" : "", p.ranks,
                     p.ranks == 1 ? "" : "s", name_of(plan.strategy));
}

std::string describe(Strategy strategy, const program::Reason& reason) {
  if (reason.basis.empty()) return {};
  std::string chosen, others;
  for (const program::Expectation& each : reason.expected) {
    const std::string seconds = readable_seconds(each.seconds);
    if (each.strategy == strategy)
      chosen = fmt::format("{}, ", seconds);
    else
      others += fmt::format("{} {} {}", others.empty() ? ";" : ",", name_of(each.strategy), seconds);
  }
  return fmt::format("auto takes {}: {}{}{}", name_of(strategy), chosen, reason.basis, others);
}

Json to_json_value(const Finding& finding) {
  return {{"fault", name_of(finding.fault)},
          {"rank", finding.rank},
          {"queue", finding.queue},
          {"task", finding.task},
          {"message", finding.message}};
}

std::string describe(const Finding& finding) { return fmt::format("{}: {}", name_of(finding.fault), finding.message); }

}  // namespace imbrex::cli
