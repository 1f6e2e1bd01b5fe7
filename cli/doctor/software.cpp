// What Imbrex was built with, what it finds at run time, and its Python package.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <memory>
#include <sstream>

#include "examination.hpp"

namespace imbrex::cli {
namespace {

// A library that stays loaded, from where the executor looks for it; null where there is none.
void* load(const std::string& name) {
  if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  return dlopen((IMBREX_CUDA_LIBRARY_DIR "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

std::string path_of(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

void examine_cublas(Examination& exam) {
  const std::string name = fmt::format("libcublasLt.so.{}", IMBREX_CUDA_MAJOR);
  void* library = load(name);
  if (library == nullptr)
    return exam.say(
        Verdict::note, "cuBLASLt",
        fmt::format("{} cannot be loaded; sequential, decomposed and signaled plans need it", name),
        fmt::format("install CUDA {}'s libcublas, or name its folder in LD_LIBRARY_PATH", IMBREX_CUDA_MAJOR));
  const auto get = function_of<std::size_t (*)()>(library, "cublasLtGetVersion");
  const std::size_t version = get != nullptr ? get() : 0;
  exam.say(Verdict::good, "cuBLASLt",
           fmt::format("{}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100,
                       path_of(reinterpret_cast<void*>(get))));
}

void examine_nccl(Examination& exam) {
  constexpr int least = 21700;  // 2.17, the first that takes a limit on its SMs
  void* library = load("libnccl.so.2");
  const auto get = library != nullptr ? function_of<int (*)(int*)>(library, "ncclGetVersion") : nullptr;
  int version = 0;
  if (get == nullptr || get(&version) != 0)
    return exam.say(Verdict::note, "NCCL",
                    "libnccl.so.2 cannot be loaded; Imbrex runs fused plans and its own collectives only",
                    "install libnccl2, or pip install nvidia-nccl-cu" + std::to_string(IMBREX_CUDA_MAJOR) +
                        " and name its lib folder in LD_LIBRARY_PATH");
  const std::string words = fmt::format("{}.{}.{}, {}", version / 10000, version / 100 % 100, version % 100,
                                        path_of(reinterpret_cast<void*>(get)));
  if (version >= least) return exam.say(Verdict::good, "NCCL", words);
  exam.say(Verdict::note, "NCCL", words + "; signaled plans need 2.17", "install NCCL 2.17 or later");
}

// The output of a shell command; empty where it cannot be run.
std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  char part[4096];
  for (std::size_t got = 0; pipe != nullptr && (got = std::fread(part, 1, sizeof part, pipe.get())) > 0;)
    text.append(part, got);
  return text;
}

// Imports nothing large: a version comes from a package's own files. Lines of "key value".
constexpr const char* ask_python = R"(
import importlib.metadata, importlib.util, json, os, subprocess, sys
print("python", sys.version.split()[0] + ", " + sys.executable)
def folder(name):
    try:
        spec = importlib.util.find_spec(name)
        return os.path.dirname(spec.origin) if spec and spec.origin else None
    except Exception:
        return None
def version(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return "of an unknown version"
if torch := folder("torch"):
    names = {}
    try:
        exec(open(os.path.join(torch, "version.py")).read(), names)
    except Exception:
        pass
    print("torch", names.get("__version__") or version("torch"))
    print("torch_cuda", names.get("cuda") or "none")
if package := folder("imbrex"):
    print("imbrex", version("imbrex"))
    print("folder", package)
    for entry in [os.path.dirname(package), *sys.path]:
        program = os.path.join(entry, "imbrex", "bin", "imbrex")
        if os.path.exists(program):
            told = subprocess.run([program, "version", "--json", "-"], capture_output=True, timeout=10).stdout
            print("built", "with CUDA" if json.loads(told)["cuda"] else "without CUDA")
            break
)";

// "2.11.0" is as new as 2.10.
bool reaches(const std::string& version, int major, int minor) {
  int own_major = 0, own_minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &own_major, &own_minor) != 2) return true;  // who knows
  return own_major != major ? own_major > major : own_minor >= minor;
}

}  // namespace

void examine_build(Examination& exam) {
  if (!IMBREX_HAVE_CUDA)
    return exam.say(Verdict::note, "CUDA", "this program was built without a CUDA toolkit; ranks work on the CPU",
                    "for GPUs put nvcc on PATH and build again: scripts/build");
  exam.say(Verdict::good, "CUDA", fmt::format("this program was built with CUDA {}", IMBREX_CUDA_VERSION));
  if (IMBREX_CUTLASS)
    exam.say(Verdict::good, "CUTLASS", "this program was built with it: GEMMs run on tensor cores");
  else
    exam.say(Verdict::note, "CUTLASS", "this program was built without it: GEMMs of Imbrex' own run on a plain kernel",
             "scripts/install-dependencies --cutlass, or cmake -DIMBREX_CUTLASS_INCLUDE=FOLDER; then build again");
  if (!IMBREX_LIBRARIES)
    exam.say(Verdict::note, "libraries",
             "this program was built without the headers of cuBLASLt or NCCL: only fused plans run on GPUs",
             "install libcublas-dev and libnccl-dev, or name IMBREX_CUBLASLT_INCLUDE and IMBREX_NCCL_INCLUDE; then "
             "build again");
}

void examine_libraries(Examination& exam) {
  if (IMBREX_LIBRARIES) {
    examine_cublas(exam);
    examine_nccl(exam);
  }
  if (void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto get = function_of<std::uint32_t (*)()>(library, "fi_version");
    const std::uint32_t version = get != nullptr ? get() : 0;
    exam.say(Verdict::good, "libfabric", fmt::format("{}.{}", version >> 16, version & 0xffff));
  }
  if (dlopen("libnvshmem_host.so.3", RTLD_NOW | RTLD_LOCAL) != nullptr)
    exam.say(Verdict::good, "NVSHMEM", "is there; bench/shmem/peers.py compares with it, nothing needs it");
}

void examine_python(Examination& exam) {
  std::istringstream lines(output_of(fmt::format("exec 2>/dev/null; timeout 20 python3 -c '{}'", ask_python)));
  std::map<std::string, std::string> told;
  for (std::string key, rest; lines >> key && std::getline(lines >> std::ws, rest);) told[key] = rest;
  if (!told.contains("python"))
    return exam.say(Verdict::note, "Python", "no python3 on PATH; only the Python package needs it");
  exam.say(Verdict::good, "Python", told["python"]);
  const std::string torch = told["torch"];
  if (torch.empty())
    exam.say(Verdict::note, "torch", "not installed in this Python; only imbrex.torch needs it",
             "pip install 'torch>=2.10', in a virtual environment");
  else if (!reaches(torch, 2, 10))
    exam.say(Verdict::note, "torch", fmt::format("{}; imbrex.torch needs 2.10 or later", torch),
             "pip install 'torch>=2.10'");
  else
    exam.say(
        Verdict::good, "torch",
        fmt::format("{}, {}", torch, told["torch_cuda"] == "none" ? "for CPUs" : "for CUDA " + told["torch_cuda"]));
  const std::string package = told["imbrex"];
  if (package.empty())
    return exam.say(Verdict::note, "package", "imbrex is not installed in this Python",
                    "pip install . in the source tree and a virtual environment, for Python programs");
  const std::string words = fmt::format("imbrex {}, built {}, in {}", package,
                                        told.contains("built") ? told["built"] : "nowhere", told["folder"]);
  if (!told.contains("built"))
    return exam.say(Verdict::note, "package", words + ": it holds no compiled library",
                    "pip install . in the source tree; a checkout's python/ folder alone does not run");
  if (package != IMBREX_VERSION)
    return exam.say(Verdict::note, "package", fmt::format("{}; this program is {}", words, IMBREX_VERSION),
                    "pip install . again, in this source tree");
  exam.say(Verdict::good, "package", words);
}

}  // namespace imbrex::cli
