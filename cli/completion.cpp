// imbrex completion: what a shell needs to complete commands, operators, options and their values.
#include <algorithm>

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "command.hpp"
#include "imbrex/error.hpp"
#include "own_operators.hpp"

namespace imbrex::cli {
namespace {

using Names = std::vector<std::string>;

// Options whose values are a few names.
std::vector<std::pair<std::string, Names>> values() {
  Names strategies{"auto"}, types;
  for (const Strategy one : {Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled})
    strategies.emplace_back(name_of(one));
  for (const Type one : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3}) types.emplace_back(name_of(one));
  return {{"--strategy", strategies},
          {"--type", types},
          {"--device", {"auto", "cpu", "cuda"}},
          {"--world", {"processes", "threads"}},
          {"--b-layout", {"kxn", "nxk"}},
          {"--scales", {"tensor", "row", "none"}}};
}

Names names_of_commands(const CLI::App& app) {
  Names names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

// Options of a command and of its own commands: completion does not ask which of them is meant.
Names options_of(const CLI::App& command) {
  Names names;
  const auto add = [&](const CLI::App& app) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames())
        if (std::find(names.begin(), names.end(), "--" + name) == names.end()) names.push_back("--" + name);
  };
  add(command);
  for (const CLI::App* one : commands_of(command)) add(*one);
  return names;
}

// Words that may follow a command, without its options.
Names words_of(const CLI::App& command) {
  Names words = names_of_commands(command);
  if (command.get_option_no_throw("OP") != nullptr)
    for (std::string& name : operator_names(command.get_name() == "run")) words.push_back(std::move(name));
  if (command.get_name() == "completion") words = {"bash", "zsh", "fish"};
  return words;
}

std::string for_bash(const CLI::App& app) {
  std::string text =
      "_imbrex() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= words= options= i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $before in\n";
  for (const auto& [option, names] : values())
    text += fmt::format("    {}) words='{}' ;;\n", option, fmt::join(names, " "));
  text +=
      "  esac\n"
      "  if [[ $words ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); return; fi\n"
      "  case $command in\n";
  text += fmt::format("    '') words='{}' options='--help --help-all --version' ;;\n",
                      fmt::join(names_of_commands(app), " "));
  for (const CLI::App* command : commands_of(app))
    text += fmt::format("    {}) words='{}' options='{}' ;;\n", command->get_name(), fmt::join(words_of(*command), " "),
                        fmt::join(options_of(*command), " "));
  return text +
         "  esac\n"
         "  if [[ $word == -* ]]; then words=$options; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "  # What is no name may be a file.\n"
         "  if [[ ! ${COMPREPLY[*]} && $command ]]; then COMPREPLY=($(compgen -f -- \"$word\")); fi\n"
         "}\n"
         "complete -F _imbrex imbrex\n";
}

std::string for_zsh(const CLI::App& app) {
  return "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n" + for_bash(app);
}

// A description's first sentence, in quotes of fish's.
std::string quoted(const std::string& about) {
  std::string text;
  for (const char c : about.substr(0, std::min({about.find('\n'), about.find(". "), about.size()}))) {
    if (c == '\'' || c == '\\') text += '\\';
    text += c;
  }
  return "'" + text + "'";
}

std::string for_fish(const CLI::App& app) {
  std::string text = "complete -c imbrex -f -n __fish_use_subcommand -l version -d 'Print the version'\n";
  const std::vector<std::pair<std::string, Names>> known = values();
  for (const CLI::App* command : commands_of(app)) {
    const std::string seen = fmt::format("'__fish_seen_subcommand_from {}'", command->get_name());
    text += fmt::format("complete -c imbrex -f -n __fish_use_subcommand -a {} -d {}\n", command->get_name(),
                        quoted(command->get_description()));
    if (const Names words = words_of(*command); !words.empty())
      text += fmt::format("complete -c imbrex -n {} -a '{}'\n", seen, fmt::join(words, " "));
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) {
        const auto named =
            std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == "--" + name; });
        const std::string takes = named != known.end() ? fmt::format(" -x -a '{}'", fmt::join(named->second, " "))
                                  : option->get_type_size() != 0 ? " -r"
                                                                 : "";
        text += fmt::format("complete -c imbrex -n {} -l {}{} -d {}\n", seen, name, takes,
                            quoted(option->get_description()));
      }
  }
  return text;
}

}  // namespace

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App& command =
      add_command(program, "completion", "Prints what a shell needs to complete commands, operators and options.",
                  "Examples:\n"
                  "  source <(imbrex completion bash)\n"
                  "  imbrex completion zsh > ~/.imbrex.zsh\n"
                  "  imbrex completion fish > ~/.config/fish/completions/imbrex.fish",
                  [&program, shell] {
                    std::string text;
                    if (*shell == "bash") text = for_bash(program.app);
                    if (*shell == "zsh") text = for_zsh(program.app);
                    if (*shell == "fish") text = for_fish(program.app);
                    if (text.empty()) refuse(fmt::format("shell '{}': it must be bash, zsh or fish", *shell));
                    print_json(program, {{"shell", *shell}, {"script", text}});
                    if (program.json != "-") print_text(text);
                    return 0;
                  });
  command.add_option("SHELL", *shell, "bash, zsh or fish")->type_name("")->required();
}

}  // namespace imbrex::cli
