// Low-latency dispatch: copies into their slots at the targets, and at a target from its slots to
// the experts' rows.
//
// Send      a block has a share of the tokens. It asks for the first rows that its warps will move,
//           numbers its copies and rows (numbers.cuh) while they are on their way, waits for room, and
//           stores: of a token every warp has a piece, cast once, and puts it into the slots of all
//           ranks that the token goes to. The last block, which has counted all, tells every rank how
//           many rows its experts get.
// Fan out   where rows of (expert, source) begin is a sum over the sources before; a row's number among
//           them came in its slot. So every warp knows the places of whatever copy it takes, and blocks
//           need not wait for each other. A copy is read once, piece by piece, and stored to each of
//           its rows. Word w of a row's scales lies beside word w of the next row, whose copy another
//           block moves. Where there are many, such words are half of all requests; so they are left
//           until all blocks have moved their copies, and go 32 rows side by side.
#include "moe/gpu/cast.cuh"
#include "moe/gpu/kernel.cuh"
#include "moe/gpu/numbers.cuh"

namespace braid::moe::gpu {
namespace {

// ---- send: a piece of a token's row, by a warp ----

struct Slots {
  const LlSendArgs& args;
  const SendMemory& numbers;

  /// put(slot's begin) for every copy of a batch's token.
  template <typename Put>
  __device__ __forceinline__ void each(int i, const Put& put) const {
    each_rank(numbers.mask[i], [&](int rank) { put(rank, numbers.slots[i][rank]); });
  }
};

/// The words before the row; whole sectors of memory, the rest of which says nothing.
__device__ void put_head(const Slots& slots, const SendCounter& numbering, int i, int token) {
  constexpr int kIdWords = Slot::kIds / 4, kSectorWords = 8;
  const int topk = slots.args.num_topk;
  const float* const weights = slots.args.weights;
  const int behind = kIdWords + (weights != nullptr ? 2 * topk : topk);
  const int words = (behind + kSectorWords - 1) / kSectorWords * kSectorWords;
  for (int w = lane_of_thread(); w < words; w += 32) {
    const int k = w - kIdWords;
    const int id = k >= 0 && k < topk ? slots.numbers.ids[i * topk + k] : -1;
    const int rank_of_id = id < 0 ? -1 : numbering.rank_of(id);
    const int32_t word = id < 0 ? -1 : slots.numbers.words[i * topk + k];
    const bool is_weight = weights != nullptr && k >= topk && w < behind;
    const int32_t alike =  // of all ranks
        w == 0      ? token
        : is_weight ? __float_as_int(weights[static_cast<int64_t>(token) * topk + k - topk])
                    : -1;
    slots.each(i, [&](int rank, std::byte* slot) {
      reinterpret_cast<int32_t*>(slot)[w] = rank_of_id == rank ? word : alike;
    });
  }
}

/// As it is.
class PlainPiece {
 public:
  static constexpr int kMost = 4;
  static __device__ __forceinline__ int pieces(const LlSendArgs& args) {
    return Cut::of<kMost>(args.row_bytes).pieces;
  }
  __device__ __forceinline__ void load(const LlSendArgs& args, int token, int piece) {
    const Cut cut = Cut::of<kMost>(args.row_bytes);
    piece_.load(args.x + static_cast<uint64_t>(token) * args.x_bytes, cut.begin(piece),
                cut.end(piece));
  }
  __device__ __forceinline__ void store(const Slots& slots, int i, int /*piece*/) const {
    slots.each(i, [&](int, std::byte* slot) { piece_.store(slot + slots.args.slot.row); });
  }

