#include "runtime/bootstrap/bootstrap.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <set>

#include "imbrex/environment.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex::runtime {
namespace {

using Environ = std::map<std::string, std::string>;

base::Environment environment_with(const Environ& variables) {
  return base::Environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Environ operator+(Environ variables, const Environ& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

const Environ torch = {{"RANK", "2"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "here"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RUN_ID", "none"},
                       {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Environ ompi = {{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"OMPI_MCA_ess_base_jobid", "123"}};
const Environ slurm = {
    {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "9"}, {"SLURM_STEP_ID", "1"}, {"SLURM_NNODES", "1"}};
const Environ pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Environ pals = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PALS_RANKID", "2"}, {"PALS_APID", "7"}, {"PALS_LOCAL_SIZE", "4"}};
const Environ flux = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_ID", "f9"}, {"FLUX_JOB_NNODES", "1"}};
const Environ pod = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "job-0"}, {"MASTER_PORT", "23456"}};
const Environ secret = {{"IMBREX_RENDEZVOUS", "0123456789abcdef"}};
const Environ own = {{"IMBREX_RANK", "5"}, {"IMBREX_WORLD_SIZE", "6"}, {"IMBREX_RENDEZVOUS", "abc"}};

/// The launcher's end of PMI's socket, and the variable that names the other.
class PmiSocket {
 public:
  PmiSocket() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()), 0); }
  PmiSocket(const PmiSocket&) = delete;
  PmiSocket& operator=(const PmiSocket&) = delete;
  ~PmiSocket() {
    for (const int end : ends_) close(end);
  }
  Environ variables() const { return {{"PMI_FD", std::to_string(ends_[1])}}; }

 private:
  std::array<int, 2> ends_{};
};

void expect_place(const Environ& variables, const std::string& launcher, int rank, int size) {
  const auto environment = environment_with(variables);
  const auto found = find_bootstrap(environment);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, launcher);
  EXPECT_EQ(found->rank, rank);
  EXPECT_EQ(found->size, size);
}

TEST(Bootstrap, ReadsEveryLauncherAndTheInnermostWins) {
  expect_place(torch, "torchrun", 2, 4);
  expect_place(ompi, "Open MPI", 1, 3);
  expect_place(slurm, "Slurm", 0, 2);
  expect_place(own, "imbrex launch", 5, 6);
  expect_place(slurm + ompi, "Open MPI", 1, 3);
  expect_place(slurm + torch, "torchrun", 2, 4);
  expect_place(slurm + torch + ompi + own, "imbrex launch", 5, 6);
}

const char* const pmi_name = "PMI (MPICH, Intel MPI, Hydra)";

