// imbrex launch: starts a program as the ranks of one world.
#include <memory>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cli {

void add_launch(Program& program) {
  auto ranks = std::make_shared<std::int64_t>(0);
  CLI::App& command =
      add_command(program, "launch",
                  "Starts a program once per rank on this machine.\n"
                  "The ranks find each other by World::from_environment. When one fails, the others are ended. The "
                  "exit code is the\n"
                  "worst of the ranks': 3 for one that died by a signal.\n\n"
                  "usage: imbrex launch -n RANKS -- PROGRAM [ARGUMENT...]",
                  "Examples:\n"
                  "  imbrex launch -n 4 -- ./my_program --size 512\n"
                  "  imbrex launch -n 2 -- sh -c 'echo rank $IMBREX_RANK of $IMBREX_WORLD_SIZE'",
                  [ranks, &program] {
                    if (program.command.empty())
                      throw Error(ErrorCode::invalid_input,
                                  "launch: no program; usage: imbrex launch -n RANKS -- PROGRAM [ARGUMENT...]");
                    const int code = launch(static_cast<int>(*ranks), program.command);
                    print_json(program, {{"ranks", *ranks}, {"command", program.command}, {"exit_code", code}});
                    return code;
                  });
  add_integer(command, "-n,--ranks", *ranks, 1, max_ranks, "Ranks to start, 1 to 64")->required();
}

}  // namespace imbrex::cli
