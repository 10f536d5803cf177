#include "plan/table.h"

#include <gtest/gtest.h>

#include <random>

namespace braid::plan {
namespace {

TuningEntry entry_of(Op op, int num_ranks, uint64_t bytes, Shares shares) {
  TuningEntry entry;
  entry.op = op;
  entry.num_ranks = num_ranks;
  entry.bytes = bytes;
  entry.shares = std::move(shares);
  entry.cell_bytes = 16384;
  entry.measured_ns = 1.25e6;
  entry.best_link = 1;
  entry.best_single_ns = 1.5e6;
  return entry;
}

TuningTable sample_table() {
  TuningTable table("abc123", {"shm", "staged"});
  table.put(entry_of(Op::kAllGather, 4, 64 << 20, {50000, 15536}));
  table.put(entry_of(Op::kAllGather, 4, 1 << 20, {60000, 5536}));
  table.put(entry_of(Op::kBroadcast, 2, 12345, {kWhole, 0}));
  table.rates().add(Op::kAllGather, 4, 0, {1 << 20, 3e5});
  table.rates().add(Op::kAllGather, 4, 1, {1 << 18, 2.5e5});
  table.rates().add(Op::kAllGather, 4, 1, {1 << 22, 0.1 + 0.2});
  return table;
}

std::string refusal(std::string_view text, std::string_view hash = "abc123") {
  const Result<TuningTable> table = TuningTable::parse(text, hash);
  EXPECT_FALSE(table.ok());
  if (table.ok()) return "";
  EXPECT_EQ(table.status().code(), Code::kInvalidArgument);
  return table.status().message();
}

// The sample's text with one piece replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = sample_table().to_json();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
  return text.replace(at, from.size(), to);
}

TEST(TuningTable, FindsTheClassOfAnEntry) {
  const TuningTable table = sample_table();
  ASSERT_NE(table.find(Op::kAllGather, 4, 26), nullptr);
  EXPECT_EQ(table.find(Op::kAllGather, 4, 26)->shares, (Shares{50000, 15536}));
  EXPECT_EQ(table.find(Op::kAllGather, 4, 25), nullptr);
  EXPECT_EQ(table.find(Op::kAllGather, 8, 26), nullptr);
  EXPECT_EQ(table.find(Op::kAllReduce, 4, 26), nullptr);
  EXPECT_NE(table.find(Op::kBroadcast, 2, 14), nullptr);
}

TEST(TuningTable, NearestPrefersTheLargerOfTwo) {
  const TuningTable table = sample_table();  // all_gather on 4 ranks: classes 20 and 26
  EXPECT_EQ(table.nearest(Op::kAllGather, 4, 0)->bytes, uint64_t{1} << 20);
  EXPECT_EQ(table.nearest(Op::kAllGather, 4, 22)->bytes, uint64_t{1} << 20);
  EXPECT_EQ(table.nearest(Op::kAllGather, 4, 23)->bytes, uint64_t{64} << 20);
  EXPECT_EQ(table.nearest(Op::kAllGather, 4, 40)->bytes, uint64_t{64} << 20);
  EXPECT_EQ(table.nearest(Op::kAllToAll, 4, 20), nullptr);
}

TEST(TuningTable, PutReplacesTheSameClass) {
  TuningTable table = sample_table();
  table.put(entry_of(Op::kAllGather, 4, (64 << 20) - 5, {1, kWhole - 1}));
  EXPECT_EQ(table.num_entries(), 3u);
  EXPECT_EQ(table.find(Op::kAllGather, 4, 26)->shares[0], 1u);
}

TEST(TuningTableDeathTest, SharesMustFit) {
  TuningTable table("h", {"a", "b"});
  EXPECT_DEATH(table.put(entry_of(Op::kAllGather, 4, 1, {kWhole})), "1 shares for 2 links");
  EXPECT_DEATH(table.put(entry_of(Op::kAllGather, 4, 1, {1, 2})), "sum 3");
}

TEST(TuningTableJson, RoundTripsExactly) {
  const TuningTable table = sample_table();
  const std::string text = table.to_json();
  const Result<TuningTable> read = TuningTable::parse(text, "abc123");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().to_json(), text);
  EXPECT_EQ(*read.value().find(Op::kAllGather, 4, 26), *table.find(Op::kAllGather, 4, 26));
  EXPECT_EQ(read.value().rates().curve(Op::kAllGather, 4, 1)->points()[1].ns, 0.1 + 0.2);
}