 private:
  Piece<kMost> piece_;
};

/// Cast: kTimes times four blocks of 128 channels, all of which are asked for before the first is cast.
template <typename Type>
class CastPiece {
 public:
  static __device__ __forceinline__ int pieces(const LlSendArgs& args) {
    return (blocks(args) + kBlocks - 1) / kBlocks;
  }
  __device__ __forceinline__ void load(const LlSendArgs& args, int token, int piece) {
    const int first = piece * kBlocks + lane_of_thread() / kLanesOfBlock;
    const std::byte* const at =
        args.x + static_cast<uint64_t>(token) * args.x_bytes + channel_of(first) * Type::kBytes;
#pragma unroll
    for (int t = 0; t < kTimes; ++t)
#pragma unroll
      for (int v = 0; v < Type::kBytes; ++v)
        in_[t][v] = first + t * kAtOnce < blocks(args)
                        ? load_vector(at + t * kChannelsAtOnce * Type::kBytes + v * kVectorBytes)
                        : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void store(const Slots& slots, int i, int piece) const {
    const LlSendArgs& args = slots.args;
    const int lane = lane_of_thread(), begin = piece * kBlocks;
    const int left = blocks(args) - begin;  // of the row
    const CastVectors<kTimes> made = cast<Type>(in_, args.form != ScaleForm::kFloat);
    uint32_t scale = 0;  // of block begin + lane
#pragma unroll
    for (int t = 0; t < kTimes; ++t) {
      const uint32_t bits =
          __shfl_sync(~0U, __float_as_uint(made.scales[t]), lane % kAtOnce * kLanesOfBlock);
      scale = lane / kAtOnce == t ? bits : scale;
    }
    const uint64_t row = args.slot.row + channel_of(begin + lane / kLanesOfBlock);
    const bool has_scale = lane < kBlocks && lane < left;
    const bool is_byte = args.form == ScaleForm::kUe8m0;
    const uint64_t of_scale =
        args.slot.scales + static_cast<uint64_t>(begin + lane) * (is_byte ? 1 : sizeof scale);
    slots.each(i, [&](int, std::byte* slot) {
#pragma unroll
      for (int t = 0; t < kTimes; ++t)
        if (lane / kLanesOfBlock + t * kAtOnce < left)
          store_vector(slot + row + t * kChannelsAtOnce, made.rows[t]);
      if (!has_scale) return;
      if (is_byte)
        slot[of_scale] = static_cast<std::byte>(scale >> 23);
      else
        *reinterpret_cast<uint32_t*>(slot + of_scale) = scale;
    });
  }

 private:
  static constexpr int kAtOnce = 32 / kLanesOfBlock;  // blocks
  static constexpr int kChannelsAtOnce = kAtOnce * kScaleBlock;
  static constexpr int kTimes = 4 / Type::kBytes;
  static constexpr int kBlocks = kTimes * kAtOnce;

  static __device__ __forceinline__ int blocks(const LlSendArgs& args) {
    return static_cast<int>(args.row_bytes / kScaleBlock);
  }
  static __device__ __forceinline__ uint64_t channel_of(int block) {
    return static_cast<uint64_t>(block * kScaleBlock +
                                 lane_of_thread() % kLanesOfBlock * kCastChannels);
  }

  uint4 in_[kTimes][Type::kBytes];
};

/// What a warp has of a batch, in turn: a token's piece, every kWarps-th of all.
class Units {
 public:
  __device__ __forceinline__ explicit Units(int pieces)
      : token(warp_of_thread() / pieces),
        piece(warp_of_thread() % pieces),
        pieces_(pieces),
        tokens_further_(kWarps / pieces),
        pieces_further_(kWarps % pieces) {}
  __device__ __forceinline__ Units next() const {
    Units units = *this;
    units.token += tokens_further_;
    units.piece += pieces_further_;
    if (units.piece < pieces_) return units;
    units.piece -= pieces_;
    ++units.token;
    return units;
  }
  __device__ __forceinline__ bool has_head() const { return piece == pieces_ - 1; }

  int token, piece;

