// Buffer on a GPU: from arguments to launches. What moe/buffer.h does between processes, enqueued on
// the caller's streams: calls have the same arguments, whose pointers are device memory here and are
// not followed, and the same results, byte for byte.
//
// Every call is collective in the order of the comm's calls, returns when its kernel is enqueued, and
// may be captured in a graph; begin() with the host's wait for sizes may not. A graph counts on as
// it is replayed.
//
// What one rank can see on the host is answered at once: invalid_argument, nothing was enqueued. What
// shows later (an id that is none, ranks that mean different calls, a wait past its deadline) ends
// the comm: all ranks get it from their next call.
//
// Threads: as comm::Device; calls are given the Device of the comm that the buffer was made with.
#pragma once

#include <functional>
#include <memory>

#include "moe/arguments.h"
#include "moe/gpu/entries.h"
#include "moe/gpu/memory.h"

namespace braid::moe::gpu {

/// Of one kernel.
struct Launch {
  sys::Stream stream;
  int num_blocks = 0;  // at most; 0: as many as have a place and something to do
};

/// What the layout of a dispatch is counted into: [N], [E], [T, N].
struct LayoutCounts {
  int32_t* per_rank = nullptr;
  int32_t* per_expert = nullptr;
  bool* is_in_rank = nullptr;
};

class Buffer {
 public:
  /// Collective: takes and shares windows of two halves, and loads all kernels. Not in a capture.
  static Result<std::unique_ptr<Buffer>> create(comm::Device& device, uint64_t half_bytes);

  const WindowLayout& layout() const { return memory_->team().layout; }
  int num_sms() const { return memory_->num_sms(); }
  /// Whether a dispatch was begun and not finished.
  bool is_begun() const { return is_begun_; }

  /// Of this rank alone.
  Status count(comm::Device& device, const int64_t* ids, int num_tokens, int num_topk,
               int num_experts, const LayoutCounts& out, const Launch& launch);

  /// The send halves. `ticket`: 16 bytes of device memory, which the receive half and the combine
  /// of the result need. Answers the send's number, for the receive half; refused while the result
  /// two sends before is not received.
  Result<uint64_t> send(comm::Device& device, const LowLatencyDispatch& call, Ticket* ticket,
                        const Launch& launch);
  Result<uint64_t> send(comm::Device& device, const LowLatencyCombine& call, const Ticket* of,
                        Ticket* ticket, const Launch& launch);
  /// The receive halves: once for each send. `stats` [L], rows per expert, added to; or null.
  Status receive(comm::Device& device, uint64_t number, const LowLatencyDispatch& call,
                 const LowLatencyRows& rows, int32_t* stats, const Ticket* ticket,
                 const Launch& launch);
  Status receive(comm::Device& device, uint64_t number, const LowLatencyCombine& call,
                 std::byte* out, int64_t* wait_ns, const Ticket* of, const Ticket* ticket,
                 const Launch& launch);

  /// Both halves at once, as one call of the comm: the same kernels, and nothing stays to be received.
  Status run(comm::Device& device, const LowLatencyDispatch& call, const LowLatencyRows& rows,
             int32_t* stats, Ticket* ticket, const Launch& launch);
  Status run(comm::Device& device, const LowLatencyCombine& call, std::byte* out, int64_t* wait_ns,
             const Ticket* of, Ticket* ticket, const Launch& launch);

