#include "coll/wire.h"

#include <gtest/gtest.h>

namespace braid::coll {
namespace {

Entry full_entry() {
  Entry entry;
  entry.signature.op = plan::Op::kReduceScatter;
  entry.signature.dtype = Dtype::kBfloat16;
  entry.signature.redop = RedOp::kMin;
  entry.signature.root = 3;
  entry.signature.count = uint64_t{1} << 40;
  entry.signature.form = Form::kUneven;
  entry.signature.bit_op = BitOp::kBxor;
  entry.send_counts = {1, 2, uint64_t{1} << 33};
  entry.recv_counts = {4, 5, 6};
  entry.up_mask = 0b101;
  entry.report_epoch = 77;
  entry.report = {{100, 200}, {300, -1}};
  comm::ShareUpdate update;
  update.from_epoch = 78;
  update.has_shares = true;
  update.op = plan::Op::kBroadcast;
  update.size_class = 26;
  update.shares = {plan::kWhole - 7, 7};
  entry.updates = {update, comm::ShareUpdate{}};
  return entry;
}

TEST(Tag, ComesBackWhole) {
  const Tag tag{uint64_t{1} << 60, PieceKind::kOperand, true, 65535,
                uint64_t{1} << 50, uint64_t{1} << 40};
  const auto back = decode_tag(encode_tag(tag));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().epoch, tag.epoch);
  EXPECT_EQ(back.value().kind, tag.kind);
  EXPECT_EQ(back.value().forward, tag.forward);
  EXPECT_EQ(back.value().block, tag.block);
  EXPECT_EQ(back.value().cell, tag.cell);
  EXPECT_EQ(back.value().number, tag.number);
}

TEST(Tag, ForeignWordsAreRefused) {
  EXPECT_FALSE(decode_tag({}).ok());
  transport::PieceTag words = encode_tag({1, PieceKind::kData});
  words.words[1] = (words.words[1] & ~uint64_t{0xff}) | 8;  // no such kind
  EXPECT_FALSE(decode_tag(words).ok());
  words = encode_tag({1, PieceKind::kData});
  words.words[1] ^= uint64_t{1} << 40;  // the magic
  EXPECT_FALSE(decode_tag(words).ok());
}

TEST(Entry, ComesBackWhole) {
  const Entry entry = full_entry();
  const auto back = decode_entry(encode_entry(entry));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->signature, entry.signature);
  EXPECT_EQ(back->send_counts, entry.send_counts);
  EXPECT_EQ(back->recv_counts, entry.recv_counts);
  EXPECT_EQ(back->up_mask, entry.up_mask);
  EXPECT_EQ(back->report_epoch, entry.report_epoch);
  ASSERT_EQ(back->report.size(), 2U);
  EXPECT_EQ(back->report[1].finish_ns, -1);
  ASSERT_EQ(back->updates.size(), 2U);
  EXPECT_EQ(back->updates[0].shares, entry.updates[0].shares);
  EXPECT_FALSE(back->updates[1].has_shares);
}

// The largest entry that a comm can make fits the smallest slot that it may have.
TEST(Entry, LargestFitsTheSmallestSlot) {
  Entry entry = full_entry();
  entry.send_counts.assign(transport::kMaxRanks, 1);
  entry.recv_counts.assign(transport::kMaxRanks, 1);
  entry.report.assign(16, {1, 1});
  comm::ShareUpdate update = entry.updates[0];
  update.shares.assign(16, plan::kWhole / 16);
  entry.updates.assign(8, update);
  EXPECT_LE(encode_entry(entry).size(), 4096U - 64U);
}

TEST(Entry, EveryCutAndEveryTailIsRefused) {
  std::vector<std::byte> bytes = encode_entry(full_entry());
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_entry({bytes.data(), length}).ok()) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_entry(bytes).ok());
}

TEST(Entry, SharesThatDoNotSumAreRefused) {
  Entry entry = full_entry();
  entry.updates[0].shares[0] -= 1;
  EXPECT_FALSE(decode_entry(encode_entry(entry)).ok());
}

TEST(Entry, UnknownNumbersAreRefused) {
  const std::vector<std::byte> good = encode_entry(full_entry());
  for (const size_t at :
       // magic, op, form, dtype, redop, bit_op
       {size_t{0}, size_t{4}, size_t{5}, size_t{6}, size_t{7}, size_t{20}}) {
    std::vector<std::byte> bad = good;
    bad[at] = std::byte{0x7f};
    EXPECT_FALSE(decode_entry(bad).ok()) << "byte " << at;
  }
}

TEST(Announcement, ComesBackWholeAndNothingElseDoes) {
  const comm::Announcement said{Dtype::kFloat8E5m2, uint64_t{1} << 50};
  std::vector<std::byte> bytes = encode_announcement(said);
  ASSERT_TRUE(decode_announcement(bytes).ok());
  EXPECT_EQ(decode_announcement(bytes).value(), said);
  EXPECT_EQ(to_words(said), "1125899906842624 float8_e5m2");
  for (size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_announcement({bytes.data(), length}).ok()) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_announcement(bytes).ok());
  bytes.pop_back();
  bytes[0] = std::byte{63};  // no such type
  EXPECT_FALSE(decode_announcement(bytes).ok());
}

TEST(Signature, WordsNameTheCall) {
  Signature s{plan::Op::kAllReduce, Form::kRooted, Dtype::kInt8, RedOp::kMin, 2, 9};
  EXPECT_EQ(to_words(s), "reduce of 9 int8, min to root 2");
  s.op = plan::Op::kAllGather;
  EXPECT_EQ(to_words(s), "gather of 9 int8 to root 2");
  s.op = plan::Op::kAllToAll;
  EXPECT_EQ(to_words(s), "scatter of 9 int8 from root 2");
  s.form = Form::kUneven;
  EXPECT_EQ(to_words(s), "all_to_all_v of int8");
  s.op = plan::Op::kReduceScatter;
  EXPECT_EQ(to_words(s), "reduce_scatter_v of int8, min");
  s.op = plan::Op::kAllGather;
  EXPECT_EQ(to_words(s), "all_gather_v of int8");
}

TEST(Signature, WordsNameWhatDiffers) {
  Signature s;
  s.op = plan::Op::kAllReduce;
  s.dtype = Dtype::kFloat32;
  s.count = 12;
  s.redop = RedOp::kMax;
  EXPECT_EQ(to_words(s), "all_reduce of 12 float32, max");
  s.op = plan::Op::kBroadcast;
  s.root = 2;
  EXPECT_EQ(to_words(s), "broadcast of 12 float32 from root 2");
  s.form = Form::kBarrier;
  EXPECT_EQ(to_words(s), "barrier");
  s.op = plan::Op::kAllToAll;
  s.form = Form::kEven;
  s.bit_op = BitOp::kBand;
  EXPECT_EQ(to_words(s), "all_to_all of 12 float32, band");
}

}  // namespace
}  // namespace braid::coll
