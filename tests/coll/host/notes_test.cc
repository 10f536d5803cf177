#include "coll/host/notes.h"

#include <gtest/gtest.h>

#include <utility>

namespace braid::coll {
namespace {

using plan::Op;
using Counts = std::pair<uint64_t, uint64_t>;  // of the whole buffers: sent, received

Counts counts_of(Moves moves, int rank) {
  moves.signature.dtype = Dtype::kFloat32;
  const comm::CallShape shape = note_of(moves, rank, 3).shape;
  EXPECT_EQ(shape.is_uneven, moves.signature.form == Form::kUneven);
  return {shape.send_count, shape.recv_count};
}

Moves moves_of(Op op, Form form) {
  Moves moves;
  moves.signature.op = op;
  moves.signature.form = form;
  return moves;
}

TEST(Notes, UnevenBuffersAreThoseOfTheRank) {
  Moves gathered = moves_of(Op::kAllGather, Form::kUneven);
  gathered.send_counts = {1, 2, 3};
  EXPECT_EQ(counts_of(gathered, 1), Counts(2, 6));
  Moves scattered = gathered;
  scattered.signature.op = Op::kReduceScatter;
  EXPECT_EQ(counts_of(scattered, 2), Counts(6, 3));
  Moves exchanged = gathered;
  exchanged.signature.op = Op::kAllToAll;
  exchanged.recv_counts = {4, 4, 4};
  EXPECT_EQ(counts_of(exchanged, 0), Counts(6, 12));
}

TEST(Notes, TheRootAloneHasAllBlocks) {
  Moves gathered = moves_of(Op::kAllGather, Form::kRooted);
  gathered.signature.root = 1;
  gathered.signature.count = 5;
  EXPECT_EQ(counts_of(gathered, 1), Counts(5, 15));
  EXPECT_EQ(counts_of(gathered, 0), Counts(5, 0));
  Moves scattered = gathered;
  scattered.signature.op = Op::kAllToAll;
  EXPECT_EQ(counts_of(scattered, 1), Counts(15, 5));
  EXPECT_EQ(counts_of(scattered, 2), Counts(0, 5));
  Moves reduced = gathered;
  reduced.signature.op = Op::kAllReduce;
  EXPECT_EQ(counts_of(reduced, 0), Counts(5, 5));
}

TEST(Notes, LinksOfACallThatMovedNothingAreLeftOut) {
  comm::CallReport report;
  report.plan.shares = {plan::kWhole, 0};
  report.links.resize(2);
  EXPECT_TRUE(link_notes_of(report, true).empty());  // a barrier, an empty message
  report.links[1].received_bytes = 8;
  const auto notes = link_notes_of(report, true);
  ASSERT_EQ(notes.size(), 2u);  // what was planned for the first went over the other
  EXPECT_EQ(notes[0].parts, plan::kWhole);
  EXPECT_EQ(notes[1].received_bytes, 8u);
}

TEST(Notes, ALinkThatOnlySentIsDoneWithItsLastByte) {
  comm::CallReport report;
  report.start_ns = 1'000;
  report.links.resize(2);
  report.links[0].sent_bytes = 8;
  report.links[0].last_put_ns = 1'700;
  report.links[1] = report.links[0];
  report.links[1].finish_ns = 900;  // an arrival, behind it
  const auto notes = link_notes_of(report, true);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0].finish_ns, 700);
  EXPECT_EQ(notes[1].finish_ns, 900);
}

}  // namespace
}  // namespace braid::coll
