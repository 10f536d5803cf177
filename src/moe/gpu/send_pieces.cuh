// Pieces of tokens' rows on their way into slots, in a low-latency send: a warp asks for a piece and, later, casts
// it once and stores it into the slots of all ranks that the token goes to.
#pragma once

#include "moe/gpu/cast.cuh"
#include "moe/gpu/numbers.cuh"

namespace braid::moe::gpu {

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
__device__ inline void put_head(const Slots& slots, const SendCounter& numbering, int i,
                                int token) {
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

}  // namespace braid::moe::gpu
