// What `imbrex doctor` finds: printed as it is found, kept for the report, and what is to be done about it.
#pragma once

#include <string>
#include <vector>

#include "command.hpp"
#include "imbrex/gpu.hpp"

namespace imbrex::cli {

enum class Verdict { good, note, missing };

/// Collects findings, prints them, and knows whether something needed is missing.
class Examination {
 public:
  explicit Examination(const Program& program) : program_(program) {}

  /// `remedy`: what to do, where there is something to do.
  void say(Verdict verdict, const std::string& what, const std::string& words, const std::string& remedy = {});

  /// Says what to do next: the remedies of what is missing, then `steps`. Returns all of them.
  Json say_next(const std::vector<std::string>& steps);

  Json findings() const { return findings_; }
  bool missing() const { return missing_; }

 private:
  const Program& program_;
  Json findings_ = Json::array();
  std::vector<std::string> needed_;
  bool missing_ = false;
};

/// The first line of a file; empty where there is none.
std::string first_line(const std::string& path);

/// NVIDIA's devices in /dev.
int count_gpu_nodes();

// What the machine offers without GPUs: cores, memory, BLAS, what ranks share memory by, limits.
void examine_host(Examination& exam);

// What was built, and the libraries that are found at run time.
void examine_build(Examination& exam);
void examine_libraries(Examination& exam);

// This machine's GPUs: driver, links, memory, MPS. Returns what the report says of them.
Json examine_gpus(Examination& exam, const GpuSurvey& survey);

// Python, torch and Imbrex' package.
void examine_python(Examination& exam);

}  // namespace imbrex::cli