TEST(TuningTableJson, TellsWhatCutItOff) {
  TuningTable table = sample_table();
  EXPECT_EQ(TuningTable::parse(table.to_json(), "abc123").value().cut_off_ns(), 0);
  table.set_cut_off_ns(250);
  EXPECT_EQ(TuningTable::parse(table.to_json(), "abc123").value().cut_off_ns(), 250);
}

TEST(TuningTableJson, AnEmptyTableIsFine) {
  const Result<TuningTable> read = TuningTable::parse(TuningTable("x", {"shm"}).to_json(), "x");
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read.value().empty());
}

TEST(TuningTableJson, RefusesWhatIsNotATable) {
  EXPECT_NE(refusal("").find("tuning table: not JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"format\":").find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("[]").find("'format' is missing"), std::string::npos);
  EXPECT_NE(refusal("null").find("'format' is missing"), std::string::npos);
  EXPECT_NE(refusal(with("braid-tuning", "other")).find("format is 'other'"), std::string::npos);
  EXPECT_NE(refusal(std::string(2 << 20, ' ')).find("more than 1048576"), std::string::npos);
}

TEST(TuningTableJson, RefusesAnotherVersionOrFabric) {
  EXPECT_NE(
      refusal(with("\"version\": 1", "\"version\": 2")).find("version is 2, this build reads 1"),
      std::string::npos);
  EXPECT_NE(
      refusal(sample_table().to_json(), "def").find("is of fabric 'abc123', this one is 'def'"),
      std::string::npos);
}

TEST(TuningTableJson, NamesThePlaceOfABadValue) {
  EXPECT_NE(refusal(with("60000", "60001")).find("entries[0].shares: shares sum to 65537"),
            std::string::npos);
  EXPECT_NE(refusal(with("60000", "-1")).find("entries[0].shares[0]: expected a whole number"),
            std::string::npos);
  EXPECT_NE(refusal(with("60000", "65537")).find("65537 is not in 0 to 65536"), std::string::npos);
  EXPECT_NE(refusal(with("60000,", "")).find("1 shares for 2 links"), std::string::npos);
  EXPECT_NE(refusal(with("16384", "16385")).find("not a multiple of 64"), std::string::npos);
  EXPECT_NE(refusal(with("16384", "1e3")).find("cell_bytes: expected a whole number"),
            std::string::npos);
  EXPECT_NE(refusal(with("1250000.0", "0")).find("measured_ns"), std::string::npos);
  EXPECT_NE(refusal(with("1250000.0", "1e999")).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal(with("1250000.0", "NaN")).find("not JSON"), std::string::npos);
  EXPECT_NE(refusal(with("1250000.0", "\"1\"")).find("expected a number"), std::string::npos);
  EXPECT_NE(
      refusal(with("\"best_link\": 1", "\"best_link\": 2")).find("best_link: 2 is not in 0 to 1"),
      std::string::npos);
  EXPECT_NE(refusal(with("1048576", "18446744073709551615")).find("entries[0].bytes"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"num_ranks\": 4", "\"num_ranks\": 0")).find("num_ranks"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"all_gather\"", "\"gather\"")).find("op 'gather' is unknown"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"link\": 1", "\"link\": 7")).find("rates[1].link: 7"),
            std::string::npos);
  EXPECT_NE(refusal(with("\"links\"", "\"inks\"")).find("'links' is missing"), std::string::npos);
}

TEST(TuningTableJson, DeepNestingCostsNothing) {
  EXPECT_NE(refusal(std::string(1 << 20, '[')).find("not JSON"), std::string::npos);
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_FALSE(
      TuningTable::parse(with("\"rates\": [", "\"deep\": " + deep + ", \"rates\": ["), "x").ok());
}

TEST(TuningTableJson, DamagedTextNeverCrashes) {
  const std::string good = sample_table().to_json();
  std::mt19937_64 rng(5);
  for (int round = 0; round < 1000; ++round) {
    std::string text = good;
    for (int k = 0; k < 1 + static_cast<int>(rng() % 4); ++k)
      text[rng() % text.size()] = static_cast<char>(rng());
    if (rng() % 4 == 0) text.resize(rng() % text.size());
    const Result<TuningTable> read = TuningTable::parse(text, "abc123");
    const std::string message = read.status().message();
    EXPECT_EQ(read.ok(), message.empty());
    for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << message;
  }
}

}  // namespace
}  // namespace braid::plan
