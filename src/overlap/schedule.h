// In which order one rank's kernel computes the tiles of its GEMM, and what they wait for. Pure
// arithmetic, the same on the device, on the host and in the simulator of tests/overlap.
//
// The rows of the product are `ranks` shards of equal height. What a block of the kernel computes
// together with the others of its cluster is a *unit*: one tile, or two beside or below each other.
// The last unit of a shard may hang over its end, where tensor maps read zeros and write nothing.
//
// A unit has rows of one shard. Where a shard is no higher than a tile that leaves only tiles beside
// each other, whose blocks read weights of their own each; so there a unit may be *across* two
// shards, that of a place and that of the next, one tile of either. The own shard then shares units
// with another one, and a block that waits for its peers' parts holds up the other of its cluster:
// waits_last() says whether that may be.
//
// Units are ordered by bands: some rows of units of consecutive places, all columns of them, column
// by column, before the next band. So a band's rows of A stay in the L2, and each column of weights
// is read once per band. Places follow the shards as they come (all-gather: the own shard first,
// then in the order in which peers' pushes arrive) or as they are due elsewhere (reduce-scatter: the
// next rank's first, the own shard last, where its peers' parts are awaited).
//
// Units go round the clusters of a launch. The last round seldom has one for each: what is left is
// cut along K into segments of equal length, one for every cluster (Split), and whoever multiplies
// the end of a unit adds up what the others have of it.
#pragma once

#include <cstdint>