  /// A dispatch in two steps. `incoming`: incoming_words() of device memory, which finish() and the
  /// combine need; with `tells_host` await_incoming() reads it. finish() must follow.
  Status begin(comm::Device& device, const Dispatch& call, const Ticket* of, Ticket* ticket,
               int32_t* incoming, bool tells_host, const Launch& launch);
  /// Behind begin() with `tells_host`, and once: as finish(), before it is known what comes, so that the
  /// GPU need not wait for the host. Does all of it or, where rows.num_rows are too few, nothing:
  /// is_begun() says which, behind await_incoming().
  Status try_finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                    const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch);
  /// Waits for what begin() was to tell. Errors: what the kernel met, `interrupt`'s, timeout.
  Result<Incoming> await_incoming(comm::Device& device, const Dispatch& call,
                                  const std::function<Status()>& interrupt);
  Status finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch);
  /// Both steps at once, as one call of the comm, for who knows how much room there must be. Where it
  /// fails behind the first one, abandon() is as after begin().
  Status run(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
             const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch);
  /// In place of finish(), for who has no room for what comes: the other rounds leave, and what comes
  /// is given back unread, so that the others go on and this rank's next call is as any. Nothing was
  /// begun: ok. Not between try_finish() and await_incoming(), when it may be over already.
  Status abandon(comm::Device& device, const Dispatch& call, const Ticket* of, Ticket* ticket,
                 int32_t* incoming, const Launch& launch);
  /// call.rows_of and call.most_tokens are those that `incoming` has.
  Status combine(comm::Device& device, const Combine& call, const int32_t* incoming,
                 const Ticket* of, const Launch& launch);

  /// No call may follow; what is under way goes on. Of this rank alone.
  void close(comm::Device& device) { memory_->forget(device); }

 private:
  explicit Buffer(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}
  int size() const { return layout().num_ranks; }
  uint32_t blocks(const comm::Device& device, const Launch& launch, uint64_t bytes) const;
  Status check_half() const;
  template <typename Call>
  Status check_send(const Call& call) const;
  Status check_received(uint64_t number) const;
  Status check_nothing_is_open() const;
  Status check_begin(const Dispatch& call) const;
  /// Until the last begin() with `tells_host` has told; ok where it has, or there was none.
  Status await_word(comm::Device& device, const std::function<Status()>& interrupt);
  /// A send's number, when its kernel is enqueued.
  uint64_t open_half();
  Status in_rank(const char* call, const Status& status) const;
  DispatchArgs arguments(const Dispatch& call, const Ticket* of, Ticket* ticket,
                         int32_t* incoming) const;
  /// What both ways of a return are told: LlReturnArgs, or LlRankReturnArgs.
  template <typename Args>
  Args return_args(const LowLatencyCombine& call, const Ticket* of, Ticket* ticket) const;
  /// Kernels of a call; `launch_all` launches them, behind the comm's call before.
  template <typename LaunchAll>
  Status enqueue(comm::Device& device, const Launch& launch, const LaunchAll& launch_all);
  template <typename Args>
  Status start(comm::Device& device, const Result<sys::Kernel>& kernel, const Args& args,
               const Launch& launch, uint64_t bytes = kMuch);
  /// Of kBegin and kFinish, which move rows in bulk where the GPU can: `args.stage_bytes` is set here.
  Status start_in_bulk(comm::Device& device, Entry entry, DispatchArgs args, const Launch& launch);
  Status start_send(comm::Device& device, const LowLatencyDispatch& call, Ticket* ticket,
                    const Launch& launch);
  Status start_fan_out(comm::Device& device, const LowLatencyDispatch& call,
                       const LowLatencyRows& rows, int32_t* stats, const Ticket* ticket,
                       const Launch& launch);
  Status start_return(comm::Device& device, const LowLatencyCombine& call, const Ticket* of,
                      Ticket* ticket, const Launch& launch);
  Status start_sum(comm::Device& device, const LowLatencyCombine& call, std::byte* out,
                   int64_t* wait_ns, const Ticket* of, const Ticket* ticket, const Launch& launch);
  Status start_begin(comm::Device& device, const Dispatch& call, const Ticket* of, Ticket* ticket,
                     int32_t* incoming, bool tells_host, const Launch& launch);
  Status start_finish(comm::Device& device, const Dispatch& call, const DispatchedRows& rows,
                      const Ticket* of, Ticket* ticket, int32_t* incoming, const Launch& launch,
                      bool is_trial = false);

  static constexpr int32_t kNotTried = -1;
  static constexpr uint64_t kMuch = ~uint64_t{0};

  const std::unique_ptr<Memory> memory_;
  uint64_t num_sent_ = 0;  // low latency
  bool is_open_[kHalves] = {false, false};
  bool is_begun_ = false;
  bool is_word_due_ = false;        // the host's, of what comes
  int32_t tried_rows_ = kNotTried;  // of the dispatch that is begun
};

}  // namespace braid::moe::gpu