 private:
  int pieces_, tokens_further_, pieces_further_;
};

/// All threads: rows of every expert to its rank, and what flags say, of numbers that are those of all
/// tokens.
__device__ void say_all(const LlSendArgs& args, const Phase& phase, const SendMemory& numbers) {
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  for (int e = static_cast<int>(threadIdx.x); e < args.num_experts; e += kThreads)
    phase.row_counts_at(e / num_local, args.team.rank, num_local)[e % num_local] = numbers.rows[e];
  if (static_cast<int>(threadIdx.x) >= n) return;
  const uint32_t copies = numbers.copies[threadIdx.x];
  phase.say(args.shape, copies, copies, args.num_tokens);
}

/// All threads: a share of the tokens, unless room does not come.
template <typename Row>
__device__ void push(const LlSendArgs& args, StartFacts* known, SendMemory* numbers) {
  const SignalsSeen acks = look_at_acks(args.team);
  const StartReading asked(args.team, nullptr, nullptr);
  const Share share = Share::of(args.num_tokens);
  const SendCounter numbering(args, numbers);
  const Slots slots{args, *numbers};
  const int pieces = Row::pieces(args);
  const SendCounter::Before before = numbering.load_before(share.begin);
  bool is_first = true;
  for (int begin = share.begin; is_first || begin < share.end; begin += kBatch) {
    const int count = min(kBatch, share.end - begin);
    Units at(pieces);
    Row row;
    if (at.token < count) row.load(args, begin + at.token, at.piece);
    const SendCounter::Ids ids = numbering.load(begin, count);
    if (is_first)
      numbering.clear();
    else
      numbering.forget_batch();
    __syncthreads();
    if (is_first) {
      if (count > 0) numbering.count(begin, before);
      asked.keep(known);
    }
    numbering.take(ids, begin, count);
    __syncthreads();
    const Phase phase = next_phase(args.team, *known);
    const bool has_room = !is_first || phase.has_room(acks);
    numbering.number(phase, count);
    if (__syncthreads_and(has_room) == 0) return;
    is_first = false;
    const bool is_end = begin + count == share.end, is_last = blockIdx.x == gridDim.x - 1;
    if (!is_end || is_last) {
      numbering.pass(count);
      __syncthreads();
    }
    if (is_end && is_last) say_all(args, phase, *numbers);  // it has counted all
    while (at.token < count) {
      const Units next = at.next();
      Row row_of_next;  // on its way while this one is cast and stored
      if (next.token < count) row_of_next.load(args, begin + next.token, next.piece);
      if (at.has_head()) put_head(slots, numbering, at.token, begin + at.token);
      row.store(slots, at.token, at.piece);
      row = row_of_next;
      at = next;
    }
    __syncthreads();
  }
}

template <typename Row>
__device__ void send(const LlSendArgs& args) {
  __shared__ StartFacts known;
  __shared__ SendMemory numbers;
  push<Row>(args, &known, &numbers);
  const Team& team = args.team;
  const Steps steps(team.state->sent, known.sent);
  if (!steps.arrive(0)) return;
  const Phase phase = next_phase(team, known);
  phase.tell();
  if (threadIdx.x != 0) return;
  *args.ticket = {phase.number(), known.call + 1};
  keep_numbers(team, phase.number(), known.call + 1);
  steps.settle(1);
}

// ---- fan out ----

/// Copies of all sources.
class Incoming {
 public:
  struct Copy {
    int source, number;
    const std::byte* slot;
  };

  __device__ Incoming(const LlFanOutArgs& args, const Phase& phase, const Arrived& arrived)
      : regions_(phase.region_of(0)),
        region_bytes_(args.team.region_bytes),
        slot_bytes_(args.slot.bytes),
        order_(lane_of_thread() < args.team.layout.num_ranks
                   ? static_cast<int>(arrived.rows[lane_of_thread()])
                   : 0) {}
  __device__ __forceinline__ int total() const { return order_.total(); }
  __device__ __forceinline__ const std::byte* slot(int source, int number) const {
    return regions_ + static_cast<uint64_t>(source) * region_bytes_ +
           static_cast<uint64_t>(number) * slot_bytes_;
  }
  /// By a warp.
  __device__ __forceinline__ Copy operator[](int copy) const {
    const CopiesInOrder::At at = order_[copy];
    return {at.source, at.number, slot(at.source, at.number)};
  }

 private:
  const std::byte* const regions_;
  const uint64_t region_bytes_, slot_bytes_;
  const CopiesInOrder order_;
};

/// From so many copies on, scales go by columns, behind a meeting of all blocks: fewer are stored sooner
/// word by word, each a request of its own.
inline constexpr int kManyCopies = 4096;

struct FanOutMemory {
  Arrived arrived;
  int32_t begins[kMostExperts];  // [L, N]: where rows of a source begin, in those of an expert
  int32_t counts[kMostExperts];  // [L]
};

/// How many rows experts get, of a thread's first expert on their way.
class RowCounts {
 public:
  __device__ RowCounts(const LlFanOutArgs& args, const Phase& phase)
      : args_(args),
        counts_(phase.row_counts_at(args.team.rank, 0, 0)),
        num_local_(args.num_experts / args.team.layout.num_ranks) {
    if (static_cast<int>(threadIdx.x) < num_local_)
      load(static_cast<int>(threadIdx.x), 0, first_rows_);
  }
  /// All threads: where rows begin; block 0 also tells the caller. Threads meet before the next step.
  __device__ void begin(FanOutMemory* memory) const {
    const int n = args_.team.layout.num_ranks;
    for (int e = static_cast<int>(threadIdx.x); e < num_local_; e += kThreads) {
      int32_t begin = 0;
      for (int first = 0; first < n; first += kSourcesInFlight) {
        int32_t rows[kSourcesInFlight];
        if (e >= kThreads || first > 0) {
          load(e, first, rows);
        } else {
#pragma unroll
          for (int i = 0; i < kSourcesInFlight; ++i) rows[i] = first_rows_[i];
        }
#pragma unroll
        for (int i = 0; i < kSourcesInFlight; ++i) {
          if (first + i >= n) continue;
          const int range = e * n + first + i;
          memory->begins[range] = begin;
          if (blockIdx.x == 0)
            args_.layout_range[range] = static_cast<int64_t>(begin) << 32 | rows[i];
          begin += rows[i];
        }
      }
      memory->counts[e] = begin;
      if (blockIdx.x == 0) tell(e, begin);
    }
  }

