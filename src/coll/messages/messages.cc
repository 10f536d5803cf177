#include "coll/messages/messages.h"

#include "coll/arguments.h"
#include "coll/messages/exchange.h"

namespace braid::coll {

std::string to_words(const Message& message) {
  const bool is_send = message.way == Message::Way::kSend;
  return fmt::format("{} of {} {} rank {}", is_send ? "send" : "recv",
                     to_words(comm::Announcement{message.dtype, message.count}),
                     is_send ? "to" : "from", message.peer);
}

namespace {

Buffer memory_of(const Message& message) {
  return {"data", message.data, message.count * dtype_bytes(message.dtype)};
}

/// Of right messages: what arrives would be written over what is still to be sent, or to be received.
Status check_apart(std::span<const Message> messages) {
  for (const Message& arrives : messages) {
    if (arrives.way != Message::Way::kRecv) continue;
    for (const Message& other : messages) {
      if (&other == &arrives || check_disjoint(memory_of(arrives), memory_of(other)).ok()) continue;
      return invalid_argument("{} and {} share memory; what is received must lie apart",
                              to_words(other), to_words(arrives));
    }
  }
  return {};
}

}  // namespace

Status exchange(comm::Comm& comm, std::span<const Message> messages) {
  Exchange all(comm);
  BRAID_RETURN_IF_ERROR(all.status());
  for (const Message& message : messages) BRAID_RETURN_IF_ERROR(check_message(comm, message));
  BRAID_RETURN_IF_ERROR(check_apart(messages));
  for (const Message& message : messages) all.post(message);
  Status first;
  while (all.has_open()) {
    BRAID_ASSIGN_OR_RETURN(const auto ended, all.step());
    for (const Exchange::Ended& message : ended)
      if (first.ok()) first = message.status;
  }
  return first;
}

Status send(comm::Comm& comm, const void* data, uint64_t count, Dtype dtype, int peer) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a message that is sent is only read
  const Message message{Message::Way::kSend, peer, const_cast<void*>(data), count, dtype};
  return exchange(comm, {&message, 1});
}

Status recv(comm::Comm& comm, void* data, uint64_t count, Dtype dtype, int peer) {
  const Message message{Message::Way::kRecv, peer, data, count, dtype};
  return exchange(comm, {&message, 1});
}

}  // namespace braid::coll
