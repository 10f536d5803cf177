#include "moe/reference.h"

#include <algorithm>
#include <cstring>

#include "moe/formats.h"

namespace braid::moe::reference {

namespace {

int local_experts(const Problem& p) { return p.num_experts / p.num_ranks(); }

int64_t id_of(const Problem& p, int source, int token, int k) {
  return p.ranks[static_cast<size_t>(source)].ids[static_cast<size_t>(token * p.num_topk + k)];
}

int local_id(const Problem& p, int rank, int64_t id) {
  const int l = local_experts(p);
  return id >= int64_t{rank} * l && id < int64_t{rank + 1} * l ? static_cast<int>(id - rank * l)
                                                               : -1;
}

bool gets(const Problem& p, int rank, int source, int token) {
  for (int k = 0; k < p.num_topk; ++k)
    if (local_id(p, rank, id_of(p, source, token, k)) >= 0) return true;
  return false;
}

template <typename Each>
void for_copies(const Problem& p, int rank, Each&& each) {
  for (int source = 0; source < p.num_ranks(); ++source)
    for (int t = 0; t < p.ranks[static_cast<size_t>(source)].count; ++t)
      if (gets(p, rank, source, t)) each(source, t);
}

std::vector<float> row_of(const Problem& p, Dtype dtype, const Bytes& rows, uint64_t index) {
  std::vector<float> values(p.row_bytes / dtype_bytes(dtype));
  widen(dtype, rows.data() + index * p.row_bytes, values.data(), values.size());
  return values;
}

void store(const Problem& p, Dtype dtype, const std::vector<float>& sum, int token, Bytes& out) {
  narrow(dtype, sum.data(), out.data() + static_cast<uint64_t>(token) * p.row_bytes, sum.size());
}

}  // namespace

BySource by_source(const Problem& p, int rank, int alignment) {
  BySource got;
  got.rows_per_expert.resize(static_cast<size_t>(local_experts(p)));
  for_copies(p, rank, [&](int source, int t) {
    const Tokens& from = p.ranks[static_cast<size_t>(source)];
    const auto row = from.rows.begin() + static_cast<int64_t>(t * p.row_bytes);
    got.rows.insert(got.rows.end(), row, row + static_cast<int64_t>(p.row_bytes));
    got.source_rank.push_back(source);
    got.source_token.push_back(t);
    for (int k = 0; k < p.num_topk; ++k) {
      const int local = local_id(p, rank, id_of(p, source, t, k));
      got.ids.push_back(local);
      if (local >= 0) ++got.rows_per_expert[static_cast<size_t>(local)];
      if (!from.weights.empty())
        got.weights.push_back(local < 0 ? 0
                                        : from.weights[static_cast<size_t>(t * p.num_topk + k)]);
    }
  });
  for (int32_t& rows : got.rows_per_expert) rows = (rows + alignment - 1) / alignment * alignment;
  return got;
}

std::vector<Row> by_expert(const Problem& p, int rank) {
  std::vector<Row> rows;
  for (int e = 0; e < local_experts(p); ++e)
    for_copies(p, rank, [&](int source, int t) {
      for (int k = 0; k < p.num_topk; ++k)
        if (local_id(p, rank, id_of(p, source, t, k)) == e) rows.push_back({e, source, t, k});
    });
  return rows;
}

Bytes combine(const Problem& p, int owner, Dtype dtype, const std::vector<Bytes>& y,
              const std::vector<Bytes>& biases) {
  const Tokens& own = p.ranks[static_cast<size_t>(owner)];
  Bytes out(static_cast<uint64_t>(own.count) * p.row_bytes);
  for (int t = 0; t < own.count; ++t) {
    std::vector<float> sum(p.row_bytes / dtype_bytes(dtype));
    bool is_first = true;
    const auto add = [&](const std::vector<float>& x) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = is_first ? x[i] : sum[i] + x[i];
      is_first = false;
    };
    for (int rank = 0; rank < p.num_ranks(); ++rank) {
      uint64_t index = 0;
      for_copies(p, rank, [&](int source, int token) {
        if (source == owner && token == t)
          add(row_of(p, dtype, y[static_cast<size_t>(rank)], index));
        ++index;
      });
    }
    for (const Bytes& bias : biases) add(row_of(p, dtype, bias, static_cast<uint64_t>(t)));
    store(p, dtype, sum, t, out);
  }
  return out;
}

Bytes combine_by_node(const Problem& p, int owner, Dtype dtype, const std::vector<Bytes>& y,
                      const std::vector<Bytes>& biases, int per_node) {
  const Tokens& own = p.ranks[static_cast<size_t>(owner)];
  Bytes out(static_cast<uint64_t>(own.count) * p.row_bytes);
  const size_t elements = p.row_bytes / dtype_bytes(dtype);
  for (int t = 0; t < own.count; ++t) {
    std::vector<std::vector<float>> addends;
    const auto sum_of = [&](const std::vector<std::vector<float>>& rows) {
      std::vector<float> sum = rows.empty() ? std::vector<float>(elements) : rows[0];
      for (size_t r = 1; r < rows.size(); ++r)
        for (size_t i = 0; i < elements; ++i) sum[i] += rows[r][i];
      return sum;
    };
    for (int first = 0; first < p.num_ranks(); first += per_node) {
      std::vector<std::vector<float>> rows;
      for (int rank = first; rank < first + per_node; ++rank) {
        uint64_t index = 0;
        for_copies(p, rank, [&](int source, int token) {
          if (source == owner && token == t)
            rows.push_back(row_of(p, dtype, y[static_cast<size_t>(rank)], index));
          ++index;
        });
      }
      if (rows.empty()) continue;
      Bytes partial(p.row_bytes);
      store(p, dtype, sum_of(rows), 0, partial);
      addends.push_back(row_of(p, dtype, partial, 0));
    }
    for (const Bytes& bias : biases)
      addends.push_back(row_of(p, dtype, bias, static_cast<uint64_t>(t)));
    store(p, dtype, sum_of(addends), t, out);
  }
  return out;
}