 private:
  static constexpr int kSourcesInFlight = 8;

  __device__ __forceinline__ void load(int e, int first, int32_t (&rows)[kSourcesInFlight]) const {
#pragma unroll
    for (int i = 0; i < kSourcesInFlight; ++i)
      rows[i] = first + i < args_.team.layout.num_ranks
                    ? seen(counts_ + (first + i) * num_local_ + e)
                    : 0;
  }
  __device__ void tell(int e, int32_t rows) const {
    const int most = args_.max_tokens * args_.team.layout.num_ranks;
    args_.count[e] = rows;
    if (args_.stats != nullptr) atomicAdd(args_.stats + e, rows);
    if (rows > most)
      refuse(args_.team.watch, MaskOfIds::kTopkIdx, static_cast<uint64_t>(most),
             static_cast<uint64_t>(rows), e);
  }

  const LlFanOutArgs& args_;
  const int32_t* const counts_;
  const int num_local_;
  int32_t first_rows_[kSourcesInFlight];
};

/// A piece of a copy, on its way to the rows that the copy's ids have: of its row; or, unless they go by
/// columns, of its scales, and with the first of those what is told of the row.
class FanOutPiece {
 public:
  __device__ FanOutPiece(const LlFanOutArgs& args, bool by_columns)
      : args_(args),
        row_(Cut::of(args.row_bytes)),
        scales_(Cut::of<1>(4 * static_cast<uint64_t>(args.scale_words))),
        by_columns_(by_columns),
        num_local_(static_cast<uint32_t>(args.num_experts / args.team.layout.num_ranks)),
        rows_per_expert_(args.max_tokens * args.team.layout.num_ranks) {}

  __device__ __forceinline__ int pieces() const {
    return row_.pieces + (by_columns_ ? 0 : max(scales_.pieces, 1));
  }
  __device__ __forceinline__ void load(const Incoming& in, int unit) {
    copy_ = in[unit / pieces()];
    piece_number_ = unit % pieces();
    const int k = lane_of_thread();
    word_ = k < args_.num_topk ? seen(reinterpret_cast<const int32_t*>(copy_.slot + Slot::kIds) + k)
                               : -1;
    const int of_scales = piece_number_ - row_.pieces;
    if (of_scales < 0) {
      piece_.load(copy_.slot + args_.slot.row, row_.begin(piece_number_), row_.end(piece_number_));
      if (has_table() && piece_number_ == 0) load_weights();
    } else {
      token_ = seen(reinterpret_cast<const uint32_t*>(copy_.slot));
      piece_.load(copy_.slot + args_.slot.scales, scales_.begin(of_scales), scales_.end(of_scales));
    }
  }
  __device__ __forceinline__ void store(const int32_t* begins) const {
    const int row = row_of_lane(begins);
    if (piece_number_ >= row_.pieces) return store_scales(row);
    // Where put_columns() finds it, and puts what belongs there.
    if (by_columns_ && piece_number_ == 0 && row >= 0) args_.slots[row] = copy_.number;
    if (has_table() && piece_number_ == 0) note(row);
    for (uint32_t left = __ballot_sync(~0U, row >= 0); left != 0; left &= left - 1)
      piece_.store(args_.x + static_cast<uint64_t>(row_of(row, left)) * args_.row_bytes);
  }

