// What the roll over nodes and its ranks read of each other, what ranks say about themselves in it, and
// the mark in an id, which is whatever the program has handed around as one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "bindings/nccl/core/nodes/mark.h"
#include "bindings/nccl/core/nodes/roll_wire.h"
#include "bindings/nccl/core/nodes/verdict.h"

namespace {

using namespace braid::nccl;  // NOLINT: a test program of one folder

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void read_messages(std::string_view body) {
  const auto coming = decode_coming(bytes_of(body));
  if (coming.ok()) {
    BRAID_CHECK(encode(coming.value()) == body, "a coming of {} bytes does not read back",
                body.size());
    BRAID_CHECK(coming->rank < coming->num_ranks && coming->num_ranks <= kMostNodeRanks,
                "rank {} of {}", coming->rank, coming->num_ranks);
  }
  const auto met = decode_met(bytes_of(body));
  if (!met.ok()) return;
  BRAID_CHECK(encode(met.value()) == body, "an answer of {} bytes does not read back", body.size());
  BRAID_CHECK(met->all_came() != met->words.empty(), "an answer says both");
}

/// Lines are ranks. Whoever they are, all that read them come to one verdict, and it is about them.
void judge(std::string_view body) {
  std::vector<RankFacts> ranks;
  while (!body.empty() && ranks.size() < 64) {
    const size_t end = std::min(body.find('\n'), body.size());
    const auto facts = decode_facts(body.substr(0, end));
    if (facts.ok()) {
      const auto again = decode_facts(encode(facts.value()));
      BRAID_CHECK(again.ok() && encode(again.value()) == encode(facts.value()),
                  "facts do not read back");
      ranks.push_back(facts.value());
    }
    body.remove_prefix(std::min(end + 1, body.size()));
  }
  const auto map = judge_nodes(ranks, !ranks.empty() && ranks[0].settings % 2 == 0);
  if (!map.ok()) return;
  BRAID_CHECK(map->has_stages() && map->size() == static_cast<int>(ranks.size()),
              "{} nodes of {} for {} ranks", map->num_nodes, map->per_node, ranks.size());
}

void read_id(std::string_view body) {
  if (const auto told = decode_mark(body); told.ok()) {
    const auto again = decode_mark(encode(told.value()));
    BRAID_CHECK(again.ok() && again->at == told->at && again->secret == told->secret,
                "a mark of {} bytes does not read back", body.size());
  }
  const auto mark = read_mark(body);
  if (!mark) return;
  BRAID_CHECK(mark->at.port() != 0, "a roll at port 0");
  (void)mark->at.text();
  BRAID_CHECK(roll_of_key(*mark, body).starts_with(roll_of_id(*mark)), "names");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  read_messages(body);
  judge(body);
  read_id(body);
  return 0;
}
