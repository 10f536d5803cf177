#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "coll/messages/exchange.h"
#include "coll/messages/on_gpu.h"

namespace braid::coll::device {

namespace {

uint64_t bytes_of(const Message& message) { return message.count * dtype_bytes(message.dtype); }

Status await_stream(sys::Cuda& cuda, sys::Stream stream, int64_t timeout_ns) {
  constexpr auto kPause = std::chrono::microseconds(20);
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  while (true) {
    BRAID_ASSIGN_OR_RETURN(const bool is_done, cuda.is_done(stream));
    if (is_done) return {};
    if (deadline.passed())
      return timeout("the stream of a message of GPU memory has more work than the deadline");
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Result<StagedMessage> StagedMessage::make(const comm::Comm& comm, sys::Cuda& cuda, int gpu,
                                          const Message& message, sys::Stream stream) {
  BRAID_RETURN_IF_ERROR(check_message(comm, message));
  StagedMessage staged;
  staged.cuda_ = &cuda;
  staged.gpu_ = gpu;
  staged.timeout_ns_ = comm.config().duration_ns("BRAID_TIMEOUT");
  staged.stream_ = stream;
  staged.on_gpu_ = staged.on_host_ = message;
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(cuda, gpu));
  BRAID_ASSIGN_OR_RETURN(const sys::CaptureState capture, cuda.capture_state(stream));
  if (capture != sys::CaptureState::kNone)
    return unsupported("a message of GPU memory waits for its peer and cannot be captured");
  return staged;
}

Status StagedMessage::stage() {
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(*cuda_, gpu_));
  BRAID_RETURN_IF_ERROR(pin());
  return on_gpu_.way == Message::Way::kSend ? copy() : Status();
}

void StagedMessage::Free::operator()(void* memory) const {
  const auto scope = sys::CurrentDevice::use(*cuda, gpu);
  (void)cuda->unregister_host(memory);
}

Status StagedMessage::pin() {
  constexpr size_t kPage = 4096;
  const size_t whole_pages = (bytes_of(on_gpu_) + kPage - 1) / kPage * kPage;
  if (whole_pages == 0) return {};
  BRAID_ASSIGN_OR_RETURN(memory_, sys::Pages::map("no host memory for a message", whole_pages));
  BRAID_RETURN_IF_ERROR(cuda_->register_host(memory_.data(), whole_pages).status());
  pinned_ = {memory_.data(), Free{cuda_, gpu_}};
  on_host_.data = memory_.data();
  return {};
}

Status StagedMessage::copy() {
  if (memory_.data() == nullptr) return {};
  const auto memory = reinterpret_cast<sys::DevicePtr>(on_gpu_.data);
  const auto staging = reinterpret_cast<sys::DevicePtr>(memory_.data());
  const bool is_send = on_gpu_.way == Message::Way::kSend;
  Status status = cuda_->copy(is_send ? staging : memory, is_send ? memory : staging,
                              bytes_of(on_gpu_), stream_);
  if (status.ok()) status = await_stream(*cuda_, stream_, timeout_ns_);
  // The copy may be under way still, and write or read what would be freed: the memory stays.
  if (status.ok()) return status;
  (void)pinned_.release();
  memory_.leave();
  return status;
}

Status StagedMessage::finish() {
  if (on_gpu_.way == Message::Way::kSend) return {};
  BRAID_ASSIGN_OR_RETURN(const auto scope, sys::CurrentDevice::use(*cuda_, gpu_));
  return copy();
}

Status exchange_one(comm::Comm& comm, sys::Cuda& cuda, int gpu, const Message& message,
                    sys::Stream stream) {
  BRAID_ASSIGN_OR_RETURN(StagedMessage staged,
                         StagedMessage::make(comm, cuda, gpu, message, stream));
  const Status ready = staged.stage();
  if (!ready.ok()) return Exchange(comm).give_up(message, ready);
  BRAID_RETURN_IF_ERROR(exchange(comm, {&staged.on_host(), 1}));
  return staged.finish();
}

}  // namespace braid::coll::device
