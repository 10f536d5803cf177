#include "transport/nvlink/lent_memory.h"

#include <map>
#include <mutex>

#include "sys/cuda/owned.h"

namespace braid::nvlink {

namespace {

struct Lent;

/// What is lent now, by address: addresses of all GPUs of a process differ. Never destroyed:
/// a comm may be closed later than static objects are.
struct Book {
  std::mutex mutex;
  std::map<sys::DevicePtr, std::weak_ptr<const Lent>> entries;
};
Book& book() {
  static Book* const the = new Book;
  return *the;
}

struct Lent {
  Lent(sys::Cuda& of, int on, sys::DevicePtr at) : cuda(of), device(on), memory(at) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    {
      // Before its address can be another's.
      const std::lock_guard lock(book().mutex);
      book().entries.erase(memory);
    }
    const auto scope = sys::CurrentDevice::use(cuda, device);
    (void)cuda.free(memory);
  }

  sys::Cuda& cuda;
  const int device;
  const sys::DevicePtr memory;
};

}  // namespace

Hold lend(sys::Cuda& cuda, int device, sys::DevicePtr memory) {
  auto lent = std::make_shared<const Lent>(cuda, device, memory);
  const std::lock_guard lock(book().mutex);
  book().entries[memory] = lent;
  return lent;
}

Hold borrow(sys::DevicePtr memory) {
  const std::lock_guard lock(book().mutex);
  const auto found = book().entries.find(memory);
  return found == book().entries.end() ? nullptr : found->second.lock();
}

}  // namespace braid::nvlink
