#include "comm/device/fault_watch.h"

#include <sys/mman.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/device/trouble.h"

namespace braid::comm {

namespace {

constexpr size_t kHostPageBytes = 4096;

}  // namespace

Result<std::unique_ptr<FaultWatch>> FaultWatch::create(group::Group& group, sys::Cuda& cuda,
                                                       int ordinal) {
  std::unique_ptr<FaultWatch> watch(new FaultWatch(group, cuda, ordinal));
  BRAID_RETURN_IF_ERROR(watch->make_page());
  return watch;
}

Status FaultWatch::make_page() {
  void* memory =
      mmap(nullptr, kHostPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
  team.trouble = sys::pointer_to<nvlink::Trouble>(page_on_device_ + offsetof(Page, fault));
  team.must_abort = sys::pointer_to<uint32_t>(page_on_device_ + offsetof(Page, must_abort));
}

void FaultWatch::start(std::function<Status()> links) {
  links_ = std::move(links);
  thread_ = std::thread([this] { run(); });
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

Status FaultWatch::status() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

Status FaultWatch::look() {
  const auto code = std::atomic_ref(page_->fault.code).load(std::memory_order_acquire);
  if (code == 2) return in_words(page_->fault);
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

// A page of host memory and a flag, a thousand times a second: far below a percent of a core.
void FaultWatch::run() {
  constexpr auto kLookEvery = std::chrono::milliseconds(1);
  log::set_rank(group_.rank());
  for (; !must_stop_; std::this_thread::sleep_for(kLookEvery)) {
    Status found = look();
    if (found.ok()) continue;
    std::atomic_ref(page_->must_abort).store(1);
    log::error("comm", "gpu {}: {}", ordinal_, found.message());
    group_.report(found);
    const std::lock_guard lock(mutex_);
    fault_ = std::move(found);
    return;
  }
}

}  // namespace braid::comm
