// The libraries that the conformance suite of sys/fabric runs on.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "sys/fabric/fabric_ends.h"
#include "sys/fabric/fake.h"
#include "sys/verbs/api.h"

namespace braid::sys {

inline Result<std::shared_ptr<FabricLibrary>> open_real_fabric() {
  BRAID_ASSIGN_OR_RETURN(FabricLibrary* const library, real_fabric());
  return std::shared_ptr<FabricLibrary>(library, [](FabricLibrary*) {});  // lives for ever
}

inline FabricUnderTest real_under_test(const std::string& provider) {
  return {provider, provider, "127.0.0.1", open_real_fabric};
}

/// Where `make test-verbs` has devices; elsewhere those that are there, or none.
inline std::string verbs_address() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody writes it
  const char* address = std::getenv("BRAID_VERBS_ADDRESS");
  return address != nullptr ? address : "";
}

/// `library`, if it has an interface of `provider`.
inline Result<std::shared_ptr<FabricLibrary>> with_interface(Result<FabricLibrary*> library,
                                                             const std::string& provider) {
  BRAID_RETURN_IF_ERROR(library.status());
  const auto found = library.value()->interfaces(provider);
  if (!found.ok() || found.value().empty()) return unavailable("no RDMA device");
  return std::shared_ptr<FabricLibrary>(library.value(), [](FabricLibrary*) {});
}

inline FabricUnderTest verbs_under_test() {
  return {"verbs", "verbs", verbs_address(), [] { return with_interface(real_verbs(), "verbs"); }};
}

inline FabricUnderTest verbs_by_libfabric_under_test() {
  return {"verbs_ofi_rxm", "verbs;ofi_rxm", verbs_address(),
          [] { return with_interface(real_fabric(), "verbs;ofi_rxm"); }};
}

inline FabricUnderTest fake_under_test(const std::string& name, const FakeRules& rules) {
  return {name, "fake", "", [rules]() -> Result<std::shared_ptr<FabricLibrary>> {
            return std::shared_ptr<FabricLibrary>(std::make_shared<FakeFabric>(rules));
          }};
}

inline std::vector<FabricUnderTest> fabrics_under_test() {
  return {
      fake_under_test("fake_quiet", {}),
      fake_under_test("fake_reordering", {.seed = 7,
                                          .reorder_window = 8,
                                          .max_delay_polls = 12,
                                          .busy_percent = 20,
                                          .is_truthful = true,
                                          .has_trusted_immediates = true}),
      real_under_test("tcp"),
      real_under_test("net"),
      real_under_test("shm"),
      verbs_under_test(),
      verbs_by_libfabric_under_test(),
  };
}

inline std::string name_of_fabric(const testing::TestParamInfo<FabricUnderTest>& info) {
  return info.param.name;
}

}  // namespace braid::sys
