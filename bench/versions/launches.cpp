// Records what plans launch through one version's library: the graph that two captured calls become, node by node.
// compare_launches.py compares the records of two versions. It compiles against any version since a3c7e22: operators
// that take no plan make that of the same strategy and knobs.
//
//   launches write RANKS PLANS       writes plan files, which other versions read, to the folder PLANS
//   launches record PLANS RECORDS    a file a plan and rank to the folder RECORDS; ranks are processes on one GPU
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace {

using namespace imbrex;
namespace files = std::filesystem;

void expect(cudaError_t status) {
  if (status != cudaSuccess) throw Error(ErrorCode::runtime_failure, cudaGetErrorString(status));
}

void expect(CUresult status) {
  if (status != CUDA_SUCCESS)
    throw Error(ErrorCode::runtime_failure, "the driver reports " + std::to_string(static_cast<int>(status)));
}

// ------------------------------------------------------------------------------------------------ plan files

void write(int ranks, const files::path& to) {
  files::create_directories(to);
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                            Operator::gemm_all_to_all}) {
    const Problem problem{op, 512, 512, 512, ranks, Type::bf16};
    const auto put = [&](const char* name, Strategy strategy, const Knobs& knobs) {
      write_file(to / (std::string(name_of(op)) + "-" + name + ".json"), to_json(make_plan(problem, strategy, knobs)));
    };
    const auto with = [](auto&& set) {
      Knobs knobs;
      set(knobs);
      return knobs;
    };
    put("sequential", Strategy::sequential, {});
    put("sequential-fp32", Strategy::sequential, with([](Knobs& k) { k.partial = Type::fp32; }));
    put("sequential-own", Strategy::sequential, with([](Knobs& k) { k.transport = Transport::store; }));
    put("decomposed-2", Strategy::decomposed, {});
    put("decomposed-4-fp32", Strategy::decomposed, with([](Knobs& k) { k.chunks = 4, k.partial = Type::fp32; }));
    put("fused-store", Strategy::fused, with([](Knobs& k) { k.transport = Transport::store; }));
    if (op == Operator::all_gather_gemm) put("fused-push", Strategy::fused, {});  // refused where ranks share a GPU
    if (op != Operator::gemm_all_to_all && ranks % 2 == 0)
      put("decomposed-nodes", Strategy::decomposed, with([](Knobs& k) { k.nodes = 2; }));
  }
}

// ---------------------------------------------------------------------------------------------------- graphs

template <typename Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  expect(cudaGetDriverEntryPointByVersion(name, &found, 12040, cudaEnableDefault, &status));
  if (found == nullptr) throw Error(ErrorCode::runtime_failure, std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

// What is the same in every process: shapes, and no addresses.
std::string kernel_text(cudaGraphNode_t node) {
  static auto* const params_of = driver<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>("cuGraphKernelNodeGetParams");
  static auto* const name_of_function = driver<CUresult(const char**, CUfunction)>("cuFuncGetName");
  static auto* const name_of_kernel = driver<CUresult(const char**, CUkernel)>("cuKernelGetName");
  CUDA_KERNEL_NODE_PARAMS p{};
  expect(params_of(node, &p));
  const char* name = nullptr;
  expect(p.func != nullptr ? name_of_function(&name, p.func) : name_of_kernel(&name, p.kern));
  std::ostringstream text;
  text << "kernel " << demangled(name) << " grid " << p.gridDimX << 'x' << p.gridDimY << 'x' << p.gridDimZ << " block "
       << p.blockDimX << 'x' << p.blockDimY << 'x' << p.blockDimZ << " shared " << p.sharedMemBytes;
  cudaKernelNodeAttrValue value{};
  if (cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value) == cudaSuccess)
    text << " priority " << value.priority;
  if (cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &value) == cudaSuccess)
    text << " cluster " << value.clusterDim.x;
  cudaGetLastError();
  return text.str();
}

std::string text_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  expect(cudaGraphNodeGetType(node, &type));
  std::ostringstream text;
  switch (type) {
    case cudaGraphNodeTypeKernel: return kernel_text(node);
    case cudaGraphNodeTypeMemcpy: {
      cudaMemcpy3DParms p{};
      expect(cudaGraphMemcpyNodeGetParams(node, &p));
      text << "memcpy " << p.extent.width << 'x' << p.extent.height << 'x' << p.extent.depth << " pitch "
           << p.srcPtr.pitch << " to " << p.dstPtr.pitch;
      return text.str();
    }
    case cudaGraphNodeTypeMemset: {
      cudaMemsetParams p{};
      expect(cudaGraphMemsetNodeGetParams(node, &p));
      text << "memset " << p.width << 'x' << p.height << " of " << p.elementSize << " to " << p.value;
      return text.str();
    }
    default: return "node of type " + std::to_string(static_cast<int>(type));
  }
}

