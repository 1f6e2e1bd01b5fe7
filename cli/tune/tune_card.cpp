// imbrex tune --card: the constants of this machine's GPUs.
#include <algorithm>
#include <filesystem>

#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "program/card/card.hpp"
#include "tune/tuning.hpp"

namespace imbrex::cli {
namespace {

constexpr std::size_t most_ranks = 8;

// GPUs of the first one's kind: a card is of one.
int gpus_here() {
  const GpuSurvey survey = survey_gpus();
  if (survey.gpus.empty()) refuse(fmt::format("--card needs a GPU: {}", survey.reason));
  const auto other = std::find_if(survey.gpus.begin(), survey.gpus.end(),
                                  [&](const Gpu& gpu) { return gpu.name != survey.gpus.front().name; });
  return static_cast<int>(std::min(static_cast<std::size_t>(other - survey.gpus.begin()), most_ranks));
}

// Made, where it is the user's cache.
void make_folder_of(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) refuse(fmt::format("folder of {}: {}; --out FILE writes elsewhere", path, error.message()));
}

void print_rates(const Program& program, const Machine& machine, const program::CardTimes& times) {
  const double rate = machine.sm_rate.at(Type::bf16) * machine.sms;
  print(program, "{:>10} {:>14} {:>14}", "tile", "cool TFLOP/s", "hot TFLOP/s");
  for (const TileRate& tile : machine.tiles)
    print(program, "{:>10} {:14.0f} {:14.0f}", fmt::format("{}x{}", tile.tile_m, tile.tile_n),
          rate * tile.efficiency * 1e-12, rate * tile.efficiency * tile.sustained * 1e-12);
  print(program, "memory {:.0f} GB/s{}", machine.memory_bandwidth * 1e-9,
        times.ranks > 1 ? fmt::format(", links {:.0f} GB/s at least", machine.ingress_bandwidth * 1e-9) : "");
  print(program, "products that nothing was fitted to: predicted within {:.1f} % (root mean square)",
        machine.model_error * 100);
}

}  // namespace

int tune_card(const Program& program, std::int64_t ranks, const std::string& out) {
  const int count = ranks > 0 ? static_cast<int>(ranks) : gpus_here();
  if (!out.empty()) expect_writable("--out", out);
  return program::measure_card(
      count, [&](const std::string& next) { print(program, "measuring {}", next); },
      [&](const program::CardTimes& times) {
        const std::string path = out.empty() ? program::card_file(times.gpu) : out;
        if (path.empty())
          refuse("IMBREX_CACHE, XDG_CACHE_HOME and HOME name no folder; --out FILE says where to write");
        const auto known = find_machine_of(times.gpu);
        const Machine machine = program::fit_card(known ? *known : load_machine("4xh200"), times);
        const std::string text = to_json(machine);
        if (out.empty()) make_folder_of(path);
        write_result(path, text);
        print_rates(program, machine, times);
        print_json(program, Json::parse(text));
        if (out.empty())
          print(program, "{}: strategy auto reads it on GPUs of this name from the next start on", path);
        else if (path != "-")
          print(program, "{}: strategy auto reads it in machines/, and as {}", path, program::card_file(times.gpu));
      });
}

}  // namespace imbrex::cli
