// In place of the files that need rdma-core's headers, where those are not installed.
#include "sys/verbs/api.h"

namespace braid::sys {

Result<FabricLibrary*> real_verbs() {
  return unavailable("braid was built without rdma-core's headers (Debian: libibverbs-dev)");
}

}  // namespace braid::sys
