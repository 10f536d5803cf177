// libibverbs.so.1, opened at run time, so that one binary runs with and without it. Set-up calls
// are functions of the library; posting and polling are calls through tables inside its objects,
// which rdma-core's header inlines.
#pragma once

#include <infiniband/verbs.h>

#include <utility>

#include "base/status.h"

namespace braid::sys::verbs {

struct Library {
  decltype(&ibv_get_device_list) get_device_list = nullptr;
  decltype(&ibv_free_device_list) free_device_list = nullptr;
  decltype(&ibv_get_device_name) get_device_name = nullptr;
  decltype(&ibv_open_device) open_device = nullptr;
  decltype(&ibv_close_device) close_device = nullptr;
  decltype(&ibv_query_device) query_device = nullptr;
  // The header's ibv_query_port would have to be linked. The function of that name fills all fields
  // but the last, port_cap_flags2.
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*) = nullptr;
  decltype(&_ibv_query_gid_ex) query_gid_ex = nullptr;
  decltype(&ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  decltype(&ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  // null before rdma-core 34
  decltype(&ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&ibv_create_cq) create_cq = nullptr;
  decltype(&ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&ibv_create_qp) create_qp = nullptr;
  decltype(&ibv_modify_qp) modify_qp = nullptr;
  decltype(&ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&ibv_get_async_event) get_async_event = nullptr;
  decltype(&ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&ibv_event_type_str) event_type_str = nullptr;
};

/// The library, opened once and never closed; unavailable when it is not there or lacks a function
/// (rdma-core 30 of 2020 has all that are needed).
Result<const Library*> open_library();

/// An object of the library with the function that ends it: Owned<&Library::close_device, ...>.
/// What that function answers is not looked at: there is nobody left to tell.
template <auto kEnd, typename Object>
class Owned {
 public:
  Owned() = default;
  Owned(const Library& library, Object* object) : library_(&library), object_(object) {}
  Owned(Owned&& other) noexcept
      : library_(other.library_), object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) (library_->*kEnd)(object_);
  }
  Object* get() const { return object_; }
  Object* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  const Library* library_ = nullptr;
  Object* object_ = nullptr;
};

using Context = Owned<&Library::close_device, ibv_context>;
using ProtectionDomain = Owned<&Library::dealloc_pd, ibv_pd>;
using MemoryRegion = Owned<&Library::dereg_mr, ibv_mr>;
using CompletionQueue = Owned<&Library::destroy_cq, ibv_cq>;

}  // namespace braid::sys::verbs