namespace braid::overlap {

/// Ranks of one call.
inline constexpr int32_t kMostRanks = 8;

/// A tile and how it is shared by a cluster of two blocks, or none.
struct Shape {
  int32_t tile_m, tile_n;
  int32_t cluster_m, cluster_n;  // 1 or 2; not both 2
  int32_t shards = 1;            // that a unit is of; 2: across
};

constexpr int32_t divided_up(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

/// Rows of a shard that a unit begins with.
struct Rows {
  int32_t shard, row;
};

/// Where a tile is.
struct Tile {
  int32_t shard;
  int32_t row;     // its first, within the shard
  int32_t column;  // its first
  int32_t index;   // among the tiles of its shard, in their order: where its parts are staged
};

struct Schedule {
  int32_t ranks;         // shards
  int32_t first_shard;   // at place 0
  int32_t step;          // from one shard to the next, 1 or -1
  int32_t unit_rows;     // rows of units in a shard
  int32_t unit_columns;  // columns of units
  int32_t band;          // rows of units in a band
  int32_t head_rows;     // rows of units ahead of a border that no band crosses
  Shape shape;

  constexpr int32_t num_units() const { return num_rows() * unit_columns; }
  /// Tiles of one shard, those hanging over included.
  constexpr int32_t tiles_per_shard() const { return unit_rows * unit_columns * tiles_of_unit(); }
  /// The tile that block `block` (0, 1) of the cluster computes of unit `unit`.
  constexpr Tile at(int32_t unit, int32_t block) const {
    const Band in = band_of(unit);
    const int32_t place = in.first + in.rest % in.height;
    const int32_t row = place % unit_rows, column = in.rest / in.height;
    if (shape.shards == 2)
      return {shard_at(2 * place + block), 0, column * shape.tile_n, index_of(0, column)};
    const int32_t beside = shape.cluster_n == 2 ? block : 0, below = block - beside;
    return {shard_at(place / unit_rows), (row * shape.cluster_m + below) * shape.tile_m,
            (column * shape.cluster_n + beside) * shape.tile_n,
            index_of(row, column) * tiles_of_unit() + block};
  }
  /// When the tile of that index is computed: its unit.
  constexpr int32_t unit_of(int32_t shard, int32_t index) const {
    const int32_t of_band = banded_rows() * unit_columns;
    const int32_t unit = index / tiles_of_unit(), above = unit / of_band;
    const int32_t height = height_from(above * banded_rows());
    const int32_t row = above * banded_rows() + unit % of_band % height;
    const int32_t column = unit % of_band / height;
    const int32_t turn = (shard - first_shard) * step + ranks;
    const int32_t place = turn % ranks / shape.shards * unit_rows + row;
    const bool is_head = place < head_rows;
    const int32_t begin = is_head ? 0 : head_rows, end = is_head ? head_rows : num_rows();
    const int32_t first = begin + (place - begin) / band * band;
    const int32_t high = end - first < band ? end - first : band;
    return first * unit_columns + column * high + place - first;
  }
  /// The first row of the last row of units in the unit's band.
  constexpr Rows end_of_band(int32_t unit) const {
    const Band in = band_of(unit);
    const int32_t place = in.first + in.height - 1;
    if (shape.shards == 2) return {shard_at(2 * place + 1), 0};
    return {shard_at(place / unit_rows), place % unit_rows * shape.cluster_m * shape.tile_m};
  }
  constexpr int32_t shard_at(int32_t place) const {
    return (first_shard + step * place + ranks * ranks) % ranks;
  }

 private:
  constexpr int32_t num_rows() const { return ranks / shape.shards * unit_rows; }
  /// Of one shard.
  constexpr int32_t tiles_of_unit() const {
    return shape.cluster_m * shape.cluster_n / shape.shards;
  }
  struct Band {
    int32_t first, height;  // places
    int32_t rest;           // the unit's number within
  };
  // Tiles of a shard are numbered by the bands that it has where bands begin with it, alike on all
  // ranks. So what is made at a time lies together where bands divide shards, or have whole ones.
  constexpr int32_t banded_rows() const { return band < unit_rows ? band : unit_rows; }
  constexpr int32_t height_from(int32_t row) const {
    return unit_rows - row < banded_rows() ? unit_rows - row : banded_rows();
  }
  constexpr int32_t index_of(int32_t row, int32_t column) const {
    const int32_t first = row / banded_rows() * banded_rows();
    return first * unit_columns + column * height_from(first) + row - first;
  }
  constexpr Band band_of(int32_t unit) const {
    const int32_t head = head_rows * unit_columns;
    const bool is_head = unit < head;
    const int32_t begin = is_head ? 0 : head_rows;
    const int32_t rows = is_head ? head_rows : num_rows() - head_rows;
    const int32_t within = is_head ? unit : unit - head;
    const int32_t of_band = band * unit_columns;
    const int32_t number = within / of_band;
    const int32_t left = rows - number * band;
    return {begin + number * band, left < band ? left : band, within % of_band};
  }
};

/// What a schedule is made of, in elements.
struct Extent {
  int32_t ranks, rank;
  int32_t shard_rows;  // at least 1
  int32_t columns;     // at least 1
};

/// Whether units of such a shape divide the rows.
constexpr bool fits(const Extent& extent, const Shape& shape) {
  return shape.shards == 1 || (extent.ranks % 2 == 0 && extent.shard_rows <= shape.tile_m);
}

constexpr Schedule schedule_of(const Extent& extent, const Shape& shape, int32_t band) {
  Schedule made{};
  made.ranks = extent.ranks;
  made.step = 1;
  const int32_t tiles = shape.cluster_m / shape.shards;  // of a unit, below each other in a shard
  made.unit_rows = divided_up(extent.shard_rows, int64_t{shape.tile_m} * tiles);
  made.unit_columns = divided_up(extent.columns, int64_t{shape.tile_n} * shape.cluster_n);
  made.band = band;
  made.shape = shape;
  return made;
}

/// Of an all-gather and GEMM: the own shard first, then rank - 1, rank - 2, ...: rank r pushes to
/// r + 1, r + 2, ... in turn, so those come in this order. `head`: rows of units that no band joins
/// with what follows; a band begins when all of it is here, so a low head begins sooner, for another
/// read of the weights.
constexpr Schedule gather_schedule(const Extent& extent, const Shape& shape, int32_t band,
                                   int32_t head) {
  Schedule made = schedule_of(extent, shape, band);
  made.first_shard = extent.rank;
  made.step = -1;
  made.head_rows = head < extent.ranks / shape.shards * made.unit_rows ? head : 0;
  return made;
}

/// Of a GEMM and reduce-scatter: rank + 1, rank + 2, ..., the own shard last, so at any time all
/// ranks write to different owners. No unit of another shard comes after one of the own: only those
/// wait, so no push ever waits for another rank (where units are across, as waits_last() says).
constexpr Schedule scatter_schedule(const Extent& extent, const Shape& shape, int32_t band) {
  Schedule made = schedule_of(extent, shape, band);
  made.first_shard = (extent.rank + 1) % extent.ranks;
  made.head_rows = (extent.ranks / shape.shards - 1) * made.unit_rows;
  return made;
}

/// Of an exchange of whole parts: one shard, the same order on all ranks.
constexpr Schedule exchange_schedule(int32_t rows, int32_t columns, const Shape& shape,
                                     int32_t band) {
  return schedule_of({1, 0, rows, columns}, shape, band);
}

/// What a cluster multiplies at a time: stages [begin, end) of a unit's K.
struct Segment {
  int32_t unit;  // -1: there is none
  int32_t begin, end;
  bool is_last;  // of its unit: whoever has it adds the others, and has the tile
};

/// How the units of a launch are shared among its clusters: whole ones in rounds, then those that
/// make no round, cut along K. Of those a cluster has at most two segments: the begin of one unit,
/// and before it in K the end of another. The begin goes first. Nobody waits for a segment before
/// having put away all that others wait for.
struct Split {
  int32_t num_clusters;
  int32_t whole;                       // units in rounds: behind them the others
  int32_t units;                       // that are cut
  int32_t sharers;                     // clusters that have segments of them; 0: none is cut
  int32_t stages;                      // of a unit
  static constexpr int32_t kStep = 4;  // stages: segments end at multiples of it, and where K does
  static constexpr int32_t kMostSharers = 6;  // of one unit, about
  /// Saved stages of every cluster for which cutting pays: sums are put away, read and added, and
  /// with 61 and 81 saved nothing was gained on an H100, with 488 of 672 as much as they take.
  static constexpr int32_t kLeastSaved = 128;

  constexpr Segment at(int32_t cluster, int32_t number) const {
    const int32_t rounds = cluster < whole ? divided_up(whole - cluster, num_clusters) : 0;
    if (number < rounds) return {cluster + number * num_clusters, 0, stages, true};
    const int32_t more = number - rounds;
    if (cluster >= sharers || more > 1) return kNone;
    const int32_t begin = begin_of(cluster), end = begin_of(cluster + 1), unit = begin / steps();
    const int32_t border = (unit + 1) * steps();
    if (end > border && more == 0) return made(unit + 1, border, end);
    if (more == 0 || end > border) return made(unit, begin, end < border ? end : border);
    return kNone;
  }
  /// Those that have segments of a cut unit follow each other: the first of them.
  constexpr int32_t first_sharer(int32_t unit) const {
    const int32_t step = (unit - whole) * steps();
    auto cluster = static_cast<int32_t>(int64_t{step} * sharers / (int64_t{units} * steps()));
    while (begin_of(cluster + 1) <= step) ++cluster;
    return cluster;
  }

 private:
  static constexpr Segment kNone{-1, 0, 0, false};
  constexpr int32_t steps() const { return divided_up(stages, kStep); }
  constexpr int32_t begin_of(int32_t cluster) const {  // in steps of all cut units
    return static_cast<int32_t>(int64_t{units} * steps() * cluster / sharers);
  }
  constexpr Segment made(int32_t unit, int32_t begin, int32_t end) const {
    const int32_t first = unit * steps();
    const bool is_last = end - first == steps();
    return {whole + unit, (begin - first) * kStep, is_last ? stages : (end - first) * kStep,
            is_last};
  }
};

/// `most_sharers`: clusters that there is room for to put sums; 0: none is cut.
constexpr Split split_of(int32_t num_units, int32_t num_clusters, int32_t stages,
                         int32_t most_sharers) {
  Split made{num_clusters, num_units, 0, 0, stages};
  const int32_t left = num_units % num_clusters;
  const int64_t saved = int64_t{num_clusters - left} * stages;
  if (left == 0 || saved < int64_t{Split::kLeastSaved} * num_clusters) return made;
  int32_t sharers = num_clusters < most_sharers ? num_clusters : most_sharers;
  if (sharers > left * Split::kMostSharers) sharers = left * Split::kMostSharers;
  if (sharers <= left) return made;
  made.whole = num_units - left;
  made.units = left;
  made.sharers = sharers;
  return made;
}

/// Whether nobody waits for other ranks before having made all that it owes them: every cluster has
/// nothing left to multiply when it has a unit with a tile of the own shard, the schedule's last.
/// Always so where units are of one shard: what follows is the own shard's, and nobody else's.
constexpr bool waits_last(const Schedule& schedule, const Split& split) {
  if (schedule.shape.shards == 1) return true;
  const int32_t first_own = schedule.num_units() - schedule.unit_columns;
  for (int32_t cluster = 0; cluster < split.num_clusters; ++cluster)
    for (int32_t i = 0; split.at(cluster, i).unit >= 0; ++i) {
      const Segment segment = split.at(cluster, i);
      if (segment.unit < first_own || !segment.is_last) continue;
      if (split.at(cluster, i + 1).unit >= 0) return false;
    }
  return true;
}

/// Parts of a shard that are pushed and told of at a time.
struct BatchShape {
  int32_t tiles;      // of a batch
  int32_t per_shard;  // the last may be smaller
};
/// `tiles` of a batch, or where that is 0 so many that there are `count` batches.
constexpr BatchShape batches_of(const Schedule& schedule, int32_t count, int32_t tiles = 0) {
  const int32_t all = schedule.tiles_per_shard();
  if (tiles <= 0) tiles = divided_up(all, count < 1 ? 1 : count < all ? count : all);
  if (tiles > all) tiles = all;
  return {tiles, divided_up(all, tiles)};
}

/// Communication tiles of a gathered shard: `rows` rows each, a flag for every one.
struct Pieces {
  int32_t rows;       // of a piece
  int32_t per_shard;  // flags of one shard
  /// Numbers, within a shard, of the first and the last piece that `count` rows from `row` lie in.
  constexpr int32_t first(int32_t row) const { return row / rows; }
  constexpr int32_t last(int32_t row, int32_t count, int32_t shard_rows) const {
    const int32_t end = row + count < shard_rows ? row + count : shard_rows;
    return (end - 1) / rows;
  }
};

}  // namespace braid::overlap