// A line a node, in the order of the capture, with the numbers of those it follows.
std::string text_of(cudaGraph_t graph) {
  std::size_t count = 0, edges = 0;
  expect(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  expect(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::map<cudaGraphNode_t, std::size_t> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers[nodes[i]] = i;
#if CUDART_VERSION >= 13000
  expect(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  std::vector<cudaGraphNode_t> from(edges), to(edges);
  std::vector<cudaGraphEdgeData> data(edges);
  expect(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges));
#else
  expect(cudaGraphGetEdges(graph, nullptr, nullptr, &edges));
  std::vector<cudaGraphNode_t> from(edges), to(edges);
  std::vector<cudaGraphEdgeData> data(edges);
  expect(cudaGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &edges));
#endif
  std::vector<std::vector<std::string>> behind(count);
  for (std::size_t e = 0; e < edges; ++e)
    behind[numbers.at(to[e])].push_back(std::to_string(numbers.at(from[e])) +
                                        (data[e].type == cudaGraphDependencyTypeProgrammatic ? "p" : ""));
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    std::sort(behind[i].begin(), behind[i].end());
    text += std::to_string(i) + " [";
    for (const std::string& number : behind[i]) text += (text.back() == '[' ? "" : " ") + number;
    text += "] " + text_of(nodes[i]) + "\n";
  }
  return text;
}

// ------------------------------------------------------------------------------------------------- recording

// Memory of all operands, never given back: it would wait for the other ranks.
std::vector<Operand> operands_for(const GemmOperator& op, const Problem& problem) {
  std::vector<Operand> operands;
  for (const OperandInfo& info : operands_of(problem)) {
    void* memory = nullptr;
    const std::size_t bytes = std::max<std::size_t>(info.bytes(), 256);
    expect(cudaMalloc(&memory, bytes));
    expect(cudaMemset(memory, 0, bytes));
    operands.push_back(op.operand(info.name, memory));
  }
  expect(cudaDeviceSynchronize());
  return operands;
}

template <typename Options>
void set_plan(Options& options, const Plan& plan) {
  if constexpr (requires { options.plan; })
    options.plan = std::make_shared<const Plan>(plan);
  else
    options.strategy = plan.strategy, options.knobs = plan.knobs;
}

std::unique_ptr<GemmOperator> operator_of(World& world, const Plan& plan, const CudaOptions& cuda) {
  OperatorOptions options;
  options.device = Device::cuda;
  options.cuda = cuda;
  set_plan(options, plan);
  const Problem& p = plan.problem;
  const GemmShape shape{p.m, p.n, p.k, p.type};
  switch (p.op) {
    case Operator::all_gather_gemm: return std::make_unique<AllGatherGemm>(world, shape, options);
    case Operator::gemm_reduce_scatter: return std::make_unique<GemmReduceScatter>(world, shape, options);
    case Operator::gemm_all_reduce: return std::make_unique<GemmAllReduce>(world, shape, options);
    default: return std::make_unique<GemmAllToAll>(world, shape, options);
  }
}

// What the plan's calls become, or why it does not run.
std::string record(World& world, const CudaOptions& options, const Plan& plan) {
  std::unique_ptr<GemmOperator> op;
  try {
    op = operator_of(world, plan, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_input) throw;
    return std::string("refused: ") + error.what() + "\n";
  }
  const std::vector<Operand> operands = operands_for(*op, plan.problem);
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  world.barrier();
  op->run(operands, stream);
  op->synchronize(stream);
  expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int epoch = 0; epoch < 2; ++epoch) op->run(operands, stream);
  cudaGraph_t graph = nullptr;
  expect(cudaStreamEndCapture(stream, &graph));
  const std::string text = text_of(graph);
  expect(cudaGraphDestroy(graph));
  return text;
}

int record(const files::path& plans, const files::path& to) {
  std::map<std::string, Plan> list;
  for (const auto& entry : files::directory_iterator(plans)) {
    std::ifstream file(entry.path());
    list[entry.path().stem()] = parse_plan(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  if (list.empty()) throw Error(ErrorCode::invalid_input, plans.string() + " holds no plans");
  files::create_directories(to);
  const int ranks = list.begin()->second.problem.ranks;
  return run_processes(ranks, {.heap_bytes = 1 << 20, .wait_limit = 60}, [&](World& world) {
    // NCCL takes each rank for a host.
    setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 1);
    CudaOptions options;
    options.heap_bytes = std::size_t{1} << 27;
    options.ranks_per_gpu = ranks;
    for (const auto& [name, plan] : list) {
      write_file(to / (name + ".rank" + std::to_string(world.rank())), record(world, options, plan));
      world.barrier();
    }
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  using Setting = std::pair<const char*, const char*>;
  for (const auto& [name, value] : {Setting{"NCCL_NVLS_ENABLE", "0"}, Setting{"NCCL_GRAPH_REGISTER", "0"},
                                    Setting{"NCCL_SOCKET_IFNAME", "lo"}, Setting{"NCCL_IB_DISABLE", "1"}})
    setenv(name, value, 1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 3 && arguments[0] == "write") return write(std::stoi(arguments[1]), arguments[2]), 0;
    if (arguments.size() == 3 && arguments[0] == "record") return record(arguments[1], arguments[2]);
    std::fprintf(stderr, "usage: launches write RANKS PLANS | launches record PLANS RECORDS\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
