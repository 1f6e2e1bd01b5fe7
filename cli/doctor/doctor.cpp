// imbrex doctor: what this machine offers, what is missing, and what to do about it, in words.
#include "examination.hpp"

#include <algorithm>
#include <array>
#include <fstream>

#include "imbrex/environment.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "output/colour.hpp"
#include "program/limits/limits.hpp"
#include "program/limits/strategies_here.hpp"

namespace imbrex::cli {

void Examination::say(Verdict verdict, const std::string& what, const std::string& words, const std::string& remedy) {
  constexpr std::array<const char*, 3> marks{"ok", "note", "missing"};
  const char* mark = marks[static_cast<std::size_t>(verdict)];
  const Colour colour = verdict == Verdict::good ? Colour::good : verdict == Verdict::note ? Colour::note : Colour::bad;
  print(program_, "{} {:<11} {}", coloured(program_, colour, fmt::format("{:<8}", mark)), what, words);
  if (!remedy.empty()) print(program_, "{:<8} {:<11} to do: {}", "", "", remedy);
  Json finding{{"verdict", mark}, {"what", what}, {"words", words}};
  if (!remedy.empty()) finding["remedy"] = remedy;
  findings_.push_back(finding);
  if (verdict != Verdict::missing) return;
  missing_ = true;
  needed_.push_back(remedy.empty() ? fmt::format("{}: {}", what, words) : fmt::format("{}: {}", what, remedy));
}

Json Examination::say_next(const std::vector<std::string>& steps) {
  Json all = Json::array();
  print(program_, "What to do next:");
  for (const auto& list : {needed_, steps})
    for (const std::string& step : list) {
      print(program_, "  {}", step);
      all.push_back(step);
    }
  return all;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

namespace {

/// Which strategies run here, with what of the machine, or what keeps them from it.
Json examine_strategies(Examination& exam, const GpuSurvey& survey) {
  Json strategies = Json::array();
  for (const program::StrategyHere& strategy : program::strategies_here(survey)) {
    exam.say(strategy.runs ? Verdict::good : Verdict::note, "strategy",
             fmt::format("{} {}: {}", strategy.name, strategy.runs ? "runs" : "does not run", strategy.why));
    strategies.push_back({{"name", strategy.name}, {"runs", strategy.runs}, {"why", strategy.why}});
  }
  return strategies;
}

void examine_launchers(Examination& exam) {
  // What nearly every process has says nothing of this machine.
  const auto usual = [](const std::string& name) { return name == "HOME" || name == "TERM"; };
  for (const EnvironmentVariable& variable : environment_variables())
    if (variable.fault.starts_with("IMBREX_"))
      exam.say(Verdict::missing, "environment", fmt::format("{}; every run is refused", variable.fault));
    else if (variable.value && !usual(variable.name))
      exam.say(Verdict::note, "environment",
               fmt::format("{}={} ({})", variable.name, *variable.value, variable.description));
  for (const std::string& name : unread_variables())
    exam.say(Verdict::note, "environment", name + " is set, and the library reads no variable of that name",
             "`imbrex env` lists those that it reads");
  try {
    exam.say(Verdict::good, "launcher",
             World::launched() ? "a launcher's variables are set; this process is one of its ranks"
                               : "none; `imbrex launch -n 4 -- program` starts ranks here");
  } catch (const Error& error) {
    exam.say(Verdict::missing, "launcher", error.what());
  }
}

// Commands that this machine can run, the most telling first.
std::vector<std::string> steps_of(const GpuSurvey& survey, bool runs) {
  const std::size_t gpus = survey.gpus.size();
  std::vector<std::string> steps;
  if (gpus > 1 && runs) {
    steps.push_back(
        fmt::format("imbrex run gemm_reduce_scatter --m 4096 --n 4096 --k 4096 --ranks {} --device cuda "
                    "--repeat 10 --verify",
                    gpus));
    steps.push_back(
        fmt::format("imbrex bench --ops gemm_reduce_scatter --m 512 8192 --layers 8192x28672 --ranks {}", gpus));
  } else if (gpus == 1 && runs) {
    steps.push_back(
        "imbrex run gemm_reduce_scatter --m 1024 --n 1024 --k 1024 --ranks 2 --ranks-per-gpu 2 --device cuda --verify");
  } else {
    steps.push_back("imbrex run gemm_reduce_scatter --m 512 --n 512 --k 2048 --device cpu --verify");
  }
  steps.push_back("imbrex simulate gemm_reduce_scatter --m 8192 --n 8192 --k 28672 --machine 4xh200");
  steps.push_back("a message that you do not understand: docs/troubleshooting.md");
  return steps;
}

}  // namespace

void add_doctor(Program& program) {
  const auto limits = std::make_shared<bool>(false);
  CLI::App& doctor = add_command(
      program, "doctor",
      "Says what this machine offers to Imbrex, and what is missing.\n"
      "It checks the machine: cores, memory, BLAS, ways to share memory, limits, GPUs and their links, and MPS. It "
      "checks\n"
      "the software: how this program was built, libraries, the Python package, strategies that run, and launchers.\n"
      "It says what to do about each thing that is missing, and what to do next. It takes about half a second, and "
      "longer\n"
      "if it must start the GPU driver. Exits 0 if ranks can run here, else 3.",
      "Examples:\n"
      "  imbrex doctor\n"
      "  imbrex doctor --json report.json\n"
      "  imbrex doctor --limits > limits.md",
      [&program, limits] {
        if (*limits) {
          print_text(program::limits_page());
          return 0;
        }
        Examination exam(program);
        examine_host(exam);
        examine_build(exam);
        const GpuSurvey survey = survey_gpus();
        Json report{{"version", IMBREX_VERSION}};
        report.update(examine_gpus(exam, survey));
        examine_libraries(exam);
        examine_python(exam);
        report["strategies"] = examine_strategies(exam, survey);
        examine_launchers(exam);
        const Json& strategies = report["strategies"];
        const bool runs =
            std::any_of(strategies.begin(), strategies.end(), [](const Json& s) { return s["runs"] == true; });
        const Json next = exam.say_next(steps_of(survey, runs));
        report.update({{"findings", exam.findings()}, {"able", !exam.missing()}, {"next", next}});
        print_json(program, report);
        return exam.missing() ? static_cast<int>(ErrorCode::runtime_failure) : 0;
      });
  doctor.add_flag("--limits", *limits,
                  "Print docs/reference/limits.md instead: which operators run with what, by the code's own checks");
}

}  // namespace imbrex::cli