 private:
  __device__ __forceinline__ bool has_table() const { return args_.copies.counts != nullptr; }
  __device__ __forceinline__ void load_weights() {
    const int k = lane_of_thread();
    token_ = seen(reinterpret_cast<const uint32_t*>(copy_.slot));
    weight_ =
        k < args_.num_topk
            ? seen(reinterpret_cast<const float*>(copy_.slot + Slot::weights(args_.num_topk)) + k)
            : 0;
  }
  /// Which row came of the copy by its k-th choice, of lane k.
  __device__ __forceinline__ void note(int row) const {
    const int k = lane_of_thread();
    const int64_t at = static_cast<int64_t>(copy_.source) * args_.max_tokens + copy_.number;
    if (k == 0) args_.copies.tokens[at] = static_cast<int32_t>(token_);
    if (k >= args_.num_topk) return;
    args_.copies.places[at * args_.num_topk + k] = row;
    args_.copies.weights[at * args_.num_topk + k] = weight_;
  }
  static __device__ __forceinline__ int row_of(int row, uint32_t left) {
    return __shfl_sync(~0U, row, __ffs(static_cast<int>(left)) - 1);
  }
  /// Lane k: where the copy's k-th id has it go, or -1. What a peer says is looked at before it is
  /// used; a row too many was refused, and goes nowhere.
  __device__ __forceinline__ int row_of_lane(const int32_t* begins) const {
    if (word_ < 0) return -1;
    const auto word = static_cast<uint32_t>(word_);
    const auto id = static_cast<int>(word % num_local_);
    const int number = begins[id * args_.team.layout.num_ranks + copy_.source] +
                       static_cast<int>(word / num_local_);
    return number >= 0 && number < rows_per_expert_ ? id * rows_per_expert_ + number : -1;
  }
  /// Column-major: word w of a row lies at [w][row] of its expert.
  __device__ __forceinline__ void store_scales(int row) const {
    if (piece_number_ == row_.pieces && row >= 0) {
      args_.src_info[row] = static_cast<int32_t>(token_);
      args_.slots[row] =
          static_cast<int32_t>(token_ * static_cast<uint32_t>(args_.num_topk)) + lane_of_thread();
    }
    for (uint32_t left = __ballot_sync(~0U, row >= 0); left != 0; left &= left - 1) {
      const int to = row_of(row, left), expert = to / rows_per_expert_;
      uint32_t* const column = args_.scales +
                               static_cast<int64_t>(expert) * args_.scale_words * rows_per_expert_ +
                               to - static_cast<int64_t>(expert) * rows_per_expert_;
      piece_.each_word_of_first([&](uint32_t w, uint32_t scale) {
        if (w < static_cast<uint32_t>(args_.scale_words))
          column[static_cast<int64_t>(w) * rows_per_expert_] = scale;
      });
    }
  }

  const LlFanOutArgs& args_;
  const Cut row_, scales_;
  const bool by_columns_;
  const uint32_t num_local_;
  const int rows_per_expert_;
  Piece<> piece_;
  Incoming::Copy copy_{};
  int piece_number_ = 0;
  int32_t word_ = -1;
  uint32_t token_ = 0;
  float weight_ = 0;
};

/// By a warp, lane for lane: what is told of row `number` of an expert, and its scales, which so lie side
/// by side. The row's copy is where its slot will be.
__device__ void put_columns(const LlFanOutArgs& args, const Incoming& in, const int32_t* begins,
                            int expert, int number) {
  constexpr int kAtOnce = 8;
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  const int rows_per_expert = args.max_tokens * n, k = args.num_topk;
  int source = 0;
  for (int s = 1; s < n; ++s) source += begins[expert * n + s] <= number ? 1 : 0;
  const int32_t word = word_of(number - begins[expert * n + source], expert, num_local);
  const int64_t row = static_cast<int64_t>(expert) * rows_per_expert + number;
  const std::byte* const slot = in.slot(source, seen(args.slots + row));
  const auto* const head = reinterpret_cast<const int32_t*>(slot);
  int choice = 0;
  for (int first = 0; first < k; first += kAtOnce) {
    int32_t words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      words[i] = first + i < k ? head[Slot::kIds / 4 + first + i] : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) choice = words[i] == word ? first + i : choice;
  }
  args.src_info[row] = head[0];
  args.slots[row] = head[0] * k + choice;
  uint32_t* const column =
      args.scales + static_cast<int64_t>(expert) * args.scale_words * rows_per_expert + number;
  for (int first = 0; first < args.scale_words; first += 4 * kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 4 * i < args.scale_words)
        v[i] = load_vector(slot + args.slot.scales + 4 * static_cast<uint64_t>(first + 4 * i));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t each[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w)
        if (first + 4 * i + w < args.scale_words)
          column[static_cast<int64_t>(first + 4 * i + w) * rows_per_expert] = each[w];
    }
  }
}

