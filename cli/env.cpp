// imbrex env: every environment variable that Imbrex reads.
#include "command.hpp"
#include "imbrex/environment.hpp"

namespace imbrex::cli {

void add_env(Program& program) {
  add_command(program, "env",
              "Lists every environment variable that Imbrex reads.\n"
              "It prints each variable's type, default, meaning, and value here. Imbrex reads no others;\n"
              "CUDA and NCCL read theirs (CUDA_VISIBLE_DEVICES, NCCL_DEBUG, ...).",
              "Examples:\n"
              "  imbrex env\n"
              "  IMBREX_WAIT_LIMIT=5 imbrex env --json -",
              [&program] {
                Json list = Json::array();
                for (const EnvironmentVariable& variable : environment_variables()) {
                  Json entry{{"name", variable.name},
                             {"type", variable.type},
                             {"default", variable.fallback},
                             {"description", variable.description}};
                  entry["value"] = variable.value ? Json(*variable.value) : Json(nullptr);
                  if (!variable.fault.empty()) entry["fault"] = variable.fault;
                  list.push_back(std::move(entry));
                  print(program, "{} ({}{})", variable.name, variable.type,
                        variable.fallback.empty() ? "" : ", default " + variable.fallback);
                  print(program, "    {}", variable.description);
                  if (variable.value) print(program, "    here: {}", *variable.value);
                  if (!variable.fault.empty()) print(program, "    it cannot be used: {}", variable.fault);
                }
                print_json(program, list);
                return 0;
              });
}

}  // namespace imbrex::cli
