// Fields of the NIC's commands lie where the manual's rows say, and are set as rdma-core sets them.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "apps/nic/prm.hpp"
#include "support/random_plan.hpp"

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
#endif

namespace imbrex::shmem::mlx5::prm {
namespace {

// The manual's rows, one after another: a name and its bits; "" is reserved.
struct Row {
  std::string name;
  std::uint32_t bits;
};
using Rows = std::vector<Row>;

const Rows header_rows{{"opcode", 16}, {"uid", 16}, {"", 16}, {"op_mod", 16}};

const Rows cqc_rows{{"status", 4},
                    {"as_notify", 1},
                    {"initiator_src_dct", 1},
                    {"dbr_umem_valid", 1},
                    {"", 1},
                    {"cqe_sz", 3},
                    {"cc", 1},
                    {"", 1},
                    {"scqe_break", 1},
                    {"oi", 1},
                    {"cq_period_mode", 2},
                    {"cqe_comp_en", 1},
                    {"mini_cqe", 2},
                    {"st", 4},
                    {"", 1},
                    {"cqe_comp_layout", 7},
                    {"dbr_umem_id", 32},
                    {"", 20},
                    {"page_offset", 6},
                    {"", 2},
                    {"mini_cqe_ext", 2},
                    {"timestamp", 2},
                    {"", 3},
                    {"log_cq_size", 5},
                    {"uar_page", 24},
                    {"", 4},
                    {"cq_period", 12},
                    {"cq_max_count", 16},
                    {"", 24},
                    {"c_eqn", 8},
                    {"", 3},
                    {"log_page_size", 5},
                    {"", 24},
                    {"", 32},
                    {"", 8},
                    {"last_notified_index", 24},
                    {"", 8},
                    {"last_solicit", 24},
                    {"", 8},
                    {"consumer_counter", 24},
                    {"", 8},
                    {"producer_counter", 24},
                    {"partition", 12},
                    {"process_id", 20},
                    {"", 32},
                    {"dbr_addr", 64}};

const Rows ads_rows{{"fl", 1},
                    {"free_ar", 1},
                    {"", 14},
                    {"pkey_index", 16},
                    {"", 8},
                    {"grh", 1},
                    {"mlid", 7},
                    {"rlid", 16},
                    {"ack_timeout", 5},
                    {"", 3},
                    {"src_addr_index", 8},
                    {"", 4},
                    {"stat_rate", 4},
                    {"hop_limit", 8},
                    {"", 4},
                    {"tclass", 8},
                    {"flow_label", 20},
                    {"rgid", 128},
                    {"", 4},
                    {"f_dscp", 1},
                    {"f_ecn", 1},
                    {"", 1},
                    {"f_eth_prio", 1},
                    {"ecn", 2},
                    {"dscp", 6},
                    {"udp_sport", 16},
                    {"dei_cfi", 1},
                    {"eth_prio", 3},
                    {"sl", 4},
                    {"vhca_port_num", 8},
                    {"rmac", 48}};

const Rows qpc_rows{{"state", 4},
                    {"lag", 4},
                    {"st", 8},
                    {"", 2},
                    {"isolate_vl_tc", 1},
                    {"pm_state", 2},
                    {"", 1},
                    {"credit", 2},
                    {"offload_type", 4},
                    {"end_padding", 2},
                    {"", 2},
                    {"wq_signature", 1},
                    {"block_lb_mc", 1},
                    {"atomic_like", 1},
                    {"latency", 1},
                    {"", 1},
                    {"drain_sigerr", 1},
                    {"", 2},
                    {"pd", 24},
                    {"mtu", 3},
                    {"log_msg_max", 5},
                    {"", 1},
                    {"log_rq_size", 4},
                    {"log_rq_stride", 3},
                    {"no_sq", 1},
                    {"log_sq_size", 4},
                    {"", 3},
                    {"ts_format", 2},
                    {"data_in_order", 1},
                    {"rlky", 1},
                    {"ulp", 4},
                    {"counter_set_id", 8},
                    {"uar_page", 24},
                    {"", 8},
                    {"user_index", 24},
                    {"", 3},
                    {"log_page_size", 5},
                    {"remote_qpn", 24},
                    {"path", 352},
                    {"second_path", 352},
                    {"log_ack_req_freq", 4},
                    {"", 4},
                    {"log_sra_max", 3},
                    {"", 2},
                    {"retry_count", 3},
                    {"rnr_retry", 3},
                    {"", 1},
                    {"fre", 1},
                    {"cur_rnr", 3},
                    {"cur_retry", 3},
                    {"", 5},
                    {"", 32},
                    {"", 8},
                    {"next_send_psn", 24},
                    {"", 8},
                    {"cqn_snd", 24},
                    {"", 8},
                    {"deth_sqpn", 24},
                    {"", 32},
                    {"", 8},
                    {"last_acked", 24},
                    {"", 8},
                    {"ssn", 24},
                    {"", 8},
                    {"log_rra_max", 3},
                    {"", 1},
                    {"atomic_mode", 4},
                    {"rre", 1},
                    {"rwe", 1},
                    {"rae", 1},
                    {"", 1},
                    {"page_offset", 6},
                    {"", 3},
                    {"cd_slave_rcv", 1},
                    {"cd_slave_snd", 1},
                    {"cd_master", 1},
                    {"", 3},
                    {"min_rnr_nak", 5},
                    {"next_rcv_psn", 24},
                    {"", 8},
                    {"xrcd", 24},
                    {"", 8},
                    {"cqn_rcv", 24},
                    {"dbr_addr", 64},
                    {"q_key", 32},
                    {"", 5},
                    {"rq_type", 3},
                    {"srqn", 24},
                    {"", 8},
                    {"rmsn", 24},
                    {"hw_sq", 16},
                    {"sw_sq", 16},
                    {"hw_rq", 32},
                    {"sw_rq", 32},
                    {"", 32},
                    {"", 15},
                    {"cgs", 1},
                    {"cs_req", 8},
                    {"cs_res", 8},
                    {"dc_access_key", 64},
                    {"", 3},
                    {"dbr_umem_valid", 1},
                    {"", 156},
                    {"dbr_umem_id", 32}};

Rows together(std::initializer_list<Rows> parts) {
  Rows all;
  for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Where each row lies; what they add up to is "end".
std::map<std::string, Field> places(const Rows& rows) {
  std::map<std::string, Field> found;
  std::uint32_t at = 0;
  for (const Row& row : rows) {
    if (!row.name.empty()) found[row.name] = {at, row.bits};
    at += row.bits;
  }
  found["end"] = {at, 0};
  return found;
}

void expect_places(const Rows& rows, const std::map<std::string, Field>& named, std::uint32_t bits) {
  auto expected = places(rows);
  EXPECT_EQ(expected.at("end").at, bits);
  for (const auto& [name, field] : named) {
    ASSERT_TRUE(expected.count(name)) << name;
    EXPECT_EQ(field.at, expected[name].at) << name;
    EXPECT_EQ(field.bits, expected[name].bits) << name;
  }
}

TEST(Mlx5Commands, ACompletionQueuesContextIsTheManuals) {
  using namespace cqc;
  expect_places(cqc_rows,
                {{"dbr_umem_valid", dbr_umem_valid},
                 {"cqe_sz", cqe_sz},
                 {"cc", cc},
                 {"oi", oi},
                 {"dbr_umem_id", dbr_umem_id},
                 {"log_cq_size", log_cq_size},
                 {"uar_page", uar_page},
                 {"c_eqn", c_eqn},
                 {"log_page_size", log_page_size},
                 {"dbr_addr", dbr_addr}},
                cqc::bits);
}

TEST(Mlx5Commands, APathIsTheManuals) {
  using namespace ads;
  expect_places(ads_rows,
                {{"pkey_index", pkey_index},
                 {"grh", grh},
                 {"rlid", rlid},
                 {"ack_timeout", ack_timeout},
                 {"src_addr_index", src_addr_index},
                 {"hop_limit", hop_limit},
                 {"udp_sport", udp_sport},
                 {"vhca_port_num", vhca_port_num},
                 {"rgid", {rgid, 128}},
                 {"rmac", {rmac, 48}}},
                ads::bits);
}

TEST(Mlx5Commands, AQueuePairsContextIsTheManuals) {
  using namespace qpc;
  expect_places(qpc_rows,
                {{"st", st},
                 {"pm_state", pm_state},
                 {"pd", pd},
                 {"mtu", mtu},
                 {"log_msg_max", log_msg_max},
                 {"log_rq_size", log_rq_size},
                 {"log_sq_size", log_sq_size},
                 {"uar_page", uar_page},
                 {"log_page_size", log_page_size},
                 {"remote_qpn", remote_qpn},
                 {"path", {path, ads::bits}},
                 {"log_ack_req_freq", log_ack_req_freq},
                 {"log_sra_max", log_sra_max},
                 {"retry_count", retry_count},
                 {"rnr_retry", rnr_retry},
                 {"next_send_psn", next_send_psn},
                 {"cqn_snd", cqn_snd},
                 {"log_rra_max", log_rra_max},
                 {"atomic_mode", atomic_mode},
                 {"rre", rre},
                 {"rwe", rwe},
                 {"rae", rae},
                 {"min_rnr_nak", min_rnr_nak},
                 {"next_rcv_psn", next_rcv_psn},
                 {"cqn_rcv", cqn_rcv},
                 {"dbr_addr", dbr_addr},
                 {"rq_type", rq_type},
                 {"dbr_umem_valid", dbr_umem_valid},
                 {"dbr_umem_id", dbr_umem_id}},
                qpc::bits);
}

TEST(Mlx5Commands, CommandsAreTheManuals) {
  expect_places(together({header_rows,
                          {{"", 64},
                           {"context", 512},
                           {"cq_umem_offset", 64},
                           {"cq_umem_id", 32},
                           {"cq_umem_valid", 1},
                           {"", 31},
                           {"", 1408}}}),
                {{"opcode", opcode},
                 {"context", {create_cq_in::context, cqc::bits}},
                 {"cq_umem_offset", create_cq_in::cq_umem_offset},
                 {"cq_umem_id", create_cq_in::cq_umem_id},
                 {"cq_umem_valid", create_cq_in::cq_umem_valid}},
                create_cq_in::bits);
  expect_places(together({header_rows,
                          {{"", 8},
                           {"input_qpn", 24},
                           {"", 32},
                           {"opt_param_mask", 32},
                           {"ece", 32},
                           {"context", 1856},
                           {"wq_umem_offset", 64},
                           {"wq_umem_id", 32},
                           {"wq_umem_valid", 1},
                           {"", 31}}}),
                {{"context", {create_qp_in::context, qpc::bits}},
                 {"wq_umem_offset", create_qp_in::wq_umem_offset},
                 {"wq_umem_id", create_qp_in::wq_umem_id},
                 {"wq_umem_valid", create_qp_in::wq_umem_valid}},
                create_qp_in::bits);
  expect_places(
      together({header_rows,
                {{"", 8}, {"qpn", 24}, {"", 32}, {"opt_param_mask", 32}, {"ece", 32}, {"context", 1856}, {"", 128}}}),
      {{"qpn", modify_qp_in::qpn},
       {"opt_param_mask", modify_qp_in::opt_param_mask},
       {"context", {modify_qp_in::context, qpc::bits}}},
      modify_qp_in::bits);
  expect_places({{"status", 8}, {"", 24}, {"syndrome", 32}, {"", 8}, {"number", 24}, {"", 32}},
                {{"status", status}, {"syndrome", syndrome}, {"number", made_number}}, 0x80);
}

TEST(Mlx5Commands, AValueThatDoesNotFitIsRefused) {
  CreateQp command;
  EXPECT_THROW(command.set(inside(create_qp_in::context, qpc::pd), 1u << 24), Error);
  command.set(inside(create_qp_in::context, qpc::pd), (1u << 24) - 1);
  EXPECT_EQ(command.get(inside(create_qp_in::context, qpc::pd)), (1u << 24) - 1);
}

#if __has_include(<infiniband/mlx5dv.h>)

TEST(Mlx5Commands, FieldsAreSetAsRdmaCoreSetsThem) {
  std::mt19937_64 random(test::seed_from_environment());
  Block<2048> ours;
  std::array<std::uint32_t, 64> theirs{};
  for (int i = 0; i < 10000; ++i) {
    const auto bits = static_cast<std::uint32_t>(1 + random() % 32);
    const auto at = static_cast<std::uint32_t>(random() % 64 * 32 + random() % (33 - bits));
    const auto value = static_cast<std::uint32_t>(random() & ((std::uint64_t{1} << bits) - 1));
    ours.set({at, bits}, value);
    _devx_set(theirs.data(), value, at, bits);
    ASSERT_EQ(ours.get({at, bits}), value);
    const auto word = static_cast<std::uint32_t>(random() % 32 * 64);
    const std::uint64_t both = random();
    ours.set({word, 64}, both);
    _devx_set64(theirs.data(), both, word);
    ASSERT_EQ(ours.get({word, 64}), both);
    ASSERT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size()), 0) << "field of " << bits << " bits at " << at;
  }
}

#endif

}  // namespace
}  // namespace imbrex::shmem::mlx5::prm
