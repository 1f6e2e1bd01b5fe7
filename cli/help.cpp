#include "help.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "own_operators.hpp"
#include "program/explain.hpp"

namespace imbrex::cli {
namespace {

constexpr std::size_t first_column = 26;
constexpr const char* usual_group = "Options";

std::size_t leading_blanks(const std::string& line) { return std::min(line.find_first_not_of(' '), line.size()); }

// A line's pieces of at most `width` characters.
std::vector<std::string> pieces_of(const std::string& text, std::size_t width) {
  std::vector<std::string> pieces(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t blank = std::min(text.find(' ', at), text.size());
    const std::size_t end = std::min(text.find_first_not_of(' ', blank), text.size());
    const std::string word = text.substr(at, blank - at);
    if (!pieces.back().empty() && pieces.back().size() + word.size() > width) pieces.emplace_back();
    pieces.back() += word + text.substr(blank, end - blank);
    at = end;
  }
  for (std::string& piece : pieces) piece.erase(piece.find_last_not_of(' ') + 1);
  return pieces;
}

std::string wrapped_line(const std::string& line, std::size_t width) {
  if (line.size() <= width) return line;
  const std::size_t indent = leading_blanks(line), further = indent + 2;
  const bool is_command = line.compare(indent, 7, "imbrex ") == 0;
  const std::string end = is_command ? " \\" : "";
  const std::vector<std::string> pieces = pieces_of(line.substr(indent), width - further - end.size());
  std::string result;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    result += fmt::format("{}{:{}}{}", i == 0 ? "" : end + "\n", "", i == 0 ? indent : further, pieces[i]);
  return result;
}

// Columns that help may take: the terminal's, from 50 to 120; 100 where standard output is none.
std::size_t help_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return std::clamp<std::size_t>(size.ws_col, 50, 120);
}

// The text with each line broken at blanks so that it has at most `width` characters, if it has blanks. What a line
// goes on with is indented by two more than the line; a command of a shell goes on after a backslash.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string result;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += (at == 0 ? "" : "\n") + wrapped_line(text.substr(at, end - at), width);
    at = end + 1;
  }
  return result;
}

// The text with lines joined that the source breaks amid a sentence, so that they are broken where the terminal needs
// it. Lines of a list begin with a blank.
std::string flowing(const std::string& text) {
  std::string result;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    result += text[at];
    if (text[at] != '\n') continue;
    const bool listed = text[line] == ' ' || text[line] == '\n' || text[at + 1] == ' ' || text[at + 1] == '\n';
    if (!listed && text[at - 1] != '.' && text[at - 1] != ':' && at + 1 < text.size()) result.back() = ' ';
    line = at + 1;
  }
  return result;
}

// An option, what it takes, and, from the second column on, what it is about.
std::string entry(const std::string& name, const std::string& about, std::size_t width) {
  const std::string blanks(first_column, ' ');
  std::string text = "  " + name;
  text += text.size() + 1 < first_column ? blanks.substr(text.size()) : "\n" + blanks;
  return text + fmt::format("{}\n", fmt::join(pieces_of(about, width - first_column), "\n" + blanks));
}

std::string name_of(const CLI::Option& option) {
  std::string name = option.get_name(false, true);
  const std::string takes = option.get_type_name();
  return (option.get_type_size() == 0 || takes.empty() ? name : name + " " + takes) +
         (option.get_required() ? " REQUIRED" : "");
}

// The command that the arguments end in.
const CLI::App& chosen(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : chosen(*parsed.front());
}

std::string path_of(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name()
                                         : path_of(*command.get_parent()) + " " + command.get_name();
}

bool takes_operator(const CLI::App& command) { return command.get_option_no_throw("OP") != nullptr; }

