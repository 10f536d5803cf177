// Transfers of an engine for Python: page lists come as arrays, so nothing is a loop in Python.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine_calls.h"

namespace nb = nanobind;

namespace braid::python {
namespace {

using engine::TicketPtr;
using engine::TransferOptions;
using Ids = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

TransferOptions options_of(std::optional<uint32_t> immediate, const nb::bytes& notification,
                           int64_t timeout_ns, const nb::object& callback) {
  TransferOptions out;
  out.immediate = immediate;
  out.notification = std::string(notification.c_str(), notification.size());
  out.timeout_ns = timeout_ns;
  out.callback = callback_of(callback);
  return out;
}

engine::PageList list_of(uint64_t page_bytes, const Ids& source_ids, const Ids& target_ids,
                         uint64_t source_stride, uint64_t target_stride) {
  engine::PageList list;
  list.page_bytes = page_bytes;
  list.source_ids = {source_ids.data(), source_ids.size()};
  list.target_ids = {target_ids.data(), target_ids.size()};
  list.source_stride = source_stride;
  list.target_stride = target_stride;
  return list;
}

/// What a list of pages holds in: of each of the four one, which is all planes', or one for each
/// plane.
struct Planes {
  const std::vector<const PyRegion*>& ours;
  const std::vector<Remote>& theirs;
  const Ids &our_offsets, &their_offsets;

  std::vector<engine::PagePlane> each() const {
    const size_t count =
        std::max({ours.size(), theirs.size(), our_offsets.size(), their_offsets.size()});
    const auto of = [](const auto& all, size_t i) { return all.data()[all.size() == 1 ? 0 : i]; };
    std::vector<engine::PagePlane> out;
    out.reserve(count);
    for (size_t i = 0; i < count; ++i)
      out.push_back({of(ours, i)->region, of(theirs, i), of(our_offsets, i), of(their_offsets, i)});
    return out;
  }
};

void register_moves(nb::class_<PyEngine>& type) {
  type.def(
      "write",
      [](const PyEngine& self, const PyRegion& source, uint64_t source_offset, const Remote& target,
         uint64_t target_offset, uint64_t bytes, std::optional<uint32_t> imm,
         const nb::bytes& notification, int64_t timeout_ns, const nb::object& callback) {
        auto options = options_of(imm, notification, timeout_ns, callback);
        return begin(self, [&](engine::Engine& e) {
          return e.write({source.region, source_offset}, {target, target_offset}, bytes,
                         std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
      nb::arg().none());
  type.def(
      "read",
      [](const PyEngine& self, const PyRegion& target, uint64_t target_offset, const Remote& source,
         uint64_t source_offset, uint64_t bytes, const nb::bytes& notification, int64_t timeout_ns,
         const nb::object& callback) {
        auto options = options_of({}, notification, timeout_ns, callback);
        return begin(self, [&](engine::Engine& e) {
          return e.read({target.region, target_offset}, {source, source_offset}, bytes,
                        std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg().none());
  type.def(
      "pages",
      [](const PyEngine& self, bool is_read, const std::vector<const PyRegion*>& ours,
         const std::vector<Remote>& theirs, uint64_t page_bytes, const Ids& source_ids,
         const Ids& target_ids, uint64_t source_stride, uint64_t target_stride,
         const Ids& our_offsets, const Ids& their_offsets, std::optional<uint32_t> imm,
         const nb::bytes& notification, int64_t timeout_ns, const nb::object& callback) {
        auto options = options_of(imm, notification, timeout_ns, callback);
        const engine::PageList list =
            list_of(page_bytes, source_ids, target_ids, source_stride, target_stride);
        const std::vector<engine::PagePlane> planes =
            Planes{ours, theirs, our_offsets, their_offsets}.each();
        return begin(self, [&](engine::Engine& e) {
          return is_read ? e.read_pages(planes, list, std::move(options))
                         : e.write_pages(planes, list, std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
      nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  type.def(
      "message",
      [](const PyEngine& self, const engine::Address& peer, const std::string& kind,
         const nb::bytes& bytes, std::optional<uint32_t> imm, int64_t timeout_ns,
         const nb::object& callback) {
        auto options = options_of(imm, nb::bytes("", 0), timeout_ns, callback);
        const std::string text = text_of(bytes);
        return begin(self, [&](engine::Engine& e) -> Result<TicketPtr> {
          if (kind == "send") return e.send(peer, text, std::move(options));
          if (kind == "notify") return e.notify(peer, text, std::move(options));
          return e.connect(peer, std::move(options));
        });
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none());
}

/// Parts are (target, target_offset, source_offset, bytes).
using Parts = std::vector<std::tuple<Remote, uint64_t, uint64_t, uint64_t>>;

void register_fans(nb::class_<PyEngine>& type) {
  type.def(
      "scatter",
      [](const PyEngine& self, const PyRegion& source, const Parts& parts,
         std::optional<uint32_t> imm, const nb::bytes& notification, int64_t timeout_ns) {
        const TransferOptions options = options_of(imm, notification, timeout_ns, nb::none());
        std::vector<engine::ScatterPart> list;
        for (const auto& [target, target_offset, source_offset, bytes] : parts)
          list.push_back({bytes, source_offset, {target, target_offset}});
        return begin(self,
                     [&](engine::Engine& e) { return e.scatter(source.region, list, options); });
      },
      nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  type.def(
      "signal", [](const PyEngine& self, const nb::list& peers, uint32_t imm, int64_t timeout_ns) {
        std::vector<engine::Address> addresses;
        for (const nb::handle peer : peers)
          addresses.push_back(nb::cast<const engine::Address&>(peer));
        TransferOptions options;
        options.timeout_ns = timeout_ns;
        return begin(self, [&](engine::Engine& e) { return e.signal(addresses, imm, options); });
      });
}

}  // namespace

void register_transfers(nb::class_<PyEngine>& type) {
  register_moves(type);
  register_fans(type);
  type.def("cancel", [](const PyEngine& self, const TicketPtr& ticket) {
    ask(self, [&](engine::Engine& e) { e.cancel(ticket); });
  });
}

}  // namespace braid::python
