// Writes seeds for the binary and JSON targets: one file per kind of message, as the encoders write
// it today.
#include <netinet/in.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "bindings/nccl/core/nodes/mark.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "bindings/nccl/core/nodes/verdict.h"
#include "coll/device/share_text.h"
#include "coll/wire.h"
#include "engine/frames.h"
#include "fabric/json.h"
#include "group/frame_seal.h"
#include "group/wire.h"
#include "plan/table.h"
#include "sys/verbs/name.h"
#include "transport/nvlink/handover_note.h"

namespace {

using namespace braid;  // NOLINT: a test program

std::filesystem::path corpus;

void write(const char* target, const char* name, std::string_view bytes) {
  std::filesystem::create_directories(corpus / target);
  std::ofstream(corpus / target / name, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void engine_seeds() {
  const char* target = "engine_frames";
  write(
      target, "open",
      engine::encode(engine::Open{.name = "a", .host = "h", .process = 7, .nics = {"tcp", "net"}}));
  write(target, "accept",
        engine::encode(engine::Accept{.is_local = false, .why_not_local = "", .rails = {{0, 1}}}));
  write(target, "rail", engine::encode(engine::RailCall{.rail = 1, .endpoint = "name"}));
  write(target, "rail_ready",
        engine::encode(engine::RailReady{.rail = 1, .endpoint = "name", .trouble = ""}));
  engine::Delivery delivery{true, 7, 3, engine::MessageKind::kNotification, "done"};
  write(target, "landed", engine::encode(engine::Landed{9, delivery}));
  write(target, "lend", engine::encode(engine::Loan{.region = 2, .handle = std::string(64, 'h')}));
  write(target, "pull",
        engine::encode(engine::Pull{.transfer = 9,
                                    .is_last = true,
                                    .delivery = delivery,
                                    .planes = {{2, 0, 0, 0}},
                                    .stretches = {{4096, 0, 512}, {8192, 512, 512}}}));
  write(target, "pull_pages",
        engine::encode(engine::Pull{.transfer = 9,
                                    .word_address = 64,
                                    .word = 77,
                                    .is_last = true,
                                    .delivery = delivery,
                                    .planes = {{2, 5, 4096, 0}, {3, 6, 8192, 512}},
                                    .pages = {.count = 20, .list_at = 2, .page_bytes = 512}}));
  write(target, "fence", engine::encode(engine::Fence{.rail = 1, .regions = {2, 3}}));
  write(target, "done", engine::encode(engine::Done{.transfers = {9, 10}}));
  write(target, "refused",
        engine::encode(engine::Refused{9, Code::kInvalidArgument, "there is no region 2"}));
}

void group_seeds() {
  const std::string hello = encode(group::Hello{.job_id = "job", .rank = 1, .size = 4});
  write("group_wire", "challenge", encode(group::Challenge{}));
  write("group_wire", "hello", hello);
  write("group_wire", "welcome", encode(group::Welcome{}) + group::encode_ready());
  write("group_wire", "refusal",
        encode(group::Refusal{.kind = group::RefusalKind::kOtherJob, .text = "another job"}));
  write("group_wire", "joined", encode(group::FrameType::kJoined, group::RankNote{2}));
  write("group_wire", "blob",
        encode(group::Blob{.sequence = 7, .rank = 1, .topic = "lanes", .bytes = "abc"}));
  write("group_wire", "news",
        encode(group::News{.code = Code::kPeerLost, .rank = 3, .text = "rank 3 left"}));
  write("group_wire", "hello_body", std::string_view(hello).substr(group::kFrameHeadBytes));
  const std::string joined = encode(group::FrameType::kJoined, group::RankNote{2});
  const std::string no_seal(group::kSealBytes, '\0');
  write("group_frames", "joined", joined + no_seal);
  write("group_frames", "ready_and_joined", group::encode_ready() + no_seal + joined + no_seal);
  write("group_frames", "blob_body",
        std::string_view(encode(group::Blob{.sequence = 7, .rank = 1, .topic = "t", .bytes = "b"}))
            .substr(group::kFrameHeadBytes));
}

fabric::Fabric small_fabric() {
  fabric::Node node{.name = "node0", .host_id = "a"};
  node.cpus = {{0, 8, uint64_t{1} << 34}};
  node.gpus = {{.index = 0, .name = "gpu", .pci_address = "0000:01:00.0", .numa_node = 0}};
  node.nics = {
      {.name = "eth0", .rate_gbps = 1.25, .is_up = true, .provider = "tcp", .address = "10.0.0.1"}};
  node.gpu_paths = {{0, 0, fabric::PathKind::kSelf, 0}};
  node.gpu_nic_paths = {{0, 0, fabric::PathKind::kPix, 1}};
  const fabric::Link shm{.name = "shm", .rate_gbps = 4, .latency_ns = 1000};
  const fabric::Link staged{.name = "staged",
                            .kind = fabric::LinkKind::kStaged,
                            .rate_gbps = 2,
                            .latency_ns = 5000,
                            .can_multicast = true};
  return {{node}, {shm, staged}, {0, 0}};
}

void json_seeds() {
  const fabric::Fabric facts = small_fabric();
  write("fabric_json", "fabric", fabric::to_json(facts));
  write("fabric_json", "node", fabric::to_json(facts.nodes[0]));
  plan::TuningTable table("fuzz", {"shm", "staged"});
  write("tuning_table", "empty", table.to_json());
  table.put({.op = plan::Op::kAllReduce,
             .num_ranks = 4,
             .bytes = 1 << 20,
             .shares = {40000, plan::kWhole - 40000},
             .cell_bytes = 65536,
             .measured_ns = 1e6,
             .best_link = 0,
             .best_single_ns = 2e6});
  table.rates().add(plan::Op::kAllReduce, 4, 0, {.bytes = 1 << 19, .ns = 5e5});
  table.rates().add(plan::Op::kAllReduce, 4, 1, {.bytes = 1 << 18, .ns = 4e5});
  write("tuning_table", "two_links", table.to_json());
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void coll_seeds() {
  coll::Entry entry;
  entry.signature = {.op = plan::Op::kAllReduce, .dtype = Dtype::kFloat32, .count = 100};
  write("coll_wire", "entry", text_of(coll::encode_entry(entry)));
  entry.report_epoch = 6;
  entry.report = {{1000, 2000}, {3000, 4000}};
  entry.updates = {{.from_epoch = 8, .has_shares = true, .size_class = 20, .shares = {65000, 536}}};
  write("coll_wire", "entry_with_update", text_of(coll::encode_entry(entry)));
  entry.signature.op = plan::Op::kAllToAll;
  entry.signature.form = coll::Form::kUneven;
  entry.send_counts = {1, 2, 3, 4};
  entry.recv_counts = {4, 3, 2, 1};
  write("coll_wire", "entry_uneven", text_of(coll::encode_entry(entry)));
  entry.signature = {
      .op = plan::Op::kAllGather, .form = coll::Form::kRooted, .root = 1, .count = 7};
  entry.send_counts = entry.recv_counts = {};
  write("coll_wire", "entry_rooted", text_of(coll::encode_entry(entry)));
  entry.signature = {.op = plan::Op::kAllToAll, .count = 7, .bit_op = coll::BitOp::kBxor};
  write("coll_wire", "entry_bitwise", text_of(coll::encode_entry(entry)));
  write("coll_wire", "announcement",
        text_of(coll::encode_announcement({Dtype::kBfloat16, uint64_t{1} << 40})));
  const auto tag =
      coll::encode_tag({.epoch = 9, .kind = coll::PieceKind::kData, .block = 2, .cell = 77});
  write("coll_wire", "tag", {reinterpret_cast<const char*>(tag.words.data()), sizeof(tag.words)});
}

void roll_seeds() {
  const char* target = "roll_wire";
  nccl::Coming coming;
  coming.rank = 1;
  coming.num_ranks = 4;
  coming.patience_ns = 1'000'000'000;
  coming.words = "yes";
  write(target, "coming", nccl::encode(coming));
  write(target, "met", nccl::encode(nccl::Met{"", {"yes", "yes", "no"}}));
  write(target, "not_met", nccl::encode(nccl::Met{"a rank has ended", {}}));
  std::string facts;
  for (int rank = 0; rank < 4; ++rank) {
    nccl::RankFacts one{std::string(nccl::kHostDigits, rank < 2 ? 'a' : 'b'), 0, 0x10, 22809, ""};
    one.process = static_cast<uint64_t>(rank) + 7;
    facts += nccl::encode(one) + "\n";
  }
  write(target, "facts", facts);
  std::array<std::byte, nccl::kIdBytes> id{};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(id.data() + 8, &at, sizeof at);
  nccl::Mark mark{nccl::bootstrap_of(id).value(), {}};
  mark.at.set_port(4242);
  nccl::write_mark(id, mark);
  write(target, "id", {reinterpret_cast<const char*>(id.data()), id.size()});
}

void gpu_seeds() {
  coll::device::LinkShares shares;
  shares.ended_ns = 5;
  for (comm::TunedShare& share : shares.of_op) share = {1 << 20, 1 << 24, 0.125, 0.25};
  write("share_text", "shares", coll::device::shares_to_json("0123456789abcdef", shares));
  write("handover_note", "parts", nvlink::encode(nvlink::HandoverNote{2, 0, 16, ""}));
  write("handover_note", "refusal", nvlink::encode(nvlink::HandoverNote{1, 4, 0, "no memory"}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds tests/fuzz/corpus\n");
    return 2;
  }
  corpus = argv[1];
  group_seeds();
  engine_seeds();
  json_seeds();
  coll_seeds();
  roll_seeds();
  gpu_seeds();
  sys::verbs::EndpointName name;
  name.gid[15] = 1;
  name.gid_type = sys::verbs::GidType::kRoceV2;
  name.mtu = 5;
  name.data = {0x123456, 0xabcdef};
  write("verbs_name", "roce", sys::verbs::encode(name));
  write("verbs_name", "port", "mlx5_0:1:3");
  write("link_spec", "auto", "auto\n127.0.0.1\n\n");
  write("link_spec", "named",
        "shm,staged,rdma\n10.0.0.1,10.0.1.1\nshm=400MB/s,rdma=100MB/s@50us\n");
  write("link_spec", "provider", "rdma:tcp:127.0.0.1,rdma:shm\n\nrdma=0.1\n");
}