/// All threads: in turn, 32 rows of an expert by each warp.
__device__ void put_all_columns(const LlFanOutArgs& args, const Incoming& in,
                                const FanOutMemory& memory) {
  const int rows_per_expert = args.max_tokens * args.team.layout.num_ranks;
  const int groups = (rows_per_expert + 31) / 32;
  const int units = groups * (args.num_experts / args.team.layout.num_ranks);
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  for (int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units; unit += step) {
    const int expert = unit / groups, number = unit % groups * 32 + lane_of_thread();
    if (number < min(memory.counts[expert], rows_per_expert))
      put_columns(args, in, memory.begins, expert, number);
  }
}

/// All threads of block 0, in place of what it tells the caller where rows have come: its wait was in vain.
/// What is enqueued behind this makes addresses of these numbers, and their memory is not initialised.
__device__ void say_nothing_came(const LlFanOutArgs& args) {
  const int n = args.team.layout.num_ranks, num_local = args.num_experts / n;
  for (int i = static_cast<int>(threadIdx.x); i < num_local * n; i += kThreads) {
    args.layout_range[i] = 0;
    if (i < num_local) args.count[i] = 0;
    if (i < n && args.copies.counts != nullptr) args.copies.counts[i] = 0;
  }
}

__device__ void fan_out(const LlFanOutArgs& args, const Phase& phase, const Incoming& in,
                        bool by_columns, FanOutMemory* memory) {
  const RowCounts counts(args, phase);
  FanOutPiece piece(args, by_columns);
  const int units = in.total() * piece.pieces();
  const auto step = static_cast<int>(gridDim.x) * kWarps;
  int unit = warp_of_thread() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (unit < units) piece.load(in, unit);
  counts.begin(memory);
  const auto source = static_cast<int>(threadIdx.x);
  if (args.copies.counts != nullptr && blockIdx.x == 0 && source < args.team.layout.num_ranks)
    args.copies.counts[source] = static_cast<int32_t>(memory->arrived.rows[source]);
  __syncthreads();
  while (unit < units) {
    piece.store(memory->begins);
    unit += step;
    if (unit < units) piece.load(in, unit);
  }
}

}  // namespace
}  // namespace braid::moe::gpu

BRAID_MOE_KERNEL(braid_moe_ll_send, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::PlainPiece>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_bf16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Bf16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp16, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Fp16>>(args);
}
BRAID_MOE_KERNEL(braid_moe_ll_send_fp32, LlSendArgs) {
  braid::moe::gpu::send<braid::moe::gpu::CastPiece<braid::moe::gpu::Fp32>>(args);
}

BRAID_MOE_KERNEL(braid_moe_ll_fan_out, LlFanOutArgs) {
  using namespace braid::moe::gpu;
  __shared__ StartFacts known;
  __shared__ FanOutMemory memory;
  const SignalsSeen flags = look_at_flags(args.team);
  StartReading(args.team, args.ticket, nullptr).keep(&known);
  __syncthreads();
  const Steps steps(args.team.state->taken, known.taken);
  const Phase phase = phase_of(args.team, known.ticket);
  const bool has_come = phase.await_flags(
      args.shape, &memory.arrived, static_cast<uint32_t>(args.max_tokens), flags, args.wait_ns);
  bool by_columns = false;
  if (has_come) {
    const Incoming in(args, phase, memory.arrived);
    by_columns = args.scale_words > 0 && in.total() >= kManyCopies;
    fan_out(args, phase, in, by_columns, &memory);
    if (by_columns) {
      steps.arrive(0);
      if (steps.await_all(args.team, 0)) put_all_columns(args, in, memory);
    }
  } else if (blockIdx.x == 0) {
    say_nothing_came(args);
  }
  const int last_step = by_columns ? 1 : 0;
  if (!steps.arrive(last_step)) return;
  phase.release();
  if (threadIdx.x == 0) steps.settle(last_step + 1);
}
