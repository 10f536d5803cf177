#include "sys/verbs/library.h"

#include <dlfcn.h>

namespace braid::sys::verbs {
namespace {

// Without a version dlsym answers the newest one, which is what the header describes.
template <typename F>
bool look_up(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  return out != nullptr;
}

bool look_up_devices(void* at, Library& l) {
  return look_up(at, "ibv_get_device_list", l.get_device_list) &&
         look_up(at, "ibv_free_device_list", l.free_device_list) &&
         look_up(at, "ibv_get_device_name", l.get_device_name) &&
         look_up(at, "ibv_open_device", l.open_device) &&
         look_up(at, "ibv_close_device", l.close_device) &&
         look_up(at, "ibv_query_device", l.query_device) &&
         look_up(at, "ibv_query_port", l.query_port) &&
         look_up(at, "_ibv_query_gid_ex", l.query_gid_ex) &&
         look_up(at, "ibv_get_async_event", l.get_async_event) &&
         look_up(at, "ibv_ack_async_event", l.ack_async_event) &&
         look_up(at, "ibv_wc_status_str", l.wc_status_str) &&
         look_up(at, "ibv_event_type_str", l.event_type_str);
}

bool look_up_objects(void* at, Library& l) {
  look_up(at, "ibv_reg_dmabuf_mr", l.reg_dmabuf_mr);
  return look_up(at, "ibv_alloc_pd", l.alloc_pd) && look_up(at, "ibv_dealloc_pd", l.dealloc_pd) &&
         look_up(at, "ibv_reg_mr_iova2", l.reg_mr_iova2) &&
         look_up(at, "ibv_dereg_mr", l.dereg_mr) && look_up(at, "ibv_create_cq", l.create_cq) &&
         look_up(at, "ibv_destroy_cq", l.destroy_cq) && look_up(at, "ibv_create_qp", l.create_qp) &&
         look_up(at, "ibv_modify_qp", l.modify_qp) && look_up(at, "ibv_destroy_qp", l.destroy_qp);
}

Result<const Library*> load() {
  void* at = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  // NOLINTBEGIN(concurrency-mt-unsafe): glibc keeps dlerror()'s text per thread
  if (at == nullptr) return unavailable("libibverbs.so.1 cannot be opened: {}", dlerror());
  auto* library = new Library;  // lives as long as the process: its devices may
  if (!look_up_devices(at, *library) || !look_up_objects(at, *library)) {
    delete library;
    return unavailable("libibverbs.so.1 lacks a function: {}", dlerror());
  }
  // NOLINTEND(concurrency-mt-unsafe)
  return library;
}

}  // namespace

Result<const Library*> open_library() {
  static const Result<const Library*> kLibrary = load();
  return kLibrary;
}

}  // namespace braid::sys::verbs
