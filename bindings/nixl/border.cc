#include "border.h"

#include <utility>

#include "base/log.h"

namespace braid::nixl {

void log_thrown(const char* function, const char* what) noexcept {
  try {
    log::error("nixl", "{}: {}", function, what);
  } catch (...) {  // there is no memory to say so
  }
}

namespace {

class Border final : public Backend {
 public:
  Border(const Birth& birth, std::unique_ptr<Backend> inner)
      : Backend(birth), inner_(std::move(inner)) {}

  bool supports_remote() const override { return inner_->supports_remote(); }
  bool supports_local() const override { return inner_->supports_local(); }
  bool supports_notif() const override { return inner_->supports_notif(); }
  MemoryKinds get_supported_mems() const override {
    return guarded("get_supported_mems", {}, [&] { return inner_->get_supported_mems(); });
  }
  Answer register_mem(const PlaceWithText& place, const MemoryKind& kind, Memory*& out) override {
    return answer("register_mem", [&] { return inner_->register_mem(place, kind, out); });
  }
  Answer deregister_mem(Memory* memory) override {
    return answer("deregister_mem", [&] { return inner_->deregister_mem(memory); });
  }
  Answer connect(const std::string& agent) override {
    return answer("connect", [&] { return inner_->connect(agent); });
  }
  Answer disconnect(const std::string& agent) override {
    return answer("disconnect", [&] { return inner_->disconnect(agent); });
  }
  Answer unload_md(Memory* memory) override {
    return answer("unload_md", [&] { return inner_->unload_md(memory); });
  }
  Answer prep_xfer(const Operation& operation, const TransferPlaces& local,
                   const TransferPlaces& remote, const std::string& agent, Work*& work,
                   const TransferWishes* wishes) const override {
    return answer("prep_xfer",
                  [&] { return inner_->prep_xfer(operation, local, remote, agent, work, wishes); });
  }
  Answer post_xfer(const Operation& operation, const TransferPlaces& local,
                   const TransferPlaces& remote, const std::string& agent, Work*& work,
                   const TransferWishes* wishes) const override {
    return answer("post_xfer",
                  [&] { return inner_->post_xfer(operation, local, remote, agent, work, wishes); });
  }
  Answer check_xfer(Work* work) const override {
    return answer("check_xfer", [&] { return inner_->check_xfer(work); });
  }
  Answer release_req_h(Work* work) const override {
    return answer("release_req_h", [&] { return inner_->release_req_h(work); });
  }
  Answer get_public_data(const Memory* memory, std::string& out) const override {
    return answer("get_public_data", [&] { return inner_->get_public_data(memory, out); });
  }
  Answer get_conn_info(std::string& out) const override {
    return answer("get_conn_info", [&] { return inner_->get_conn_info(out); });
  }
  Answer load_remote_conn_info(const std::string& agent, const std::string& info) override {
    return answer("load_remote_conn_info",
                  [&] { return inner_->load_remote_conn_info(agent, info); });
  }
  Answer load_remote_md(const PlaceWithText& place, const MemoryKind& kind,
                        const std::string& agent, Memory*& out) override {
    return answer("load_remote_md",
                  [&] { return inner_->load_remote_md(place, kind, agent, out); });
  }
  Answer load_local_md(Memory* memory, Memory*& out) override {
    return answer("load_local_md", [&] { return inner_->load_local_md(memory, out); });
  }
  Answer get_notifs(Notifications& out) override {
    return answer("get_notifs", [&] { return inner_->get_notifs(out); });
  }
  Answer gen_notif(const std::string& agent, const std::string& message) const override {
    return answer("gen_notif", [&] { return inner_->gen_notif(agent, message); });
  }

 private:
  template <typename Body>
  static Answer answer(const char* function, const Body& body) noexcept {
    return guarded(function, Answer::kFailed, body);
  }

  const std::unique_ptr<Backend> inner_;
};

}  // namespace

std::unique_ptr<Backend> behind_border(const Birth& birth, std::unique_ptr<Backend> inner) {
  return std::make_unique<Border>(birth, std::move(inner));
}

}  // namespace braid::nixl
