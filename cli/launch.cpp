// imbrex launch: starts a program as the ranks of one world.
#include <memory>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cli {

void add_launch(Program& program) {
  struct Options {
    std::int64_t ranks = 0, ranks_per_gpu = 1;
  };
  auto options = std::make_shared<Options>();
  CLI::App& command =
      add_command(program, "launch",
                  "Starts a program once per rank on this machine.\n"
                  "The ranks find each other by World::from_environment. When one fails, the others are ended. The "
                  "exit code is the\n"
                  "worst of the ranks': 3 for one that died by a signal.\n\n"
                  "usage: imbrex launch -n RANKS -- PROGRAM [ARGUMENT...]",
                  "Examples:\n"
                  "  imbrex launch -n 4 -- ./my_program --size 512\n"
                  "  imbrex launch -n 2 -- sh -c 'echo rank $IMBREX_RANK of $IMBREX_WORLD_SIZE'\n"
                  "  imbrex launch -n 4 --ranks-per-gpu 4 -- ./my_program --device cuda",
                  [options, &program] {
                    if (program.command.empty())
                      throw Error(ErrorCode::invalid_input,
                                  "launch: no program; usage: imbrex launch -n RANKS -- PROGRAM [ARGUMENT...]");
                    const int code = launch(static_cast<int>(options->ranks), program.command,
                                            static_cast<int>(options->ranks_per_gpu));
                    print_json(program, {{"ranks", options->ranks}, {"command", program.command}, {"exit_code", code}});
                    return code;
                  });
  add_integer(command, "-n,--ranks", options->ranks, 1, max_ranks, "Ranks to start, 1 to 64")->required();
  add_integer(command, "--ranks-per-gpu", options->ranks_per_gpu, 1, max_ranks,
              "Ranks that share each GPU (default 1). NCCL is told that each is on its own host");
}

}  // namespace imbrex::cli
