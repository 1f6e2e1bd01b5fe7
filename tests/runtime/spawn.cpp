#include "runtime/spawn.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace imbrex::test {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::vector<Result> spawn(const std::vector<Start>& starts) {
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  for (Start start : starts) {
    start.arguments.insert(start.arguments.begin(), RANK_PROGRAM);
    const auto arguments = pointers_to(start.arguments), variables = pointers_to(start.variables);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(ends[1], STDERR_FILENO);
      if (start.unmapped && unshare(CLONE_NEWUSER) != 0) _exit(126);
      execve(RANK_PROGRAM, arguments.data(), variables.data());
      _exit(127);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    Result result;
    char buffer[4096];
    for (ssize_t bytes; (bytes = read(pipes[i], buffer, sizeof buffer)) > 0;)
      result.text.append(buffer, static_cast<std::size_t>(bytes));
    close(pipes[i]);
    int status = 0;
    waitpid(pids[i], &status, 0);
    if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
    results.push_back(result);
  }
  return results;
}

bool childless() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

}  // namespace imbrex::test
