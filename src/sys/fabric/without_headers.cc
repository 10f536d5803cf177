// Takes the place of real.cc where there were no headers of libfabric to build with.
#include "sys/fabric/api.h"

namespace braid::sys {

Result<FabricLibrary*> real_fabric() {
  return unavailable(
      "this build of braid cannot use libfabric: it was built without libfabric's headers (Debian: "
      "libfabric-dev)");
}

}  // namespace braid::sys
