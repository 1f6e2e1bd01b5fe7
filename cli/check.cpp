// imbrex check: proves a plan sound, or says what is wrong with it.
#include <memory>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "output/colour.hpp"
#include "program/run.hpp"

namespace imbrex::cli {

void add_check(Program& program) {
  auto file = std::make_shared<std::string>();
  CLI::App& command = add_command(
      program, "check",
      "Proves that a plan cannot deadlock, race, or miss an element.\n"
      "The proof holds for every schedule and any delays. Prints `sound` and exits 0, or names the fault and the task\n"
      "and exits 1. A file that is no plan exits 2.",
      "Examples:\n"
      "  imbrex check plan.json\n"
      "  imbrex plan gemm_all_reduce --m 256 --n 256 --k 256 --json - | imbrex check -",
      [file, &program] {
        Progress progress("checking " + *file);
        const std::string text = read_file(*file);
        const Plan plan = naming(*file + ": ", [&] { return parse_plan(text); });
        const auto finding = check(plan);
        Json result{{"sound", !finding},
                    {"tasks", count_tasks(plan)},
                    {"digest", program::digest_text(plan)},
                    {"problem", to_json_value(plan.problem)}};
        if (finding) result["finding"] = to_json_value(*finding);
        print_json(program, result);
        print(program, "{}{}", coloured(program, finding ? Colour::bad : Colour::good, finding ? "unsound" : "sound"),
              finding ? ": " + describe(*finding) : "");
        return finding ? static_cast<int>(ErrorCode::unsound) : 0;
      });
  command.add_option("FILE", *file, "The plan, as `imbrex plan` writes it; - is standard input")
      ->type_name("")
      ->required();
}

}  // namespace imbrex::cli
