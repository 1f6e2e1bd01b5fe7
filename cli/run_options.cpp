#include "run_options.hpp"

#include "imbrex/error.hpp"
#include "imbrex/npy.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cli {
namespace {

// "--b1".
std::string option_of(const char* name, std::size_t i) { return fmt::format("{}{}", name, i + 1); }

constexpr const char* file_group = "Operands from files";
constexpr std::int64_t largest_seed = std::int64_t{1} << 62;

}  // namespace

void RunOptions::add_to(CLI::App& command) {
  command
      .add_option("--a", a,
                  "A from this .npy file: float32, float16, or uint8 as bits of e4m3; C order, the whole matrix (not a "
                  "rank's part)")
      ->type_name("FILE")
      ->group(file_group);
  command.add_option("--b", b, "B from this .npy file, as K x N whatever --b-layout says")
      ->type_name("FILE")
      ->group(file_group);
  command
      .add_option("--bias", bias,
                  "With --a and --b: a bias from this .npy file, N elements, or R x N where ranks exchange products, a "
                  "row for each rank (random operands: --with-bias)")
      ->type_name("FILE")
      ->group(file_group);
  for (std::size_t i = 0; i < further.size(); ++i) {
    command
        .add_option(option_of("--b", i), further[i].b,
                    "With --a and --b: a further B of all_gather_gemm, from this .npy file")
        ->type_name("FILE")
        ->group(file_group);
    command.add_option(option_of("--bias", i), further[i].bias, "And its bias, where there are biases")
        ->type_name("FILE")
        ->group(file_group);
  }
  for (const auto& [name, to] : {std::pair{"--a-scale", &a_scale}, {"--b-scale", &b_scale}})
    command
        .add_option(
            name, *to,
            fmt::format("With --a and --b: scales of {} from this .npy file, float32; row r: those of rank r's part",
                        name[2] == 'a' ? "A" : "B"))
        ->type_name("FILE")
        ->group(file_group);
  add_integer(command, "--seed", seed, 0, largest_seed, "Without --a and --b: seed of the random operands (default 0)");
  command
      .add_option("--out", out,
                  "Write rank r's output to PREFIX.rank<r>.npy, float32. Other outputs (out1, out2, gathered) go to "
                  "PREFIX.NAME.rank<r>.npy")
      ->type_name("PREFIX");
  command.add_flag("--verify", verify,
                   "Compare the result with a float64 reference, within a derived bound; exit 1 if an element is "
                   "outside. Large results are compared in rows that --verify-seed draws; the output says how many");
  command.add_flag("--verify-all", verify_all, "As --verify, but every row, however long that takes");
  add_integer(command, "--verify-seed", verify_seed, 0, largest_seed,
              "Draws the rows that --verify compares (default 0)");
  add_integer(command, "--repeat", repeat, 1, 1000000, "Times to run the operator (default 1)");
  add_device(
      command, device,
      "cpu, cuda, or auto (default): cuda if this build and this machine can run the plan with one GPU for each rank");

  constexpr const char* group = "Execution";
  command.add_option("--world", world, "Ranks are processes (default) or threads")->type_name("NAME")->group(group);
  add_integer(command, "--workers", workers, 1, 1024, "CPU: threads of each rank that compute tiles (default 1)")
      ->group(group);
  command
      .add_option("--kernel", kernel,
                  "GPUs: GEMM kernel of a fused plan, by a part of its name: plain, pingpong, cooperative, sm80 "
                  "(default: the one that fits best)")
      ->type_name("NAME")
      ->group(group);
  add_integer(command, "--ranks-per-gpu", ranks_per_gpu, 1, max_ranks,
              "GPUs: ranks that share each GPU (default 1). Times mean nothing if they share. Processes run "
              "concurrently under MPS, else in time slices")
      ->group(group);
  add_number(command, "--wait-limit", wait_limit, 1e-3, 1e6,
             "Seconds that any wait may last (default: IMBREX_WAIT_LIMIT; else 30, and 600 for late ranks)")
      ->group(group);
  add_integer(command, "--delays", delays, 0, largest_seed,
              "For tests: random pauses before tasks, waits and posts, from this seed; 0 (default): none")
      ->group(group);
}

void RunOptions::expect_writable_out() const {
  if (out.empty()) return;
  naming("--out ", [&] { expect_npy_writable(out + ".rank0.npy"); });
}

void RunOptions::expect_scales(const Problem& problem, bool from_files) const {
  const bool scaled = problem.scales != Scales::none;
  for (const auto& [name, path] : {std::pair{"--a-scale", &a_scale}, {"--b-scale", &b_scale}}) {
    if (!path->empty() && !from_files)
      refuse(fmt::format("{} needs --a and --b; random operands have random scales", name));
    if (!path->empty() && !scaled) refuse(fmt::format("{} {}: the problem is one without scales", name, *path));
    if (path->empty() && from_files && scaled)
      refuse(fmt::format(
          "{} is missing: A and B come from files, and so do their scales, a {}; --scales none does without", name,
          name_of(problem.scales)));
  }
}

