// Messages between two ranks: one that is waited for, and Exchange, which has any number under way
// for python/braid/calls.py.
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "call.h"
#include "coll/messages/exchange.h"
#include "coll/messages/messages.h"
#include "coll/messages/on_gpu.h"
#include "comm.h"
#include "errors.h"
#include "sys/cuda/api.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace braid::python {

namespace {

using coll::Message;

Buffer borrow(nb::handle object, Message::Way way) {
  return way == Message::Way::kSend ? Buffer::borrow(object, {"send", "buf"}, Access::kRead)
                                    : Buffer::borrow(object, {"recv", "buf"}, Access::kWrite);
}

Message message_of(const Buffer& buffer, Message::Way way, int peer) {
  return {way, peer, buffer.data(), buffer.wire_count(), buffer.wire_dtype()};
}

void run_message(PyComm& self, nb::handle object, Message::Way way, int peer, uint64_t stream) {
  const Buffer buffer = borrow(object, way);
  const Message message = message_of(buffer, way, peer);
  run_unlocked([&] {
    if (!buffer.on_gpu()) return coll::exchange(self.get(), {&message, 1});
    return coll::device::exchange_one(self.get(), sys::real_cuda(), buffer.gpu(), message,
                                      stream_of(stream));
  });
}

void send(PyComm& self, nb::handle buf, int peer, uint64_t stream) {
  run_message(self, buf, Message::Way::kSend, peer, stream);
}
void recv(PyComm& self, nb::handle buf, int peer, uint64_t stream) {
  run_message(self, buf, Message::Way::kRecv, peer, stream);
}

/// coll::Exchange, which holds the comm until close(), with the buffers of what is under way. One
/// thread makes, steps and closes it.
class PyExchange {
 public:
  explicit PyExchange(PyComm& self) : comm_(self.get()) {
    {
      const Unlocked released;
      exchange_ = std::make_unique<coll::Exchange>(comm_);
    }
    raise_if_failed(exchange_->status());
  }

  int post(nb::handle object, bool is_send, int peer, uint64_t stream) {
    const Message::Way way = is_send ? Message::Way::kSend : Message::Way::kRecv;
    Open open{borrow(object, way), std::nullopt};
    Message message = message_of(open.buffer, way, peer);
    run_unlocked([&]() -> Status {
      if (!open.buffer.on_gpu()) return coll::check_message(comm_, message);
      BRAID_ASSIGN_OR_RETURN(
          open.staged, coll::device::StagedMessage::make(comm_, sys::real_cuda(), open.buffer.gpu(),
                                                         message, stream_of(stream)));
      const Status ready = open.staged->stage();
      if (!ready.ok()) return exchange_->give_up(message, ready);
      message = open.staged->on_host();
      return {};
    });
    const int id = exchange_->post(message);
    open_.emplace(id, std::move(open));
    return id;
  }

  /// What is over: ids with None or the exception that the waiting caller gets.
  nb::list step() {
    std::vector<coll::Exchange::Ended> ended;
    run_unlocked([&]() -> Status {
      BRAID_ASSIGN_OR_RETURN(ended, exchange_->step());
      for (coll::Exchange::Ended& one : ended) {
        auto& staged = open_.at(one.id).staged;
        if (staged && one.status.ok()) one.status = staged->finish();
      }
      return {};
    });
    nb::list told;
    for (const coll::Exchange::Ended& one : ended) {
      open_.erase(one.id);
      told.append(nb::make_tuple(one.id, exception_of(one.status)));
    }
    return told;
  }

  bool has_open() const { return exchange_->has_open(); }
  void poke() { exchange_->poke(); }
  void close() { exchange_.reset(); }

 private:
  struct Open {
    Buffer buffer;
    std::optional<coll::device::StagedMessage> staged;
  };
  comm::Comm& comm_;
  std::map<int, Open> open_;
  std::unique_ptr<coll::Exchange> exchange_;
};

}  // namespace

void register_messages(nb::module_& module) {
  const auto buf = nb::arg("buf").none();
  const auto stream = nb::arg("stream") = 0;
  module.def("send", &send, nb::arg("comm"), buf, nb::arg("peer"), stream);
  module.def("recv", &recv, nb::arg("comm"), buf, nb::arg("peer"), stream);
  nb::class_<PyExchange>(module, "Exchange")
      .def(nb::init<PyComm&>(), nb::arg("comm"), nb::keep_alive<1, 2>())
      .def("post", &PyExchange::post, nb::arg("buf").none(), nb::arg("is_send"), nb::arg("peer"),
           stream)
      .def("step", &PyExchange::step)
      .def_prop_ro("has_open", &PyExchange::has_open)
      .def("poke", &PyExchange::poke)
      .def("close", &PyExchange::close);
}

}  // namespace braid::python
