// Of braid._braid.moe, in host memory: a buffer, and the memory that its calls use.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "buffer.h"
#include "comm.h"
#include "errors.h"
#include "moe/buffer.h"
#include "unlocked.h"

namespace braid::python {

/// Memory that a call uses, borrowed and checked, by the names that the caller knows.
class Lent {
 public:
  explicit Lent(const char* function) : function_(function) {}

  std::byte* take(nanobind::handle object, const char* name, uint64_t bytes, Access access) {
    held_.push_back(Buffer::borrow(object, {function_, name}, access));
    const Buffer& buffer = held_.back();
    if (buffer.on_gpu())
      raise_if_failed(unsupported("{}: argument {}: asked for host memory, found GPU {}", function_,
                                  name, buffer.gpu()));
    if (buffer.bytes() != bytes)
      raise_if_failed(invalid_argument("{}: argument {}: asked for {} bytes, found {}", function_,
                                       name, bytes, buffer.bytes()));
    return static_cast<std::byte*>(buffer.data());
  }
  template <typename T>
  const T* read(nanobind::handle object, const char* name, uint64_t count) {
    if (object.is_none()) return nullptr;
    return reinterpret_cast<const T*>(take(object, name, count * sizeof(T), Access::kRead));
  }
  template <typename T>
  T* write(nanobind::handle object, const char* name, uint64_t count) {
    if (object.is_none()) return nullptr;
    return reinterpret_cast<T*>(take(object, name, count * sizeof(T), Access::kWrite));
  }

 private:
  const char* function_;
  std::vector<Buffer> held_;
};

/// A product that no caller's numbers make wrap.
uint64_t times(std::initializer_list<int64_t> factors);

class PyMoeBuffer {
 public:
  PyMoeBuffer(PyComm& comm, uint64_t half_bytes, bool can_shrink) {
    run_unlocked([&] {
      auto made = moe::Buffer::create(comm.get(), {half_bytes, can_shrink});
      if (made.ok()) buffer_ = std::move(made).value();
      return made.status();
    });
  }
  // In a fork there is no proxy's thread to wait for, and links are the parent's to end.
  ~PyMoeBuffer() {
    if (is_forked()) (void)buffer_.release();
  }
  PyMoeBuffer(const PyMoeBuffer&) = delete;
  PyMoeBuffer& operator=(const PyMoeBuffer&) = delete;

  moe::Buffer& get() {
    if (!buffer_) raise_if_failed(invalid_argument("moe buffer: it was destroyed"));
    if (is_forked())
      raise_if_failed(invalid_argument(
          "moe buffer of rank {} was made by process {} and cannot be used in its fork {}",
          buffer_->rank(), process_, getpid()));
    return *buffer_;
  }
  /// call(buffer) without the GIL; it must not be closed meanwhile, by another thread or by what
  /// Python does for a signal while the call waits.
  template <typename Call>
  void run(Call&& call) {
    moe::Buffer& buffer = get();
    const UnderWay under_way(*this);
    run_unlocked([&] { return call(buffer); });
  }
  void close() {
    if (is_forked()) {
      (void)buffer_.release();
      return;
    }
    if (num_under_way_ > 0)
      raise_if_failed(invalid_argument("destroy on rank {}: a call of the buffer is under way",
                                       buffer_->rank()));
    std::unique_ptr<moe::Buffer> ended = std::move(buffer_);
    const Unlocked released;
    ended.reset();
  }
  bool is_closed() const { return buffer_ == nullptr; }
  bool is_in_call() const { return num_under_way_ > 0; }

 private:
  class UnderWay {
   public:
    explicit UnderWay(PyMoeBuffer& buffer) : buffer_(buffer) { ++buffer_.num_under_way_; }
    ~UnderWay() { --buffer_.num_under_way_; }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    PyMoeBuffer& buffer_;
  };
  /// A fork has the windows, too, and they are memory of both.
  bool is_forked() const { return getpid() != process_; }

  const pid_t process_ = getpid();
  std::unique_ptr<moe::Buffer> buffer_;
  int num_under_way_ = 0;  // by who holds the GIL
};

void register_low_latency(nanobind::module_& inner, nanobind::class_<PyMoeBuffer>& type);
void register_normal(nanobind::module_& inner, nanobind::class_<PyMoeBuffer>& type);

}  // namespace braid::python
