// libcrypto's algorithms for threads that outlive it. At a process's end libcrypto frees what it has
// fetched so far, in an exit handler, while threads of ours (a store, a roll over nodes) still greet
// who comes: a fetch is a crash then. A library context of our own is never freed.
//
// Threads: any.
#pragma once

#include <openssl/types.h>

namespace braid::group {

/// For EVP_*_fetch(), which works to the process's last moment.
OSSL_LIB_CTX* own_crypto();

}  // namespace braid::group