void RunOptions::expect_further(const PlanOptions& plan, const Problem& problem, bool from_files) const {
  for (std::size_t i = 0; i < further.size(); ++i) {
    const auto& [b_path, bias_path] = further[i];
    const std::string name = option_of("--b", i), bias_name = option_of("--bias", i);
    const bool wanted = problem.more_n[i] > 0;
    if (!b_path.empty() && !from_files) refuse(fmt::format("{} needs --a and --b; --more-n is for random ones", name));
    if (!b_path.empty() && i > 0 && further[i - 1].b.empty())
      refuse(fmt::format("{} needs {}", name, option_of("--b", i - 1)));
    if (!b_path.empty() && !plan.plan_file.empty() && !wanted)
      refuse(fmt::format("{} {}: the plan is for a problem without it", name, b_path));
    if (b_path.empty() && from_files && wanted)
      refuse(fmt::format("{} is missing: A and B come from files, and so do further B", name));
    if (!bias_path.empty() && b_path.empty()) refuse(fmt::format("{} needs {}", bias_name, name));
    if (!b_path.empty() && problem.bias == bias_path.empty())
      refuse(problem.bias ? fmt::format("{} is missing: the problem has biases, and A and B come from files", bias_name)
                          : fmt::format("{} {}: the problem has no bias", bias_name, bias_path));
  }
}

program::RunRequest RunOptions::request(const PlanOptions& plan) const {
  const Device named = device_named(device);
  if (world != "processes" && world != "threads")
    refuse(fmt::format("--world '{}': it must be processes or threads", world));
  const bool from_files = !a.empty() || !b.empty();
  if (a.empty() != b.empty())
    refuse(fmt::format("{} is missing: --a and --b must be given together", a.empty() ? "--a" : "--b"));
  if (!bias.empty() && !from_files)
    refuse("--bias needs --a and --b; with random operands, --with-bias adds a random one");
  if (from_files && plan.app->get_option("--seed")->count() > 0)
    refuse("--seed is about random operands; --a and --b are given");

  const bool for_cpu = plan.app->get_option("--workers")->count() > 0;
  if (named == Device::cuda && for_cpu) refuse("--workers is about the CPU; --device is cuda");
  if (!kernel.empty() && (named == Device::cpu || for_cpu))
    refuse(fmt::format("--kernel is about GPUs; {}", for_cpu ? "--workers is about the CPU" : "--device is cpu"));

  const bool sharing = plan.app->get_option("--ranks-per-gpu")->count() > 0;
  if (sharing && (named == Device::cpu || for_cpu))
    refuse(fmt::format("--ranks-per-gpu {} is about GPUs; {}", ranks_per_gpu,
                       for_cpu ? "--workers is about the CPU" : "--device is cpu"));

  if (!verify && !verify_all && plan.app->get_option("--verify-seed")->count() > 0)
    refuse("--verify-seed draws the rows that --verify compares, and --verify is not given");
  expect_writable_out();

  program::RunRequest request;
  request.device = named;
  if (named == Device::automatic && for_cpu) request.device = Device::cpu;
  if (named == Device::automatic && (!kernel.empty() || sharing)) request.device = Device::cuda;
  request.plan = plan.read_plan();
  request.unchecked = plan.unchecked;
  request.problem = request.plan ? request.plan->problem : plan.problem(from_files);
  if (!request.plan && !bias.empty()) request.problem.bias = true;
  if (from_files && request.problem.bias == bias.empty())
    refuse(bias.empty() ? "--bias is missing: the problem has a bias, and A and B come from files"
                        : fmt::format("--bias {}: the plan is for a problem without a bias", bias));
  expect_scales(request.problem, from_files);
  expect_further(plan, request.problem, from_files);
  request.strategy = plan.chosen_strategy();
  request.knobs = plan.chosen_knobs();
  request.seed = static_cast<std::uint64_t>(seed);
  request.a_path = a;
  request.b_path = b;
  request.bias_path = bias;
  request.further = further;
  request.a_scale_path = a_scale;
  request.b_scale_path = b_scale;
  request.out_prefix = out;
  request.verify = verify || verify_all;
  request.verify_all = verify_all;
  request.verify_seed = static_cast<std::uint64_t>(verify_seed);
  request.repeat = static_cast<int>(repeat);
  request.threads = world == "threads";
  request.kernel = kernel;
  request.ranks_per_gpu = static_cast<int>(ranks_per_gpu);
  request.cpu.workers = static_cast<int>(workers);
  request.cpu.testing.delays = static_cast<std::uint64_t>(delays);
  request.wait_limit = wait_limit;
  return request;
}

int run_reporting(const Program& program, const program::RunRequest& request,
                  const std::function<void(const program::RunResult&)>& report) {
  // Under a launcher, every rank is this program; one line of progress is enough, and none of them knows who prints it.
  std::optional<Progress> progress;
  program::RunRequest told = request;
  if (!World::launched()) {
    progress.emplace(fmt::format("running {}{} over {} ranks", request.verify ? "and verifying " : "",
                                 name_of(request.problem.op), request.problem.ranks),
                     program::parts_of(request, request.problem));
    told.part_done = [] { Progress::advance(); };
  }
  const int code = program::run(told, report);
  if (code >= static_cast<int>(ErrorCode::invalid_input))
    print_json(program, {{"exit_code", code}, {"error", "a rank failed; standard error has its message"}});
  return code;
}

}  // namespace imbrex::cli