Bytes combine_low_latency(const Problem& p, int owner, Dtype dtype, const std::vector<Bytes>& y,
                          const std::vector<float>& weights) {
  const Tokens& own = p.ranks[static_cast<size_t>(owner)];
  std::vector<std::vector<Row>> rows;
  for (int rank = 0; rank < p.num_ranks(); ++rank) rows.push_back(by_expert(p, rank));
  Bytes out(static_cast<uint64_t>(own.count) * p.row_bytes);
  for (int t = 0; t < own.count; ++t) {
    std::vector<float> sum(p.row_bytes / dtype_bytes(dtype));
    for (int k = 0; k < p.num_topk; ++k) {
      const int64_t id = id_of(p, owner, t, k);
      if (id < 0) continue;
      const auto rank = static_cast<size_t>(id / local_experts(p));
      const auto is_it = [&](const Row& r) {
        return r.source == owner && r.token == t && r.k == k;
      };
      const auto found = std::find_if(rows[rank].begin(), rows[rank].end(), is_it);
      const auto x = row_of(p, dtype, y[rank], static_cast<uint64_t>(found - rows[rank].begin()));
      const float weight = weights[static_cast<size_t>(t * p.num_topk + k)];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * x[i];
    }
    store(p, dtype, sum, t, out);
  }
  return out;
}

Bytes combine_low_latency_by_rank(const Problem& p, int owner, Dtype dtype,
                                  const std::vector<Bytes>& y, const std::vector<float>& weights) {
  const Tokens& own = p.ranks[static_cast<size_t>(owner)];
  Bytes out(static_cast<uint64_t>(own.count) * p.row_bytes);
  std::vector<Bytes> partials;  // of every rank, by token
  for (int rank = 0; rank < p.num_ranks(); ++rank) {
    const std::vector<Row> rows = by_expert(p, rank);
    partials.emplace_back(out.size());
    std::vector<int64_t> row_of_choice(static_cast<size_t>(own.count * p.num_topk), -1);
    for (size_t index = 0; index < rows.size(); ++index)
      if (rows[index].source == owner)
        row_of_choice[static_cast<size_t>(rows[index].token * p.num_topk + rows[index].k)] =
            static_cast<int64_t>(index);
    for (int t = 0; t < own.count; ++t) {
      std::vector<float> sum(p.row_bytes / dtype_bytes(dtype));
      for (int k = 0; k < p.num_topk; ++k) {
        const auto choice = static_cast<size_t>(t * p.num_topk + k);
        if (row_of_choice[choice] < 0) continue;
        const auto x = row_of(p, dtype, y[static_cast<size_t>(rank)],
                              static_cast<uint64_t>(row_of_choice[choice]));
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += weights[choice] * x[i];
      }
      store(p, dtype, sum, t, partials.back());
    }
  }
  for (int t = 0; t < own.count; ++t) {
    std::vector<float> sum(p.row_bytes / dtype_bytes(dtype));
    bool is_first = true;
    for (int rank = 0; rank < p.num_ranks(); ++rank) {
      if (!gets(p, rank, owner, t)) continue;
      const auto x =
          row_of(p, dtype, partials[static_cast<size_t>(rank)], static_cast<uint64_t>(t));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = is_first ? x[i] : sum[i] + x[i];
      is_first = false;
    }
    store(p, dtype, sum, t, out);
  }
  return out;
}

uint64_t copy_bytes(const Problem& p, int source, int rank, uint64_t bytes_each) {
  uint64_t copies = 0;
  for (int t = 0; t < p.ranks[static_cast<size_t>(source)].count; ++t)
    copies += gets(p, rank, source, t) ? 1 : 0;
  return copies * bytes_each;
}

uint64_t row_bytes(const Problem& p, int source, int rank, uint64_t bytes_each) {
  const auto& ids = p.ranks[static_cast<size_t>(source)].ids;
  return static_cast<uint64_t>(std::count_if(
             ids.begin(), ids.end(), [&](int64_t id) { return local_id(p, rank, id) >= 0; })) *
         bytes_each;
}

uint64_t node_bytes(const Problem& p, int source, int first, int per_node, uint64_t bytes_each) {
  uint64_t copies = 0;
  for (int t = 0; t < p.ranks[static_cast<size_t>(source)].count; ++t) {
    bool is_met = false;
    for (int rank = first; rank < first + per_node; ++rank)
      is_met = is_met || gets(p, rank, source, t);
    copies += is_met ? 1 : 0;
  }
  return copies * bytes_each;
}

}  // namespace braid::moe::reference
