#include "comm/device/fault_watch.h"

#include <sys/mman.h>

#include <chrono>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/device/fault_words.h"
#include "sys/host/thread.h"

namespace braid::comm {

namespace {

constexpr size_t kHostPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<FaultWatch>> FaultWatch::create(group::Group& group, sys::Cuda& cuda,
                                                       int ordinal) {
  std::unique_ptr<FaultWatch> watch(new FaultWatch(group, cuda, ordinal));
  BRAID_RETURN_IF_ERROR(watch->make_page());
  BRAID_ASSIGN_OR_RETURN(watch->thread_, sys::start_thread("watch of a gpu's faults",
                                                           [raw = watch.get()] { raw->run(); }));
  return watch;
}

Status FaultWatch::make_page() {
  void* memory =
      mmap(nullptr, kHostPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return exhausted("gpu fault page: {} bytes", kHostPageBytes);
  page_ = new (memory) Page{};
  BRAID_ASSIGN_OR_RETURN(page_on_device_, cuda_.register_host(memory, kHostPageBytes));
  return {};
}

FaultWatch::~FaultWatch() {
  stop();
  if (page_on_device_ != 0) (void)cuda_.unregister_host(page_);
  if (page_ != nullptr) munmap(page_, kHostPageBytes);
}

void FaultWatch::give_page_to(nvlink::Team& team) const {
  team.fault = sys::pointer_to<device::Fault>(page_on_device_ + offsetof(Page, fault));
  team.must_abort = sys::pointer_to<uint32_t>(page_on_device_ + offsetof(Page, must_abort));
}

void FaultWatch::start(std::function<Status()> links) {
  links_ = std::move(links);
  may_look_ = true;
}

void FaultWatch::stop() {
  must_stop_ = true;
  if (thread_.joinable()) thread_.join();
}

// The watch is through before: what it finds then is not news for the other ranks.
void FaultWatch::end_waits() {
  stop();
  std::atomic_ref(page_->must_abort).store(1);
}

void FaultWatch::before_waits_end(std::function<void()> prepare) {
  const std::lock_guard lock(preparing_);
  prepare_ = std::move(prepare);
}

Status FaultWatch::status() const {
  {
    const std::lock_guard lock(mutex_);
    if (!fault_.ok()) return fault_;
  }
  return noted();
}

// A kernel ends when its note is whole. Of one that dies amid it the driver tells.
Status FaultWatch::noted() const {
  constexpr int64_t kWritingNs = 1'000'000;
  const std::atomic_ref code(page_->fault.code);
  if (code.load(std::memory_order_acquire) == 0) return {};
  const Deadline patience = Deadline::after_ns(kWritingNs);
  while (code.load(std::memory_order_acquire) != 2 && !patience.passed()) std::this_thread::yield();
  return code.load(std::memory_order_acquire) == 2 ? in_words(page_->fault) : Status();
}

Status FaultWatch::look() {
  const Status fault = noted();
  if (!fault.ok()) return fault;
  if (group_.broken()) return group_.fate();
  return look_at_links();
}

// A dead process breaks its connections before the group tells of it, which is the better reason.
Status FaultWatch::look_at_links() {
  constexpr int64_t kNewsFirstNs = 100'000'000;
  const Status found = links_ ? links_() : Status();
  if (found.ok()) return {};
  const int64_t this_ns = now_ns();
  int64_t failed_ns = 0;  // the watch and the caller may both be the first to see it
  if (link_failed_ns_.compare_exchange_strong(failed_ns, this_ns)) failed_ns = this_ns;
  return this_ns - failed_ns >= kNewsFirstNs ? found : Status();
}

// In this order: see the head.
void FaultWatch::tell(const Status& found) {
  {
    const std::lock_guard lock(mutex_);
    fault_ = found;
  }
  group_.report(found);
  {
    const std::lock_guard lock(preparing_);
    std::optional<sys::LimitedWait> preparing;
    if (prepare_)
      preparing.emplace("before waits end", kFreeDriver, std::exchange(prepare_, nullptr));
    std::atomic_ref(page_->must_abort).store(1);  // which the driver's calls in there may wait for
  }
  log::error("comm", "gpu {}: {}", ordinal_, found.message());
}

// A page of host memory and a flag, a thousand times a second: far below a percent of a core.
void FaultWatch::run() {
  constexpr auto kLookEvery = std::chrono::milliseconds(1);
  log::set_rank(group_.rank());
  for (; !must_stop_; std::this_thread::sleep_for(kLookEvery)) {
    if (!may_look_) continue;
    const Status found = look();
    if (!found.ok()) return tell(found);
  }
}

}  // namespace braid::comm