// The text of OP, if the command takes one.
std::string operator_of(const CLI::App& command) {
  return takes_operator(command) && command.get_option("OP")->count() > 0 ? command.get_option("OP")->results().front()
                                                                          : std::string();
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

// What a command's description says of an operator, on a line of its own, or else what all know of it; empty: it is
// none.
std::string line_about(const std::string& description, const std::string& op) {
  const std::string begin = "  " + op + " ";
  const std::size_t at = ("\n" + description).find("\n" + begin);
  if (op.empty()) return {};
  if (at != std::string::npos)
    return description.substr(at, std::min(description.find('\n', at), description.size()) - at);
  for (const program::OperatorHelp& each : program::list_operators())
    if (each.name == op) return fmt::format("{} {}", begin, each.about);
  return {};
}

class Page {
 public:
  Page(const CLI::App& command, bool all) : command_(command), all_(all), width_(help_width()) {
    for (const auto& own : own_operators()) {
      foreign_.insert(own->group());
      if (own->name() == operator_of(command)) asked_ = own;
    }
    about_ = line_about(command.get_description(), operator_of(command));
  }

  std::string text() {
    std::string text = about_.empty() ? flowing(command_.get_description()) + "\n" : about_.substr(2) + "\n\n";
    text += usage() + "\n";
    if (about_.empty()) text += positionals();
    for (const std::string& group : command_.get_groups()) text += options(group);
    text += subcommands();
    text += "\n" + (about_.empty() ? command_.get_footer() : examples());
    if (!left_out_.empty())
      text += fmt::format(
          "\n\nAll options, also of {}: {} --help-all{}", fmt::join(left_out_, ", "), path_of(command_),
          takes_operator(command_) ? fmt::format(". Options of one operator: {} OP --help", path_of(command_)) : "");
    return wrapped(text, width_) + "\n";
  }

 private:
  std::string usage() const {
    return fmt::format(
        "Usage: {}{} [OPTIONS]{}", path_of(command_),
        takes_operator(command_) ? " " + (about_.empty() ? std::string("[OP]") : operator_of(command_)) : "",
        commands_of(command_).empty() ? other_positionals() : " COMMAND");
  }

  // Their names in a row.
  std::string other_positionals() const {
    std::string names;
    for (const CLI::Option* option : positionals_of(command_))
      if (option->get_name() != "OP")
        names += (option->get_required() ? " " : " [") + option->get_name() + (option->get_required() ? "" : "]");
    return names;
  }

  std::string positionals() const {
    std::string lines;
    for (const CLI::Option* option : positionals_of(command_))
      if (!option->get_description().empty()) lines += entry(option->get_name(), option->get_description(), width_);
    return lines.empty() ? lines : "\nPositionals:\n" + lines;
  }

  bool shows(const CLI::Option& option, const std::string& group) const {
    const std::string name = option.get_name();
    if (name == "--help" || name == "--help-all" || name == "--json") return true;
    if (asked_ != nullptr) return group == asked_->group() || (foreign_.count(group) == 0 && asked_->shares(name));
    if (!about_.empty()) return foreign_.count(group) == 0;
    return all_ || group == usual_group;
  }

  std::string options(const std::string& group) {
    std::string lines;
    bool has_more = false;
    for (const CLI::Option* option :
         command_.get_options([&](const CLI::Option* o) { return o->get_group() == group && o->nonpositional(); })) {
      if (shows(*option, group))
        lines += entry(name_of(*option), option->get_description(), width_);
      else
        has_more = true;
    }
    if (has_more && about_.empty()) left_out_.push_back(group.substr(0, group.find(" (")));
    return lines.empty() ? lines : fmt::format("\n{}:\n{}", group, lines);
  }

  std::string subcommands() const {
    std::string lines;
    for (const CLI::App* command : commands_of(command_)) {
      const std::string about = command->get_description();
      lines += fmt::format("  {:<10} {}\n", command->get_name(), about.substr(0, about.find('\n')));
    }
    return lines.empty() ? lines : "\nCommands:\n" + lines;
  }

  // Examples of the command that are about the operator.
  std::string examples() const {
    std::string own, line;
    const std::string all = command_.get_footer();
    for (std::size_t at = 0; at < all.size(); at += line.size() + 1) {
      line = all.substr(at, std::min(all.find('\n', at), all.size()) - at);
      if ((line + " ").find(" " + operator_of(command_) + " ") != std::string::npos) own += "\n" + line;
    }
    return own.empty() ? all : "Examples:" + own;
  }

  const CLI::App& command_;
  bool all_;
  std::size_t width_;
  std::set<std::string> foreign_;  // groups of operators with options of their own
  std::shared_ptr<OwnOperator> asked_;
  std::string about_;
  std::vector<std::string> left_out_;
};

}  // namespace

std::string help_of(const Program& program, bool all) { return Page(chosen(program.app), all).text(); }

}  // namespace imbrex::cli
