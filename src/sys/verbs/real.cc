#include "sys/verbs/api.h"
#include "sys/verbs/domain.h"
#include "sys/verbs/registration.h"

namespace braid::sys {
namespace {

// Of a library with one provider: the provider that a request names is not looked at.
class VerbsLibrary final : public FabricLibrary {
 public:
  explicit VerbsLibrary(const verbs::Library& library) : library_(library) {}

  Result<std::unique_ptr<FabricDomain>> open(const DomainRequest& request) override {
    return verbs::Domain::open(library_, request);
  }

  Result<std::vector<FabricInterface>> interfaces(const std::string&) override {
    std::vector<FabricInterface> out;
    for (const verbs::Port& port : verbs::open_ports(library_)) {
      const Result<verbs::GidEntry> gid = verbs::choose_gid(port.gids, {});
      if (!port.is_active() || !gid.ok()) continue;
      out.push_back({"verbs", port.name, address_of(port, gid.value()), port.rate_gbps(),
                     reaches_gpus(port)});
    }
    return out;
  }

 private:
  static std::string address_of(const verbs::Port& port, const verbs::GidEntry& gid) {
    return port.is_ethernet() ? verbs::gid_text(gid.gid) : std::string();
  }
  bool reaches_gpus(const verbs::Port& port) const {
    const verbs::ProtectionDomain protection{library_, library_.alloc_pd(port.context.get())};
    return protection && verbs::takes_dmabufs(library_, protection.get());
  }

  const verbs::Library& library_;
};

Result<FabricLibrary*> open_verbs() {
  BRAID_ASSIGN_OR_RETURN(const verbs::Library* library, verbs::open_library());
  return new VerbsLibrary(*library);  // lives as long as the process, as the library does
}

}  // namespace

Result<FabricLibrary*> real_verbs() {
  static const Result<FabricLibrary*> kLibrary = open_verbs();
  return kLibrary;
}

}  // namespace braid::sys