TEST(Bootstrap, ReadsWhatMpichAndOthersSet) {
  const PmiSocket socket;
  expect_place(pmi + socket.variables(), pmi_name, 1, 2);
  expect_place(pmi + Environ{{"IMBREX_RENDEZVOUS", "abc"}}, pmi_name, 1, 2);
  expect_place(pals, pmi_name, 2, 4);
  expect_place(flux, "Flux", 3, 4);
  // Slurm and Flux offer PMI, too, and say more.
  expect_place(slurm + Environ{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "Slurm", 0, 2);
  expect_place(flux + Environ{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}, "Flux", 3, 4);
  // Hydra starts its own processes by srun; Flux runs in a step of Slurm's.
  expect_place(slurm + pmi + socket.variables(), pmi_name, 1, 2);
  expect_place(slurm + flux, "Flux", 3, 4);
  expect_place(pmi + own, "imbrex launch", 5, 6);
  expect_place(pmi + torch, "torchrun", 2, 4);
}

TEST(Bootstrap, ALauncherWithinAPodOfOneCounts) {
  const PmiSocket socket;
  expect_place(pod, "torchrun", 0, 1);
  expect_place(pod + ompi, "Open MPI", 1, 3);
  expect_place(pod + pmi + socket.variables(), pmi_name, 1, 2);
  expect_place(pod + slurm, "Slurm", 0, 2);
  expect_place(pod + flux, "Flux", 3, 4);
  // A script may hand the same ranks on.
  expect_place(ompi + Environ{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", "29500"}}, "torchrun", 1, 3);
}

TEST(Bootstrap, RanksOfOnePmiLauncherFindEachOther) {
  const PmiSocket one, other;  // of one process, as those of Hydra's proxy are
  const auto key = [](const Environ& variables) { return find_bootstrap(environment_with(variables))->key; };
  EXPECT_EQ(key(pmi + one.variables()), key(pmi + other.variables() + Environ{{"PMI_RANK", "0"}}));
  EXPECT_NE(key(pmi + one.variables()), key(pmi + one.variables() + Environ{{"IMBREX_RENDEZVOUS", "a"}}));
  EXPECT_NE(key(pals), key(pals + Environ{{"PALS_APID", "8"}}));
  EXPECT_NE(key(flux), key(flux + Environ{{"FLUX_JOB_ID", "f8"}}));
}

TEST(Bootstrap, NothingSetIsNoLauncher) {
  for (const Environ& variables :
       {Environ{}, Environ{{"RANK", ""}}, Environ{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
        slurm + Environ{{"SLURM_STEP_ID", "4294967291"}}}) {
    EXPECT_FALSE(find_bootstrap(environment_with(variables)));
  }
}

TEST(Bootstrap, KeysTellLaunchesApart) {
  std::set<std::string> keys;
  const std::vector<Environ> launches = {torch,
                                         torch + Environ{{"MASTER_PORT", "29501"}},
                                         torch + Environ{{"TORCHELASTIC_RUN_ID", "other"}},
                                         torch + Environ{{"TORCHELASTIC_RESTART_COUNT", "1"}},
                                         ompi,
                                         ompi + Environ{{"OMPI_MCA_ess_base_jobid", "124"}},
                                         slurm,
                                         slurm + Environ{{"SLURM_STEP_ID", "2"}},
                                         own,
                                         own + Environ{{"IMBREX_RENDEZVOUS", "abd"}}};
  for (const Environ& launch : launches) keys.insert(find_bootstrap(environment_with(launch))->key);
  EXPECT_EQ(keys.size(), launches.size());
  EXPECT_EQ(find_bootstrap(environment_with(torch + Environ{{"RANK", "0"}}))->key,
            find_bootstrap(environment_with(torch))->key);
}

TEST(Bootstrap, LaunchersSayWhereRankZeroIsReached) {
  const auto reach = [](const Environ& variables) {
    const auto found = find_bootstrap(environment_with(variables + secret))->reach;
    return found ? found->host + ' ' + std::to_string(found->first_port) : std::string("this host");
  };
  for (const Environ& launch : {torch, ompi, slurm, own}) EXPECT_EQ(reach(launch), "this host");
  EXPECT_EQ(reach(torch + Environ{{"LOCAL_WORLD_SIZE", "2"}}), "here 29501");
  const Environ nodes = slurm + Environ{{"SLURM_NNODES", "2"}, {"SLURM_NODELIST", "node[08-11,13],login"}};
  EXPECT_EQ(reach(nodes).substr(0, 8), "node08 2");
  EXPECT_EQ(reach(nodes), reach(nodes + Environ{{"SLURM_PROCID", "1"}}));
  EXPECT_EQ(reach(nodes + Environ{{"SLURM_STEP_NODELIST", "node9"}}).substr(0, 6), "node9 ");
  for (const Environ& launch : {torch, ompi, slurm, own, nodes})
    EXPECT_EQ(reach(launch + Environ{{"IMBREX_ADDRESS", "there:7000"}}), "there 7000");
}

TEST(Bootstrap, ASecretMayBeAdded) {
  for (const Environ& launch : {torch, ompi, slurm}) {
    const auto without = *find_bootstrap(environment_with(launch));
    const auto with = *find_bootstrap(environment_with(launch + Environ{{"IMBREX_RENDEZVOUS", "abc"}}));
    EXPECT_FALSE(without.secret);
    EXPECT_TRUE(with.secret);
    EXPECT_NE(with.key, without.key);
  }
}

// What all other variables say, everybody can guess.
TEST(Bootstrap, RanksMeetOverANetworkBySecretsOnly) {
  const Environ there = {{"IMBREX_ADDRESS", "there"}};
  for (const Environ& launch : {torch + Environ{{"LOCAL_WORLD_SIZE", "2"}},
                                slurm + Environ{{"SLURM_NNODES", "2"}, {"SLURM_NODELIST", "node[1-2]"}}, torch + there,
                                ompi + there, slurm + there, pals + there, flux + there}) {
    const auto expect = [&](const Environ& variables, const std::string& part) {
      try {
        find_bootstrap(environment_with(launch + variables));
        ADD_FAILURE() << "no error; expected: " << part;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_input);
        const std::string text = error.what();
        EXPECT_TRUE(text.starts_with(part)) << text;
        for (const char* way : {"set IMBREX_RENDEZVOUS to random text of at least 16 bytes", "World::make_unique_id"})
          EXPECT_NE(text.find(way), std::string::npos) << text;
        EXPECT_EQ(text.find("0123456789"), std::string::npos) << text;
      }
    };
    expect({}, "IMBREX_RENDEZVOUS is not set: the ranks that ");
    expect({{"IMBREX_RENDEZVOUS", "0123456789abcde"}}, "IMBREX_RENDEZVOUS has 15 bytes: the ranks that ");
    EXPECT_TRUE(find_bootstrap(environment_with(launch + secret))->reach);
  }
  EXPECT_THROW(find_bootstrap(environment_with(own + there)), Error);
}

TEST(Bootstrap, TheFirstOfSlurmsHosts) {
  for (const auto& [list, host] : std::vector<std::pair<std::string, std::string>>{{"a", "a"},
                                                                                   {"a,b", "a"},
                                                                                   {"n[01-04]", "n01"},
                                                                                   {"n[3,5-6],m", "n3"},
                                                                                   {"n[7]", "n7"},
                                                                                   {"r[1-2]n[05-06]-ib", "r1n05-ib"},
                                                                                   {"", ""}})
    EXPECT_EQ(first_host(list), host) << list;
}

TEST(Bootstrap, ContradictionsNameTheVariable) {
  const auto without = [](Environ variables, const std::string& name) {
    variables.erase(name);
    return variables;
  };
  const std::vector<std::pair<Environ, std::string>> wrong = {
      {torch + Environ{{"RANK", "4"}}, "RANK=4 contradicts WORLD_SIZE=4"},
      {torch + Environ{{"RANK", "-1"}}, "RANK=-1"},
      {torch + Environ{{"RANK", "2x"}}, "RANK='2x' is not an integer"},
      {torch + Environ{{"WORLD_SIZE", "65"}}, "WORLD_SIZE=65"},
      {torch + Environ{{"LOCAL_WORLD_SIZE", "0"}}, "LOCAL_WORLD_SIZE=0: a host has at least one rank"},
      {without(torch + Environ{{"LOCAL_WORLD_SIZE", "2"}}, "MASTER_ADDR"),
       "MASTER_ADDR is not set: torchrun has spread"},
      {without(torch + Environ{{"LOCAL_WORLD_SIZE", "2"}}, "MASTER_PORT"),
       "MASTER_PORT is not set: torchrun has spread"},
      {torch + Environ{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "many"}}, "MASTER_PORT='many' is not an integer"},
      {torch + Environ{{"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "65530"}},
       "MASTER_PORT=65530: it must be 1 to 65527"},
      {ompi + Environ{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}, "IMBREX_ADDRESS is not set: Open MPI has spread the ranks"},
      {pmi, "neither PMI_FD (the launcher's open socket, of one host) nor PALS_APID nor IMBREX_RENDEZVOUS is set"},
      {pmi + Environ{{"PMI_FD", "1000000"}}, "neither PMI_FD (the launcher's open socket"},
      {pmi + Environ{{"PMI_RANK", "2"}}, "PMI_RANK=2 contradicts PMI_SIZE=2"},
      {pmi + Environ{{"MPI_LOCALNRANKS", "3"}}, "MPI_LOCALNRANKS=3 contradicts PMI_SIZE=2"},
      {pmi + Environ{{"MPI_LOCALNRANKS", "1"}, {"IMBREX_RENDEZVOUS", "a"}}, "IMBREX_ADDRESS is not set: PMI"},
      {without(pmi, "PMI_SIZE"), "PMI_SIZE is not set"},
      {without(flux, "FLUX_JOB_SIZE"), "FLUX_JOB_SIZE is not set"},
      {without(flux, "FLUX_JOB_ID"), "neither FLUX_JOB_ID"},
      {flux + Environ{{"FLUX_JOB_NNODES", "2"}}, "IMBREX_ADDRESS is not set: Flux has spread the ranks"},
      {flux + Environ{{"FLUX_JOB_NNODES", "5"}}, "FLUX_JOB_NNODES=5 contradicts FLUX_JOB_SIZE=4"},
      {{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "a"}}, "PMIX_RANK=0: the launcher that started this process does not"},
      {pod + Environ{{"PMIX_RANK", "1"}}, "PMIX_RANK=1: the launcher"},
      {{{"PMI_ID", "1"}, {"PMI_PORT", "here:1"}}, "PMI_ID=1: the launcher"},
      {{{"PALS_RANKID", "1"}, {"PALS_APID", "7"}}, "PALS_RANKID=1: the launcher"},
      {pod + Environ{{"WORLD_SIZE", "8"}} + ompi,
       "RANK=0 and WORLD_SIZE=8 contradict OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=3: unset those"},
      {pod + Environ{{"LOCAL_RANK", "0"}} + pmi, "RANK=0 and WORLD_SIZE=1 contradict PMI_RANK=1 and PMI_SIZE=2"},
      {Environ{{"IMBREX_RANK", "0"}, {"IMBREX_WORLD_SIZE", "1"}} + ompi,
       "IMBREX_RANK=0 and IMBREX_WORLD_SIZE=1 contradict OMPI_COMM_WORLD_RANK=1"},
      {ompi + Environ{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}} + pmi,
       "OMPI_COMM_WORLD_SIZE=1 contradict PMI_RANK=1 and PMI_SIZE=2"},
      {own + Environ{{"IMBREX_ADDRESS", "a:b"}}, "IMBREX_ADDRESS='a:b': port 'b' is not a number"},
      {torch + Environ{{"LOCAL_WORLD_SIZE", "8"}}, "LOCAL_WORLD_SIZE=8 contradicts"},
      {without(torch, "WORLD_SIZE"), "WORLD_SIZE is not set"},
      {without(torch, "RANK"), "RANK is not set"},
      {without(without(torch, "MASTER_PORT"), "TORCHELASTIC_RUN_ID"), "MASTER_PORT"},
      {without(ompi, "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK is not set"},
      {without(ompi, "OMPI_MCA_ess_base_jobid"), "PMIX_NAMESPACE"},
      {slurm + Environ{{"SLURM_NNODES", "2"}}, "SLURM_NODELIST is not set: Slurm has spread the ranks"},
      {slurm + Environ{{"SLURM_NNODES", "2"}, {"SLURM_NODELIST", "n[1-2"}}, "list of hosts '[1-2' lacks a ']'"},
      {slurm + Environ{{"SLURM_STEP_NUM_NODES", "3"}}, "SLURM_STEP_NUM_NODES=3 contradicts SLURM_NTASKS=2"},
      {without(slurm, "SLURM_NTASKS"), "SLURM_NTASKS is not set"},
      {without(own, "IMBREX_RENDEZVOUS"), "IMBREX_RENDEZVOUS is not set: it tells this launch from others"},
      {without(slurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set: it tells"},
  };
  for (const auto& [variables, part] : wrong) {
    const auto environment = environment_with(variables);
    try {
      find_bootstrap(environment);
      ADD_FAILURE() << "no error; expected: " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nexpected: " << part;
    }
  }
}

TEST(Environment, ParsesNumbersAndRefusesTheRest) {
  const auto limit = [](const std::string& value) {
    return environment_with({{"IMBREX_WAIT_LIMIT", value}}).number(base::Key::wait_limit);
  };
  EXPECT_EQ(limit("0.5"), 0.5);
  EXPECT_EQ(limit(""), std::nullopt);
  for (const char* value : {"abc", "1s", " 1", "nan", "inf", "1e999"}) EXPECT_THROW(limit(value), Error) << value;
}

TEST(Environment, SaysWhichValuesCannotBeUsed) {
  const auto fault = [](base::Key key, const std::string& value) {
    return environment_with({{std::string(base::name_of(key)), value}}).fault(key);
  };
  for (const char* value : {"", "0.5", "30", "1e9"}) EXPECT_EQ(fault(base::Key::wait_limit, value), "") << value;
  EXPECT_EQ(fault(base::Key::wait_limit, "soon"), "IMBREX_WAIT_LIMIT='soon' is not a number");
  EXPECT_EQ(fault(base::Key::wait_limit, "0"), "IMBREX_WAIT_LIMIT='0' must be more than 0 and at most 1000000000 s");
  EXPECT_NE(fault(base::Key::wait_limit, "-1"), "");
  EXPECT_NE(fault(base::Key::wait_limit, "1.1e9"), "");
  for (const char* value : {"", "auto", "pidfd", "lock"}) EXPECT_EQ(fault(base::Key::loss_detection, value), "");
  for (const char* value : {"", "auto", "cpu", "cuda"}) EXPECT_EQ(fault(base::Key::shmem_device, value), "");
  EXPECT_EQ(fault(base::Key::shmem_device, "tpu"), "IMBREX_SHMEM_DEVICE='tpu' must be auto, cpu or cuda");
  EXPECT_EQ(fault(base::Key::shmem_ranks_per_gpu, "4"), "");
  EXPECT_EQ(fault(base::Key::shmem_ranks_per_gpu, "0"), "IMBREX_SHMEM_RANKS_PER_GPU='0' must be from 1 to 64");
  for (const char* value : {"", "1", "512M", "1.5g", "0.25T", "8k"})
    EXPECT_EQ(fault(base::Key::shmem_symmetric_size, value), "") << value;
  for (const char* value : {"0", "-1M", "M", "1MB", "1 M", "nan", "inf", "1e9", "2T", "1.5.G"})
    EXPECT_NE(fault(base::Key::shmem_symmetric_size, value).find("must be a size from 1 byte to 512 GiB"),
              std::string::npos)
        << value;
  EXPECT_EQ(fault(base::Key::loss_detection, "luck"), "IMBREX_LOSS_DETECTION='luck' must be auto, pidfd or lock");
  EXPECT_EQ(fault(base::Key::torch_rank, "x"), "RANK='x' is not an integer");
  EXPECT_EQ(fault(base::Key::torch_master_port, "x"), "");
}

TEST(Environment, ListsItself) {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : environment_variables()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_FALSE(variable.description.empty() || variable.type.empty()) << variable.name;
  }
  for (const char* name : {"IMBREX_WAIT_LIMIT", "IMBREX_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"})
    EXPECT_TRUE(names.count(name)) << name;
}

TEST(UniqueId, IsUniqueAndChecked) {
  EXPECT_NE(World::make_unique_id().bytes, World::make_unique_id().bytes);
  EXPECT_THROW(World::connect(UniqueId{}, 0, 1), Error);
  EXPECT_THROW(World::connect(World::make_unique_id(), 1, 1), Error);
  EXPECT_EQ(World::connect(World::make_unique_id(), 0, 1)->size(), 1);
}

}  // namespace
}  // namespace imbrex::runtime
